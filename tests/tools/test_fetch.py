"""fetch and chart. Pages come from a server on this machine that passes for a public one."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tertulia.records.errors import InvalidInput, SandboxError
from tertulia.tools.builtin import fetch as fetching

Pages = dict[str, bytes]


@pytest.fixture
async def web(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Pages], str]]:
    """Serves these answers by path, at http://public.test:PORT."""
    pages: Pages = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(
            pages.get(head.split()[1].decode(), b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        )
        await writer.drain()
        if b"drip" in head:
            with_more = reader.read()  # until the client has gone
            await with_more
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    known = fetching.public_address

    def address(host: str, port: int) -> str:
        return "127.0.0.1" if host == "public.test" else known(host, port)

    monkeypatch.setattr(fetching, "public_address", address)
    monkeypatch.setattr(fetching, "PORTS", (*fetching.PORTS, port))

    def publish(more: Pages) -> str:
        pages.update(more)
        return f"http://public.test:{port}"

    async with server:
        yield publish


def page(body: bytes, kind: str = "text/plain", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def test_a_page_comes_as_text(use: Any, web: Any) -> None:
    latin = page("señor".encode("latin-1"), "text/plain; charset=latin-1")
    url = web({"/a?b=1": latin, "/bin": page(b"\0\1", "image/png")})
    assert await use("fetch", url=f"{url}/a?b=1#part") == f"{url}/a?b=1#part\n200 text/plain\n\nseñor"
    assert (await use("fetch", url=f"{url}/bin")).endswith("[2 bytes that are no text]")
    assert "\n404 " in await use("fetch", url=f"{url}/none")


async def test_redirects_are_followed_and_each_is_checked(use: Any, web: Any) -> None:
    url = web({
        "/old": page(b"", status="302 Found", Location="/new"),
        "/new": page(b"here"),
        "/loop": page(b"", status="302 Found", Location="/loop"),
        "/in": page(b"", status="302 Found", Location="http://127.0.0.1/secret"),
        "/meta": page(b"", status="302 Found", Location="http://169.254.169.254/latest"),
        "/file": page(b"", status="302 Found", Location="file:///etc/passwd"),
    })  # fmt: skip
    assert (await use("fetch", url=f"{url}/old")).endswith("\n\nhere")
    with pytest.raises(InvalidInput, match="redirects"):
        await use("fetch", url=f"{url}/loop")
    for path in ("/in", "/meta"):
        with pytest.raises(SandboxError, match="inside of a network"):
            await use("fetch", url=url + path)
    with pytest.raises(InvalidInput, match="no http"):
        await use("fetch", url=f"{url}/file")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "[::1]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "[64:ff9b::a00:1]", "[2002:7f00:1::]", "224.0.0.1",
        "2130706433", "0x7f000001", "127.1",
    ],
)  # fmt: skip
async def test_addresses_inside_of_a_network_are_refused(use: Any, host: str) -> None:
    with pytest.raises(SandboxError, match="inside of a network"):
        await use("fetch", url=f"http://{host}/")


async def test_a_name_that_leads_inside_is_refused_and_asked_once(
    use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["93.184.216.34", "10.0.0.1"], ["93.184.216.34"], ["127.0.0.1"]])
    connected: list[Any] = []

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (address, port)) for address in next(answers)]

    def connect(address: Any, timeout: float) -> Any:
        connected.append(address)
        raise OSError("not today")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(SandboxError):
        await use("fetch", url="http://mixed.test/")
    with pytest.raises(InvalidInput, match="not today"):
        await use("fetch", url="http://rebound.test/")
    assert connected == [("93.184.216.34", 80)]


async def test_time_and_size_are_limited(use: Any, web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = web({"/drip": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX:", "/big": page(b"x" * 5000)})
    monkeypatch.setattr(fetching, "LARGEST", 1000)
    assert (await use("fetch", url=f"{url}/big")).endswith("x\n[cut after 1,000 bytes]")
    monkeypatch.setattr(fetching, "SECONDS", 0.3)
    with pytest.raises(InvalidInput, match="cannot be reached"):
        await use("fetch", url=f"{url}/drip")


async def test_the_time_that_ends_before_there_is_a_connection_ends_it_too(
    use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is there to be cut off then, and the server sends a byte now and then, as long as somebody listens."""
    dripped, gone, connect = 0, asyncio.Event(), socket.create_connection

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dripped
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while dripped < 200:
            try:
                async with asyncio.timeout(0.05):
                    if not await reader.read(1000):
                        break
            except TimeoutError:
                dripped += 1
                writer.write(b"x")
            except ConnectionError:
                break
        writer.close()
        gone.set()

    def slowly(*given: Any, **more: Any) -> Any:
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join(10)
        return connect(*given, **more)

    monkeypatch.setattr(socket, "create_connection", slowly)
    monkeypatch.setattr(fetching, "public_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(fetching, "SECONDS", 0.3)
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr(fetching, "PORTS", (port,))
        with pytest.raises(InvalidInput, match="it took longer"):
            await use("fetch", url=f"http://public.test:{port}/")
        async with asyncio.timeout(20):
            await gone.wait()
    assert dripped < 200


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "rot13", "unicode_escape", "nonsense"])
async def test_a_charset_that_is_none_of_pages_is_not_used(use: Any, web: Any, charset: str) -> None:
    url = web({"/a": page("a-é\\n".encode(), f"text/plain; charset={charset}")})
    assert (await use("fetch", url=f"{url}/a")).endswith("\n\na-é\\n")


@pytest.mark.parametrize(
    "charset", ["utf-16", "latin-1", "windows-1251", "shift_jis", "euc-kr", "gb18030", "koi8-r"]
)
async def test_charsets_of_pages_are_used(use: Any, web: Any, charset: str) -> None:
    url = web({"/a": page("a-b".encode(charset), f"text/plain; charset={charset}")})
    assert (await use("fetch", url=f"{url}/a")).endswith("\n\na-b")


@pytest.mark.parametrize(
    "url", ["ftp://public.test/", "http://", "nonsense", "http://a:b@public.test/", "http://[x/"]
)
async def test_what_is_no_address(use: Any, url: str) -> None:
    with pytest.raises(InvalidInput):
        await use("fetch", url=url)


async def test_ports_of_other_services_are_refused(use: Any) -> None:
    with pytest.raises(SandboxError, match="port 6379"):
        await use("fetch", url="http://public.test:6379/")


async def test_a_chart_is_data(use: Any) -> None:
    said, data = await use("chart", kind="bar", series={"sales": [1, 2.5]}, labels=["a", "b"], title="Sales")
    assert said.text == "shown: a bar chart of sales (2 values)"
    assert data.name == "chart_data"
    drawing = data.value
    assert (drawing["title"], drawing["mark"]) == ("Sales", "bar")
    assert drawing["data"]["values"] == [
        {"x": "a", "y": 1.0, "series": "sales"},
        {"x": "b", "y": 2.5, "series": "sales"},
    ]
    assert set(drawing["encoding"]) == {"x", "y"}
    _, pie = await use("chart", kind="pie", series={"part": [1, 2]}, labels=["a", "b"])
    assert (pie.value["mark"], set(pie.value["encoding"])) == ("arc", {"theta", "color"})
    _, two = await use("chart", kind="bar", series={"a": [1], "b": [2]})
    assert set(two.value["encoding"]) == {"x", "y", "color", "xOffset"}
    for bad in (
        {"series": {}},
        {"series": {"a": [1]}, "labels": ["x", "y"]},
        {"series": {"a": [1] * 20_000}},
    ):
        with pytest.raises(InvalidInput):
            await use("chart", kind="line", **bad)
