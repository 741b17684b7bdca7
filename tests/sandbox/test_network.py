"""Commands that may reach some hosts: those, by our proxy, and nothing else."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertulia import Session
from tertulia.records.errors import SandboxError
from tertulia.sandbox import proxy as proxying
from tertulia.sandbox.hosts import Hosts, is_public
from tertulia.sandbox.policy import Policy
from tertulia.sandbox.proxy import PORT
from tertulia.sandbox.sandbox import Sandbox
from tertulia.testing import ScriptedModel, call

pytestmark = pytest.mark.timeout(60)

PYTHON = os.path.realpath(sys.executable)

GET = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            print(answer.status, answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print("failed", error)
"""

RAW = """
import socket, sys
with socket.create_connection(("127.0.0.1", 3128), timeout=20) as there:
    there.sendall(sys.argv[1].encode().decode("unicode_escape").encode("latin-1"))
    if "--more" in sys.argv:
        head = there.recv(65536)
        there.sendall(b"hello through the tunnel")
        there.shutdown(socket.SHUT_WR)
        print(head.decode(), end="")
    print(b"".join(iter(lambda: there.recv(65536), b"")).decode("latin-1"))
"""


class Site:
    """A server on the host's loopback that says back what it was asked."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[bytes] = []
        self.connections = 0
        self.reached = asyncio.Event()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        made.connections += 1
        data = await reader.read(65536)
        made.asked.append(data)
        made.reached.set()
        if data.startswith(b"hello"):
            writer.write(b"echo: " + data)
        elif b"/hangs" not in data:
            body = b"x" * 3_000_000 if b"/large" in data else b"you reached it"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        else:
            await reader.read()
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made = Site(server.sockets[0].getsockname()[1])
    yield made
    server.close()
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name below .test is an address of this machine; nothing is asked of a real server."""

    def resolve(host: str, port: int, *_: object, **__: object) -> list[Any]:
        if not str(host).endswith(".test") and not str(host)[0].isdigit():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.usefixtures("names")
