"""One connection for all conversations of a Session: started, shared, lost, found again, ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import ConfigError, MissingExtra, NotFound
from tertulia.testing import FakeClock, FakeMcpServer, FakeTool, ScriptedModel, call
from tests.mcp.kit import BOUND, mark, ready, results, shown, talk, until, warnings, with_argument

Fake = Callable[..., FakeMcpServer]
KILLED = """
import asyncio, json, sys
from tertulia import Session
from tertulia.testing import ScriptedModel, call

async def main():
    model = ScriptedModel([[call("spawner")], "spawned"])
    servers = {"fake": json.loads(sys.argv[1])}
    async with Session.open(model=model, mcp_servers=servers, approvals="allow") as session:
        print(await session.prompt("go"), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.req("S2-07a")
async def test_all_conversations_share_one_process_which_the_last_one_ends(fake: Fake) -> None:
    server = fake(FakeTool(name="echo", text="heard"))
    async with talk({"fake": server}, default="ok") as (session, model, _):
        await ready(session)
        others = [await session.open_conversation() for _ in range(3)]
        child = await session.fork()
        for conversation in (session.root, *others, child):
            model._script[:] = [[call("echo", of=conversation.id)], "ok"]
            await conversation.prompt("go")
            assert await results(conversation) == [("echo", "ok", "heard")]
        assert session.mcp.servers()[0].conversations == 5
        assert len(server.of("start")) == 1
        for conversation in (session.root, *others):
            await conversation.close()
        assert session.mcp.servers()[0].state == "ready"
        model._script[:] = [[call("echo")], "ok"]
        await child.prompt("still")
        await child.close()
        assert session.mcp.servers() == ()
        await until(lambda: not with_argument(server.command[-1]))
    assert len(server.of("call")) == 6


@pytest.mark.req("S2-07a", "S2-14b")
async def test_a_server_that_dies_during_a_call_is_back_after_a_pause(fake: Fake) -> None:
    server, clock = fake("echo", FakeTool(name="suicide", die=True)), FakeClock()
    script = [[call("suicide")], "oh", [call("echo")], "fine"]
    async with talk({"fake": server}, *script, clock=clock) as (session, model, seen):
        await ready(session)
        session.unregister("nothing")
        await session.prompt("go")
        [(_, status, text)] = await results(session)
        assert status == "error"
        assert "ended during the call" in text
        assert shown(model) == ["echo", "suicide"]  # what it can do stays known while it is away
        await seen.wait_for(lambda event: event.type == "warning" and "is down" in event.data["message"])
        await until(lambda: session.mcp.servers()[0].state == "waiting")
        await clock.asleep(1)
        await clock.advance(0.5)
        await ready(session)
        await session.prompt("again")
        assert (await results(session))[-1] == ("echo", "ok", "ok")
        assert session.mcp.servers()[0].starts == 2


@pytest.mark.req("S2-07a")
async def test_the_pauses_double(fake: Fake) -> None:
    clock = FakeClock()
    broken = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no licence')"]}
    async with talk({"broken": broken}, default="ok", clock=clock) as (session, _, seen):
        for delay in (0.5, 1.0, 2.0):
            await until(lambda: session.mcp.servers()[0].state == "waiting")
            await clock.asleep(1)
            assert clock.slept[-1] == delay
            assert "no licence" in session.mcp.servers()[0].error
            await clock.advance(delay)
        assert (await session.prompt("go")).text == "ok"
        assert "no licence" in warnings(seen, "mcp")[0]


@pytest.mark.req("S2-07a")
async def test_an_idle_server_is_given_back_and_started_by_the_next_call(fake: Fake) -> None:
    server, clock = fake("echo"), FakeClock()
    async with talk({"fake": server}, [call("echo")], "ok", clock=clock) as (session, model, _):
        await ready(session)
        await clock.asleep(1)
        await clock.advance(601)
        await until(lambda: session.mcp.servers()[0].state == "idle")
        await until(lambda: not with_argument(server.command[-1]))
        await session.prompt("go")
        assert shown(model, 0) == ["echo"]
        assert await results(session) == [("echo", "ok", "ok")]
        assert len(server.of("start")) == 2


async def test_a_slow_server_holds_no_prompt_up_for_long(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tertulia.tools.mcp.pool.START_WAIT", 0.05)
    server = fake("echo", slow="go")
    async with talk({"fake": server}, default="ok") as (session, model, seen):
        await session.prompt("one")
        assert shown(model) == []
        assert any("still starting" in text for text in warnings(seen, "mcp_slow"))
        (server.folder / "go").touch()
        await ready(session)
        await session.prompt("two")
        assert shown(model) == ["echo"]
        assert len(warnings(seen, "mcp_slow")) == 1


async def test_closing_while_servers_start(fake: Fake) -> None:
    server = fake("echo", slow="never")
    async with talk({"fake": server}, default="ok") as (session, _, _):
        await until(lambda: with_argument(server.command[-1]))
        assert session.mcp.servers()[0].state == "starting"
    assert not with_argument(server.command[-1])


@pytest.mark.req("S2-07a")
async def test_nothing_of_a_server_outlives_the_session(fake: Fake) -> None:
    sleeping = mark()
    server = fake(FakeTool(name="spawner", spawn=sleeping))
    async with talk({"fake": server}, [call("spawner")], "ok") as (session, _, _):
        await ready(session)
        await session.prompt("go")
        await until(lambda: with_argument(sleeping))
    assert not with_argument(sleeping)
    assert not with_argument(server.command[-1])


@pytest.mark.req("S2-07a")
def test_nothing_of_a_server_outlives_us_even_when_we_are_killed(fake: Fake) -> None:
    sleeping = mark()
    server = fake(FakeTool(name="spawner", spawn=sleeping))
    config = json.dumps(server.config)
    with subprocess.Popen([sys.executable, "-c", KILLED, config], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"spawned\n"
        asyncio.run(until(lambda: with_argument(sleeping)))
        process.send_signal(signal.SIGKILL)
        process.wait(BOUND)
    asyncio.run(until(lambda: not with_argument(sleeping) and not with_argument(server.command[-1])))


@pytest.mark.req("S2-07a")
@pytest.mark.parametrize(
    ("without", "how"),
    [
        ("", "lifeline"), ("", "supervisor killed"), ("s.isolate = lambda: False;", "lifeline"),
        ("s.isolate = lambda: False; del s.os.pidfd_open;", "lifeline"),
    ],
)  # fmt: skip
async def test_the_supervisor_ends_grandchildren(without: str, how: str) -> None:
    """Also those in sessions of their own; without a PID namespace; where nobody tells of a process's end."""
    from tertulia.tools.mcp import supervisor

    sleeping, other = mark(), mark()
    script = f"(setsid sleep {sleeping} & setsid setsid sleep {other} &) ; echo up; exec sleep {sleeping}"
    start = f"import importlib.util as u, sys; p = u.spec_from_file_location('s', {supervisor.__file__!r});"
    start += f"s = u.module_from_spec(p); p.loader.exec_module(s); {without} s.main(sys.argv[1:])"
    held, lifeline = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", start, str(held), str(os.getpid()), "/bin/sh", "-c", script,
        stdout=asyncio.subprocess.PIPE, pass_fds=(held,),
    )  # fmt: skip
    os.close(held)
    assert process.stdout is not None
    async with asyncio.timeout(BOUND):
        assert await process.stdout.readline() == b"up\n"
        await until(lambda: len(with_argument(sleeping)) == 2 and with_argument(other))
        if how == "lifeline":
            os.close(lifeline)
        else:
            process.kill()
        await process.wait()
        await until(lambda: not with_argument(sleeping) and not with_argument(other))
        await process.stdout.read()
    if how != "lifeline":
        os.close(lifeline)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"command": "no-such-program-here"}, "there is no program"),
        ({"command": sys.executable, "args": ["-c", "pass"], "cwd": "/no/such/folder"}, "cannot be started"),
        ({"command": "/no/such/program"}, "No such file"),
        ({"url": "http://127.0.0.1:9/mcp"}, "down"),
        ({"url": "http://127.0.0.1:9/sse", "type": "sse"}, "down"),
    ],
)
async def test_a_server_that_cannot_be_started_says_why(config: dict[str, Any], said: str) -> None:
    async with talk({"bad": config}, default="ok", clock=FakeClock()) as (session, _, seen):
        await until(lambda: session.mcp.servers()[0].state == "waiting")
        assert (await session.prompt("go")).text == "ok"
        assert said in warnings(seen, "mcp")[0]


