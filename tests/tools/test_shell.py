"""shell and job."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tertulia import Session
from tertulia.records.errors import InvalidInput, NotFound, SandboxError
from tertulia.sandbox import probe as probing
from tertulia.testing import EventRecorder, ScriptedModel, call


async def test_output_of_both_streams_and_the_status_come_back(use: Any, root: Path) -> None:
    assert await use("shell", command="echo out; echo err >&2; touch made") == "out\nerr\n"
    assert (root / "made").exists()
    assert await use("shell", command="true") == "[no output]"
    assert await use("shell", command="echo no; exit 3") == "no\n[exit status 3]"
    assert await use("shell", command="kill -SEGV $$") in ("[ended by signal 11]", "[exit status 139]")
    with pytest.raises(InvalidInput):
        await use("shell", command=" ")
    with pytest.raises(InvalidInput):
        await use("shell", command="true", timeout=0)


async def test_a_time_limit_ends_it_and_keeps_what_it_said(use: Any) -> None:
    with pytest.raises(SandboxError, match="(?s)so far\n.stopped: it ran longer than 0.5 s") as raised:
        await use("shell", command="echo so far; sleep 60", timeout=0.5)
    assert raised.value.message.startswith("so far")


async def test_it_gets_no_input_and_no_terminal(use: Any) -> None:
    assert await use("shell", command="read x; echo got $x; test -t 0 || echo none") == "got\nnone\n"


async def test_bytes_that_are_no_text_are_shown_as_such(use: Any) -> None:
    assert await use("shell", command="printf 'a\\xffb'") == "a�b"


async def test_background_jobs_are_listed_read_and_stopped(use: Any, root: Path) -> None:
    assert await use("job") == "no jobs"
    os.mkfifo(root / "go")
    assert await use("shell", command="echo first; cat go; echo last", background=True) == "started as job 1"
    assert await use("shell", command="sleep 60", background=True) == "started as job 2"
    assert (await use("job")).splitlines() == [
        "1: running: echo first; cat go; echo last",
        "2: running: sleep 60",
    ]
    await asyncio.to_thread((root / "go").write_text, "second\n")
    said = await use("job", id="1", wait=10)
    assert said == "first\nsecond\nlast\n\n[exit status 0]"
    assert await use("job", id="1") == "[exit status 0]"
    assert await use("job", id="2", stop=True) == "[stopped: it was stopped]"
    with pytest.raises(NotFound, match="jobs are 1, 2"):
        await use("job", id="3")


async def test_progress_is_told_while_it_runs(root: Path) -> None:
    os.mkfifo(root / "go")
    model = ScriptedModel([[call("shell", command="echo hello; cat go")], "Done."])
    async with (
        Session.open(model=model, tools="default", approvals="allow", cwd=root) as session,
        EventRecorder(session) as seen,
    ):
        running = await session.submit("Go.")
        event = await seen.wait_for("tool_progress")
        assert event.data["progress"] == {"output": "hello\n"}
        await asyncio.to_thread((root / "go").write_text, "on\n")
        await running.reply()
        assert [e.text for e in await session.transcript() if e.type == "tool_result"] == ["hello\non"]


async def test_a_cancel_kills_the_command_and_a_close_its_jobs(root: Path) -> None:
    mark = f"9{os.getpid()}.25"
    job = call("shell", command=f"sleep {mark}", background=True)
    model = ScriptedModel([[job], [call("shell", command=f"echo on; sleep {mark}")], "Done."])
    async with (
        Session.open(model=model, tools="default", approvals="allow", cwd=root) as session,
        EventRecorder(session) as seen,
    ):
        running = await session.submit("Go.")
        await seen.wait_for("tool_progress")
        assert len(_running(mark)) >= 2
        session.cancel_active_prompt()
        await session.wait_idle()
        assert running.status in ("cancelled", "failed")
        assert session._shared.sandbox.jobs.get("1").exit is None
    assert _running(mark) == []


@pytest.mark.req("S2-14b")
async def test_where_nothing_confines_it_the_model_is_told_and_the_session_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = probing.Probe(program=None, problem="bwrap is not installed", limits="watcher", files="openat2")
    monkeypatch.setattr(probing, "probe", lambda: broken)
    calls = [call("shell", command="touch x"), call("write", path="y", content="1")]
    model = ScriptedModel([calls, "I see.", "Still."])
    async with Session.open(model=model, tools="default", approvals="allow", cwd=root) as session:
        assert str(await session.prompt("Go.")) == "I see."
        results = {e.name: (e.status, e.text) for e in await session.transcript() if e.type == "tool_result"}
        assert results["shell"][0] == "error"
        assert "bwrap is not installed" in results["shell"][1]
        assert "sandbox='off'" in results["shell"][1]
        assert results["write"][0] == "ok"
        assert os.listdir(root) == ["y"]
        assert str(await session.prompt("And now?")) == "Still."


@pytest.mark.parametrize("approvals", ["ask", "deny"])
async def test_what_acts_asks_and_no_answer_widens_the_sandbox(root: Path, approvals: Any) -> None:
    model = ScriptedModel(
        [[call("shell", command="touch x"), call("write", path="../out", content="")], "Done."]
    )

    async def allow(approval: Any) -> bool:
        return True

    mode = allow if approvals == "ask" else approvals
    async with Session.open(model=model, tools="default", approvals=mode, cwd=root) as session:
        await session.prompt("Go.")
        statuses = [e.status for e in await session.transcript() if e.type == "tool_result"]
    assert sorted(statuses) == (["error", "ok"] if approvals == "ask" else ["denied", "denied"])
    assert os.listdir(root.parent) == ["project"]


@pytest.mark.parametrize("kind", ["", "jsonl:"])
async def test_the_log_of_the_session_is_not_for_its_tools(root: Path, kind: str) -> None:
    command = "cat log* log/* | wc -c; for f in log log-wal log/*; do echo x >> $f; done; rm -rf log*; true"
    calls = [
        call("shell", command=command),
        call("read", path="log"),
        call("write", path="log-wal", content=""),
    ]
    model = ScriptedModel([calls, [call("grep", pattern="sesame")], "Done."])
    options: dict[str, Any] = {"tools": "default", "approvals": "allow", "cwd": root}
    async with Session.open(model=model, store=f"{kind}{root}/log", **options) as session:
        await session.prompt("Open sesame.")
        results = {e.name: e for e in await session.transcript() if e.type == "tool_result"}
        assert "0" in results["shell"].text.split()
        assert results["read"].status == "error"
        assert results["grep"].text == "no line matches"
    async with Session.open(id=session.id, model=model, store=f"{kind}{root}/log") as again:
        assert [entry.text for entry in await again.transcript()][0] == "Open sesame."


async def test_switched_off_by_hand_it_runs_unconfined(root: Path) -> None:
    model = ScriptedModel([[call("shell", command="echo x > ../outside")], "Done."])
    async with Session.open(
        model=model, tools="default", approvals="allow", cwd=root, sandbox="off"
    ) as session:
        await session.prompt("Go.")
    assert (root.parent / "outside").read_text() == "x\n"


def _running(mark: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in file.read_text():
                found.append(file.parent.name)
        except OSError:
            continue
    return found