async def test_a_listed_host_is_reached_and_another_is_not(run: Any, site: Site) -> None:
    here = (f"good.test:{site.port}", f"127.0.0.1:{site.port}")
    urls = [f"http://good.test:{site.port}/a?b=c", f"http://bad.test:{site.port}/", "http://127.0.0.1:1/"]
    ran = await run(PYTHON, "-c", GET, *urls, network=here)
    answers = ran.text.splitlines()
    assert answers[0] == "200 you reached it"
    assert answers[1].startswith("403 tertulia: bad.test:")
    assert answers[3].startswith("403 tertulia: 127.0.0.1:1 is not on the list")
    assert site.connections == 1
    assert site.asked[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"Connection: close" in site.asked[0]


@pytest.mark.usefixtures("names")
async def test_a_tunnel_carries_bytes_both_ways(run: Any, site: Site) -> None:
    allowed = ("*.good.test:9", f"*.good.test:{site.port}", f"127.0.0.1:{site.port}")
    ask = rf"CONNECT a.good.test:{site.port} HTTP/1.1\r\n\r\n"
    ran = await run(PYTHON, "-c", RAW, ask, "--more", network=allowed)
    assert ran.text.startswith("HTTP/1.1 200 ")
    assert ran.text.rstrip().endswith("echo: hello through the tunnel")


@pytest.mark.usefixtures("names")
async def test_a_large_answer_comes_whole(run: Any, site: Site) -> None:
    here = (f"good.test:{site.port}", f"127.0.0.1:{site.port}")
    code = "import sys, urllib.request as r; print(len(r.urlopen(sys.argv[1], timeout=20).read()))"
    ran = await run(PYTHON, "-c", code, f"http://good.test:{site.port}/large", network=here)
    assert ran.text == "3000000\n"


@pytest.mark.usefixtures("names")
async def test_a_name_that_leads_inside_of_a_network_is_refused(run: Any, site: Site) -> None:
    """Who answers for a listed name does not decide what of the host's own is reached."""
    for entry in (f"good.test:{site.port}", f"*.test:{site.port}"):
        ran = await run(PYTHON, "-c", GET, f"http://good.test:{site.port}/", network=(entry,))
        assert "403 tertulia: good.test" in ran.text
        assert "inside of a network" in ran.text
    for host in ("127.1", "0x7f.1", "2130706433", "017700000001"):
        ran = await run(PYTHON, "-c", RAW, rf"CONNECT {host}:443 HTTP/1.1\r\n\r\n", network=("*",))
        assert "403 " in ran.text, host
    assert site.connections == 0


async def test_nothing_else_leads_out(run: Any, site: Site) -> None:
    code = f"""
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {site.port})), (socket.AF_INET, ("1.1.1.1", 53))):
    try:
        socket.create_connection(address, timeout=3)
        print("reached", address)
    except OSError as error:
        print(error)
try:
    print("resolved", socket.getaddrinfo("example.org", 80))
except OSError as error:
    print(error)
try:
    socket.socket(socket.AF_UNIX)
    print("reached a Unix socket")
except OSError as error:
    print(error)
"""
    ran = await run(PYTHON, "-c", code, network=(f"127.0.0.1:{site.port}",))
    assert "reached" not in ran.text, ran.text
    assert "resolved" not in ran.text, ran.text
    assert site.connections == 0


async def test_the_port_is_the_commands_own(sandboxed: Callable[..., Sandbox]) -> None:
    process = sandboxed(network=("example.org",)).start(["/bin/sh", "-c", "echo on; sleep 60"])
    started = asyncio.Event()
    process.on_output = lambda data: started.set()
    waiting = asyncio.ensure_future(process.wait())
    async with asyncio.timeout(20):
        await started.wait()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", PORT)) != 0
        process.stop("enough")
        assert (await waiting).stopped == "enough"


@pytest.mark.parametrize(
    "request_",
    [
        r"\r\n\r\n", r"GET / HTTP/1.1\r\n\r\n", r"GET https://a.test/ HTTP/1.1\r\n\r\n", r"\x00\xff\xfe\r\n\r\n",
        r"CONNECT HTTP/1.1\r\n\r\n", r"CONNECT a.test HTTP/1.1\r\n\r\n", r"CONNECT a.test:99999 HTTP/1.1\r\n\r\n",
        r"CONNECT [::1:80 HTTP/1.1\r\n\r\n", r"GET http://a.test/ HTTP/1.1\r\nA: b\nHost: c\r\n\r\n",
        r"GET ftp://a.test/ HTTP/1.1\r\n\r\n", r"CONNECT a\x00b.test:80 HTTP/1.1\r\n\r\n",
    ],
)  # fmt: skip
async def test_what_is_no_request_is_refused(run: Any, request_: str) -> None:
    ran = await run(PYTHON, "-c", RAW, request_, network=("*",))
    assert ran.text[:10] in ("HTTP/1.1 4", "HTTP/1.1 5"), ran.text


async def test_a_head_without_an_end_is_refused(run: Any) -> None:
    code = """
import socket
there = socket.create_connection(("127.0.0.1", 3128), timeout=20)
try:
    there.sendall(b"GET http://example.org/" + b"a" * 300_000)
    print(there.recv(100))
except OSError as error:
    print("closed", error)
"""
    ran = await run(PYTHON, "-c", code, network=("example.org",))
    assert "431" in ran.text or "closed" in ran.text


@pytest.mark.usefixtures("names")
async def test_the_end_of_the_command_ends_its_connections(sandboxed: Any, site: Site) -> None:
    here = (f"good.test:{site.port}", f"127.0.0.1:{site.port}")
    command = [PYTHON, "-c", GET, f"http://good.test:{site.port}/hangs"]
    process = sandboxed(network=here).start(command)
    waiting = asyncio.ensure_future(process.wait())
    async with asyncio.timeout(30):
        await site.reached.wait()
        process.stop("enough")
        assert (await waiting).stopped == "enough"


async def test_stopped_before_its_port_is_open(sandboxed: Any) -> None:
    for cancel in (False, True):
        process = sandboxed(network=("example.org",)).start(["/bin/true"])
        waiting = asyncio.ensure_future(process.wait())
        await asyncio.sleep(0)
        if cancel:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            process.stop("enough")
            assert (await waiting).stopped == "enough"


async def test_without_its_port_a_command_does_not_run(
    run: Any, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "doorway.py"
    broken.write_text("raise SystemExit('no namespace for you')")
    monkeypatch.setattr(proxying, "DOORWAY", str(broken))
    ran = await run("touch here", network=("example.org",))
    assert "no namespace for you" in ran.stopped
    assert not (root / "here").exists()


@pytest.mark.req("S2-14b")
async def test_the_model_reads_which_hosts_it_may_not_reach(root: Path) -> None:
    command = f"{PYTHON} -c '{GET}' http://elsewhere.test/"
    model = ScriptedModel([[call("shell", command=command)], "I see."])
    policy = Policy(network=("example.org",))
    async with Session.open(
        model=model, tools="default", approvals="allow", cwd=root, sandbox=policy
    ) as session:
        await session.prompt("Go.")
        result = next(entry for entry in await session.transcript() if entry.type == "tool_result")
    assert "hosts that commands may reach: elsewhere.test:80]" in result.text


@pytest.fixture
async def listener(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[socket.socket]:
    """In place of one in a command's network."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)

        async def listening(pid: int) -> socket.socket:
            return made

        monkeypatch.setattr(proxying, "listening", listening)
        yield made


async def test_a_start_that_is_cancelled_leaves_no_port_open(listener: socket.socket) -> None:
    address = listener.getsockname()
    proxy = proxying.Proxy(Hosts(("example.org",)))
    starting = asyncio.ensure_future(proxy.start(1))
    await asyncio.sleep(0)  # it listens, and has not said so
    starting.cancel()
    await asyncio.wait([starting])
    await proxy.aclose()
    assert starting.cancelled()
    with socket.socket() as probe:
        assert probe.connect_ex(address) != 0


class Late(proxying.Proxy):
    """Closed just before it sees who came."""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.closing = asyncio.ensure_future(self.aclose())
        asyncio.get_running_loop().call_soon(super()._accept, reader, writer)


async def test_what_comes_in_the_last_moment_is_not_served(listener: socket.socket) -> None:
    proxy = Late(Hosts(("example.org",)))
    await proxy.start(1)
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await proxy.closing
    assert not proxy._serving
    writer.close()


async def test_all_commands_share_a_number_of_connections(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxying, "_places", threading.BoundedSemaphore(1))
    proxy = proxying.Proxy(Hosts(("example.org",)))
    await proxy.start(1)
    async with asyncio.timeout(20):
        first, second = [await asyncio.open_connection(*listener.getsockname()) for _ in range(2)]
        assert b"503 " in await second[0].read()
        first[1].close()
        await first[1].wait_closed()
        await proxy.aclose()
    second[1].close()
    assert proxying._places.acquire(blocking=False)


async def test_slow_names_hold_up_nothing_else(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked = threading.Event(), threading.Semaphore(0)

    def silent(*_: object, **__: object) -> list[Any]:
        asked.release()
        answer.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    proxy = proxying.Proxy(Hosts(("*",)))
    await proxy.start(1)
    there = []
    try:
        async with asyncio.timeout(20):
            for n in range(40):
                there.append(await asyncio.open_connection(*listener.getsockname()))
                there[-1][1].write(b"CONNECT n%d.test:443 HTTP/1.1\r\n\r\n" % n)
            for _ in range(proxying.NAMES):
                await asyncio.to_thread(asked.acquire)
            await asyncio.to_thread(lambda: None)
        assert not asked.acquire(blocking=False)
    finally:
        answer.set()
        await proxy.aclose()
        for _, writer in there:
            writer.close()


def test_a_name_that_is_too_long_is_none() -> None:
    everything = Hosts(("*",))
    assert everything.allows("a" * 253, 443)
    assert not everything.allows("a." * 32_000 + "x", 443)
    assert not everything.allows("ü" * 32_000, 443)


LISTED = (
    "Example.ORG", "*.below.example.", "here.example:8080", "10.0.0.5", "[fd00::1]:99", "bücher.example",
)  # fmt: skip


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("example.org", 443, True), ("EXAMPLE.org.", 80, True), ("example.org", 8080, False),
        ("www.example.org", 443, False), ("a.b.below.example", 80, True), ("below.example", 80, False),
        ("notbelow.example", 80, False), ("here.example", 8080, True), ("here.example", 80, False),
        ("10.0.0.5", 80, True), ("10.0.0.6", 80, False), ("fd00::1", 99, True), ("fd00::1", 80, False),
        ("xn--bcher-kva.example", 443, True), ("", 80, False), (".", 80, False),
    ],
)  # fmt: skip
def test_the_list(host: str, port: int, allowed: bool) -> None:
    assert Hosts(LISTED).allows(host, port) is allowed


def test_a_star_is_every_name_and_no_number() -> None:
    everything = Hosts(("*",))
    assert everything.allows("any.example", 443)
    assert not everything.allows("any.example", 22)
    assert not everything.allows("93.184.215.14", 443)


@pytest.mark.parametrize(
    ("address", "port", "reached"),
    [("10.0.0.5", 443, True), ("10.0.0.5", 22, False), ("10.0.0.7", 80, False), ("93.184.215.14", 22, True)],
)
def test_where_a_name_may_lead(address: str, port: int, reached: bool) -> None:
    assert Hosts(LISTED).reaches(address, port) is reached


@pytest.mark.parametrize(
    "bad",
    ["", "a b", "http://a.example", "a.example:0", "a.example:70000", "*.*.example", "a*.example", "-a.example", "::1",
     "a..example", "a.example/path", 5, None, "x" * 64],
)  # fmt: skip
async def test_what_names_no_host_is_refused_at_once(bad: Any, sandboxed: Any) -> None:
    with pytest.raises(SandboxError, match="names no host"):
        sandboxed(network=(bad,))


@pytest.mark.parametrize("bad", [(), "example.org", 5, None])
async def test_what_is_no_list_is_refused(bad: Any, sandboxed: Any) -> None:
    with pytest.raises(SandboxError, match="network is"):
        sandboxed(network=bad)


@given(st.text(max_size=80), st.integers(min_value=-5, max_value=70_000))
def test_no_name_crashes_the_list_or_is_on_an_empty_one(host: str, port: int) -> None:
    assert Hosts(("*.example",)).allows(host, port) <= host.lower().rstrip(".").endswith(".example")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True), ("2606:2800:21f:cb07::1", True), ("127.0.0.1", False), ("10.1.2.3", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("::", False), ("::1", False),
        ("::ffff:127.0.0.1", False), ("::ffff:8.8.8.8", True), ("2002:7f00:1::", False), ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True), ("fec0::1", False), ("::127.0.0.1", False), ("::8.8.8.8", False),
        ("64:ff9b:1::7f00:1", False), ("::ffff:0:127.0.0.1", False), ("3fff::1", False), ("5f00::1", False),
        ("2606:4700::1111", True), ("2002:808:808::", True), ("2001:db8::1", False), ("ff02::1", False),
        ("fe80::1%eth0", False), ("224.0.0.1", False), ("2001::1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public
