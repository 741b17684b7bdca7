"""Servers over HTTP and SSE, and servers that others wrote."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.testing import FakeClock, FakeMcpServer, FakeTool, call
from tests.mcp.kit import BOUND, ready, results, shown, talk, until, warnings

Fake = Callable[..., FakeMcpServer]
EVERYTHING = Path(__file__).parent / "node/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
NPM = "its packages are not installed: npm ci --prefix tests/mcp/node"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.asynccontextmanager
async def running(
    command: list[str], port: int, **environment: str
) -> AsyncIterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        await until(lambda: listening(port))
        yield process
    finally:
        process.kill()
        process.wait(BOUND)


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_server_far_away(fake: Fake, kind: str) -> None:
    change = FakeTool(name="change", appear={"name": "fresh"})
    tools = [FakeTool(name="echo", progress=1), FakeTool(name="hang", wait="/no/such/file"), change]
    port, clock = free_port(), FakeClock()
    server = fake(*tools, http=kind, port=port)
    script = [[call("echo", n=1)], "ok", [call("hang")], "ok", [call("change")], "ok"]
    async with running(server.command, port):
        config = {**server.config, "timeout": 5, "headers": {"X-Token": "secret"}}
        async with talk({"far": config}, *script, clock=clock) as (session, model, seen):
            await ready(session)
            await session.prompt("go")
            assert await results(session) == [("echo", "ok", "ok")]
            await seen.wait_for("tool_progress")
            waiting = asyncio.create_task(session.prompt("hang"))
            await until(lambda: len(server.of("call")) == 2)
            await clock.advance(6)
            await waiting
            assert "did not answer" in (await results(session))[-1][2]
            await until(lambda: server.of("cancelled"))
            await session.prompt("change")
            await until(lambda: session.active_tool_names() == ("change", "echo", "fresh", "hang"))
            assert "secret" not in str(session.mcp.servers())


@pytest.mark.req("S2-07a")
@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_server_far_away_that_was_restarted(fake: Fake, kind: str) -> None:
    port, clock = free_port(), FakeClock()
    server = fake("echo", FakeTool(name="die", die=True), http=kind, port=port)
    async with talk({"far": server}, default="ok", clock=clock) as (session, model, seen):
        async with running(server.command, port):
            await until(lambda: session.mcp.servers()[0].state == "waiting")
            await clock.asleep(1)
            await clock.advance(1)
            await ready(session)
            model._script[:] = [[call("die")], "ok"]
            await session.prompt("die")
            assert (await results(session))[-1][1] == "error"
        async with running(server.command, port):
            model._script[:] = [[call("echo")], "ok"]
            for _ in range(20):
                await clock.advance(60)
                await session.prompt("again")
                if (await results(session))[-1][1] == "ok":
                    break
                model._script[:] = [[call("echo")], "ok"]
            assert (await results(session))[-1] == ("echo", "ok", "ok")


HUGE = b'{"jsonrpc": "2.0", "id": 0, "result": {"text": "' + b"x" * 3_000_000 + b'"}}'


async def test_a_huge_answer_over_http_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tertulia.tools.mcp.http.MAX_MESSAGE", 1_000_000)
    sent: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                writer.write(HUGE)
                await writer.drain()
                sent.append(len(HUGE))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = {"huge": {"url": f"http://127.0.0.1:{port}/mcp"}}
        async with talk(config, default="ok", clock=FakeClock()) as (session, _, _):
            found = await session.mcp.started("huge", BOUND)
            assert found.state == "waiting"
            assert "larger than" in found.error
            assert (await session.prompt("go")).text == "ok"
        assert sum(sent) < 20_000_000


async def test_the_time_server(tmp_path: Path) -> None:
    servers = {
        "time": {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}
    }
    script = [
        [call("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")],
        [call("get_current_time", timezone="No/Where")],
        "ok",
    ]
    async with talk(servers, *script) as (session, model, seen):
        await ready(session)
        await session.prompt("go")
        assert shown(model) == ["convert_time", "get_current_time"]
        [(_, status, text), (_, failed, why)] = await results(session)
        assert (status, "T21:00:00+09:00" in text) == ("ok", True)
        assert (failed, "No/Where" in why) == ("error", True)
        assert warnings(seen) == []


async def test_the_git_server(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=BOUND)  # noqa: ASYNC221 - in no time
    (tmp_path / "new.txt").write_text("x")
    servers = {"git": {"command": sys.executable, "args": ["-m", "mcp_server_git", "-r", str(tmp_path)]}}
    async with talk(servers, [call("git_status", repo_path=str(tmp_path))], "ok", cwd=tmp_path) as (
        session,
        _,
        _,
    ):
        await ready(session)
        await session.prompt("go")
        [(_, status, text)] = await results(session)
        assert (status, "new.txt" in text) == ("ok", True)


@pytest.fixture(params=["stdio", "streamableHttp", "sse"])
def everything(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], list[str], int]:
    node = shutil.which("node")
    if node is None or not EVERYTHING.exists():
        pytest.skip(NPM)
    kind, port = request.param, free_port()
    command = [node, str(EVERYTHING), kind]
    path = "sse" if kind == "sse" else "mcp"
    url = {"url": f"http://127.0.0.1:{port}/{path}", "type": "sse" if kind == "sse" else "http"}
    return kind, {"command": node, "args": command[1:]} if kind == "stdio" else url, command, port


async def test_the_everything_server(everything: tuple[str, dict[str, Any], list[str], int]) -> None:
    """Over the TypeScript SDK, which speaks the protocol of 2025; by each of the transports."""
    kind, config, command, port = everything
    script = [
        [call("echo", message="hola"), call("get-sum", a=2, b=40), call("get-tiny-image")],
        [call("trigger-long-running-operation", duration=0.2, steps=2)],
        "ok",
    ]
    async with contextlib.AsyncExitStack() as stack:
        if kind != "stdio":
            await stack.enter_async_context(running(command, port, PORT=str(port)))
        session, model, seen = await stack.enter_async_context(talk({"all": config}, *script))
        await ready(session)
        await session.prompt("go")
        found = {name: (status, text) for name, status, text in await results(session)}
        assert found["echo"] == ("ok", "Echo: hola")
        assert "42" in found["get-sum"][1]
        assert found["trigger-long-running-operation"][0] == "ok"
        assert seen.of("tool_progress")
        images = [
            p
            for e in await session.transcript()
            for p in getattr(e, "parts", ())
            if p.__class__.__name__ == "Image"
        ]
        assert images[0].media == "image/png"
        assert len(await session.mcp.list_resources("all")) > 5
        assert "simple-prompt" in {prompt.name for prompt in await session.mcp.list_prompts("all")}