@pytest.mark.parametrize(
    "given",
    [
        5, {"a b": {"command": "x"}}, {"a": {}}, {"a": {"command": "x", "url": "http://x"}}, {"a": {"url": "ftp://x"}},
        {"a": {"command": "x", "type": "http"}}, {"a": {"command": "x", "timeout": 0}}, {"a": {"command": "x\0"}},
        {"a": {"command": "x", "unknown": 1}}, {"a": {"url": "http://x", "type": "stdio"}},
    ],
)  # fmt: skip
async def test_what_is_no_configuration_is_refused(given: Any) -> None:
    from tertulia import Session

    with pytest.raises(ConfigError):
        await Session.open(model="demo", mcp_servers=given)
    async with Session.open(
        model=ScriptedModel(), mcp_servers={"a": {"command": "x", "disabled": True}}
    ) as session:
        assert session.mcp.servers() == ()
        with pytest.raises(NotFound):
            session.mcp.logs("a")


async def test_without_the_sdk_the_extra_is_named(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    from tertulia import Session

    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match="extra mcp"):
        await Session.open(model="demo", mcp_servers={"fake": fake().config})
    async with Session.open(model="demo") as session:
        with pytest.raises(MissingExtra):
            await session.open_conversation(mcp_servers={"fake": fake().config})
        assert len(session.conversations) == 1


async def test_resources_prompts_roots_and_logs(fake: Fake, tmp_path: Path) -> None:
    server = fake(
        FakeTool(name="roots", roots=True), FakeTool(name="noise", stderr="a line\n" * 3), name="one"
    )
    script = [[call("roots")], [call("noise")], "ok"]
    folder = tmp_path / "logs"
    async with talk({"one": server}, *script, cwd=tmp_path, mcp_log_folder=folder) as (session, _, _):
        await ready(session)
        await session.prompt("go")
        [(_, _, found), _] = await results(session)
        assert tmp_path.as_uri() in found
        [resource] = await session.mcp.list_resources("one")
        assert [part.text for part in await session.mcp.read_resource("one", resource.uri)] == [
            "the resource"
        ]
        [prompt] = await session.mcp.list_prompts("one")
        [(role, part)] = await session.mcp.get_prompt("one", prompt.name, {"name": "Ana"})
        assert (role, part.text) == ("user", "hello Ana")
        await until(lambda: len(session.mcp.logs("one")) >= 3)
        assert session.mcp.logs("one")[:3] == ("a line",) * 3
    log = folder / "one.log"
    assert log.read_text().startswith("a line\n")
    assert log.stat().st_mode & 0o777 == 0o600
