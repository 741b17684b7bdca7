"""A turn that waits for a person outlives the process, and goes on at its calls."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tertulia import Session
from tertulia.records.errors import (
    ApprovalAlreadyAnswered,
    ApprovalNotFound,
    ConfigError,
    ConversationBusy,
    PromptAlreadyRunning,
    PromptCancelled,
    SessionHeld,
)
from tertulia.records.ids import CallId, TurnId
from tertulia.records.record import Approval, ToolCall, TurnStart
from tertulia.store.memory import MemoryStore
from tertulia.testing import EventRecorder, FakeClock, ScriptedModel, hold
from tertulia.transcript.repair import parked, repair
from tertulia.transcript.retention import headers
from tests.approvals.kit import asked, asking, decisions, results, session, start, writes

pytestmark = [pytest.mark.req("S2-08a"), pytest.mark.timeout(30)]


@pytest.fixture(params=["sqlite", "jsonl"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "s.db") if request.param == "sqlite" else f"jsonl:{tmp_path / 'j'}"


async def leave_one(place: str, *paths: str, how: str = "drain", **options: Any) -> str:
    """A session that is closed while calls wait."""
    model = ScriptedModel([["I write", *writes(*paths)]])
    made = await Session.open(model=model, tools=[asking([])], store=place, **options)
    async with EventRecorder(made) as seen:
        prompt = start(made)
        await seen.wait_for("approval_request", len(paths))
        await seen.wait_for(lambda event: event.type == "state" and event.data["state"] == "waiting_approval")
        await made.aclose("drain" if how == "drain" else "cancel")
        with pytest.raises(PromptCancelled):
            await prompt
    return made.id


async def test_it_outlives_a_close_and_goes_on(place: str) -> None:
    id = await leave_one(place, "a")
    ran: list[str] = []
    async with session(["end"], [asking(ran)], id=id, store=place) as (made, seen):
        (approval,) = made.approvals.pending()
        assert (approval.tool, approval.args, approval.call_id) == ("write", {"path": "a"}, "call-a")
        assert approval.conversation_id == made.root.id
        assert [option.id for option in approval.options] == ["allow_once", "allow_session", "deny"]
        assert [task.status for task in made.tasks] == ["waiting_approval"]
        for refused in (made.prompt("x"), made.submit("x")):
            with pytest.raises(PromptAlreadyRunning):
                await refused
        with pytest.raises(ConversationBusy):
            await made.resume([])
        later = await made.submit("later", when_busy="follow_up")
        await made.approvals.answer(approval.id, "allow_session")
        assert (await later.reply()).text == "done"
        assert ran == ["a"]
        assert made.approvals.pending() == []
        with pytest.raises(ApprovalAlreadyAnswered):
            await made.approvals.answer(approval.id, "deny")
        entries = [(e.type, e.text) for e in await made.transcript()]
        assert entries == [
            ("message", "go"), ("message", "I write"), ("tool_call", ""), ("tool_result", "wrote a"),
            ("message", "end"), ("message", "later"), ("message", "done"),
        ]  # fmt: skip
        records = await made.records()
        ends = [record for record in records if record.type == "turn_end"]
        assert [(end.status, end.usage.requests) for end in ends] == [("completed", 2), ("completed", 1)]
        assert len({record.msg for record in records if record.msg is not None}) == 3
        assert await decisions(made) == [("allow", "session", "user")]
    async with session([writes("b"), "end"], [asking(ran)], id=id, store=place) as (made, seen):
        await made.prompt("once more")  # the grant is there
        assert ran == ["a", "b"]
        assert [event.type for event in seen.events].count("approval_request") == 0


@pytest.mark.parametrize("order", [("deny", "allow_once"), ("deny", "allow_session"), ("allow_once", "deny")])
async def test_of_two_who_take_it_up_at_once_the_first_wins(place: str, order: tuple[str, str]) -> None:
    for _ in range(3):
        id, ran = await leave_one(place, "a"), []  # type: ignore[var-annotated]
        async with session(["end"], [asking(ran)], id=id, store=place) as (made, _):
            (approval,) = made.approvals.pending()
            said = await asyncio.gather(
                *(made.approvals.answer(approval.id, option) for option in order), return_exceptions=True
            )
            assert said[0] is None
            assert isinstance(said[1], ApprovalAlreadyAnswered)
            await made.wait_idle()
            assert ran == (["a"] if order[0] == "allow_once" else [])


async def test_who_asks_again_by_id_gets_its_reply(place: str) -> None:
    model = ScriptedModel([writes("a")])
    made = await Session.open(model=model, tools=[asking([])], store=place)
    async with EventRecorder(made) as seen:
        prompt = asyncio.ensure_future(made.prompt("go", id="mine"))
        await asked(made, seen)
        await made.aclose()
        with pytest.raises(PromptCancelled):
            await prompt
    async with session(["end"], [asking([])], id=made.id, store=place) as (again, _):
        handle = await again.submit("go", id="mine")
        await again.approvals.answer(again.approvals.pending()[0].id, "allow_once")
        assert (await handle.reply()).text == "end"
        assert (await again.prompt("go", id="mine")).text == "end"


async def test_what_was_seen_of_it_is_replayed(place: str) -> None:
    id = await leave_one(place, "a")
    async with (
        session([], [asking([])], id=id, store=place) as (made, _),
        EventRecorder(made.root, 0) as again,
    ):
        event = await again.wait_for("approval_request")
        assert event.data["approval_id"] == made.approvals.pending()[0].id


async def test_two_that_wait_are_answered_one_by_one(place: str) -> None:
    id = await leave_one(place, "a", "b")
    ran: list[str] = []
    async with session(["end"], [asking(ran)], id=id, store=place) as (made, seen):
        one, two = made.approvals.pending()
        await made.approvals.answer(one.id, decision="deny", scope="once", feedback="not a")
        await seen.wait_for("tool_result")
        assert [each.id for each in made.approvals.pending()] == [two.id]
    async with session(["end"], [asking(ran)], id=id, store=place) as (made, seen):  # again in between
        assert [each.id for each in made.approvals.pending()] == [two.id]
        await made.approvals.answer(two.id, "allow_once")
        await seen.wait_for("done")
        assert await results(made) == [("denied", "not a"), ("ok", "wrote b")]
        assert ran == ["b"]


@pytest.mark.parametrize("which", [0, 1])
async def test_a_remembered_answer_to_one_settles_the_other(place: str, which: int) -> None:
    id = await leave_one(place, "a", "b")
    ran: list[str] = []
    async with session(["end"], [asking(ran)], id=id, store=place) as (made, _):
        await made.approvals.answer(made.approvals.pending()[which].id, "allow_session")
        async with asyncio.timeout(10):
            await made.wait_idle()
        assert sorted(ran) == ["a", "b"]
        assert sorted(await decisions(made)) == [("allow", "once", "grant"), ("allow", "session", "user")]


async def test_a_remembered_answer_takes_up_no_turn_of_another_conversation(place: str) -> None:
    ran: list[str] = []
    async with session([writes("a"), writes("b")], [asking(ran)], store=place) as (made, seen):
        other = await made.open_conversation()
        prompts = [start(made.root), start(other)]
        await asked(made, seen, 2)
    await asyncio.wait(prompts)
    assert all(isinstance(prompt.exception(), PromptCancelled) for prompt in prompts)
    async with session(["end"], [asking(ran)], id=made.id, store=place) as (made, seen):
        of = {each.conversation_id: each for each in made.approvals.pending()}
        await made.approvals.answer(of[made.root.id].id, "allow_session")
        await seen.wait_for("done")
        assert [each.conversation_id for each in made.approvals.pending()] == [other.id]
        await made.approvals.answer(of[other.id].id, "allow_once")
        await seen.wait_for("done", 2)
        assert sorted(ran) == ["a", "b"]


@pytest.mark.parametrize("how", ["method", "coroutine", "task"])
async def test_a_cancel_resolves_it(place: str, how: str) -> None:
    id = await leave_one(place, "a", "b")
    async with session(["end"], [asking([])], id=id, store=place) as (made, seen):
        if how == "coroutine":
            assert (await made.cancel()).active
        elif how == "task":
            made.cancel_task(made.tasks[0].task_id)
        else:
            assert made.cancel_active_prompt().active
        await seen.wait_for("done")
        assert made.approvals.pending() == []
        assert await decisions(made) == [("cancelled", "once", "cancel")] * 2
        assert [status for status, _ in await results(made)] == ["cancelled", "cancelled"]
        assert str(await made.prompt("on")) == "end"
    async with session([], [asking([])], id=id, store=place) as (made, _):
        assert made.approvals.pending() == []


async def test_closing_leaves_it_as_it_was_found(place: str) -> None:
    id = await leave_one(place, "a")
    for mode in ("drain", "cancel"):
        made = await Session.open(id=id, store=place, tools=[asking([])])
        before = list(await made.records())
        await made.aclose(mode)  # type: ignore[arg-type]
        again = await Session.open(id=id, store=place)
        assert (len(again.approvals.pending()), list(await again.records())) == (1, before)
        await again.aclose()


async def test_a_close_that_cancels_ends_what_runs_here(place: str) -> None:
    id = await leave_one(place, "a", how="cancel")
    async with session([], [asking([])], id=id, store=place) as (made, _):
        assert made.approvals.pending() == []
        assert await decisions(made) == [("cancelled", "once", "cancel")]


async def test_a_drain_waits_until_a_turn_is_parked_or_over(place: str) -> None:
    ran: list[str] = []
    waiting = hold([*writes("a")])
    made = await Session.open(model=ScriptedModel([waiting]), tools=[asking(ran)], store=place)
    prompt = start(made)
    async with asyncio.timeout(10):
        await waiting.reached.wait()
        closing = asyncio.ensure_future(made.aclose("drain"))
        await asyncio.sleep(0)
        waiting.release()
        await closing
    with pytest.raises(PromptCancelled, match="waits for an approval"):
        await prompt
    async with session(["end"], [asking(ran)], id=made.id, store=place) as (again, seen):
        await again.approvals.answer(again.approvals.pending()[0].id, "allow_once")
        await seen.wait_for("done")
        assert ran == ["a"]


async def test_a_fork_of_it_has_no_open_call(place: str) -> None:
    id = await leave_one(place, "a")
    async with session(["forked"], [asking([])], id=id, store=place) as (made, _):
        child = await made.fork()
        assert [entry.type for entry in await child.transcript()] == ["message", "message"]
        assert str(await child.prompt("and here?")) == "forked"
        assert len(made.approvals.pending()) == 1


async def test_without_a_model_it_can_be_looked_at_and_cancelled(place: str) -> None:
    id = await leave_one(place, "a")
    async with Session.open(id=id, store=place, tools=[asking([])]) as made:
        (approval,) = made.approvals.pending()
        with pytest.raises(ConfigError):
            await made.approvals.answer(approval.id, "allow_once")
        assert len(made.approvals.pending()) == 1
        await made.cancel()
        assert made.approvals.pending() == []


async def test_a_tool_that_is_gone_is_an_error_result(place: str) -> None:
    id = await leave_one(place, "a")
    async with session(["end"], [], id=id, store=place) as (made, seen):
        await made.approvals.answer(made.approvals.pending()[0].id, "allow_once")
        await seen.wait_for("done")
        assert (await results(made))[0][0] == "error"
        assert made.approvals.pending() == []


async def test_where_the_queue_runs_it_is_taken_up_at_once(place: str) -> None:
    id = await leave_one(place, "a")

    async def yes(approval: Any) -> bool:
        return True

    ran: list[str] = []
    async with session(["end"], [asking(ran)], id=id, store=place, run_queue=True, approvals=yes) as (
        made,
        _,
    ):
        await made.wait_idle()
        assert ran == ["a"]
        assert await decisions(made) == [("allow", "once", "handler")]


async def test_its_deadline_counts_on(place: str) -> None:
    clock = FakeClock()
    id = await leave_one(place, "a", clock=clock, approval_timeout=60.0)
    async with session(["end"], [asking([])], id=id, store=place, clock=clock) as (made, seen):
        (approval,) = made.approvals.pending()
        assert approval.deadline is not None
        await clock.advance(61)
        with pytest.raises(ApprovalAlreadyAnswered):
            await made.approvals.answer(approval.id, "allow_once")
        await seen.wait_for("done")
        assert await results(made) == [("denied", "nobody answered in time")]
        assert await decisions(made) == [("deny", "once", "deadline")]


async def test_the_mode_of_the_new_session_may_decide_it(place: str) -> None:
    id = await leave_one(place, "a")
    ran: list[str] = []
    async with session(["end"], [asking(ran)], id=id, store=place, approvals="allow", run_queue=True) as (
        made,
        _,
    ):
        await made.wait_idle()
        assert ran == ["a"]
        assert await decisions(made) == [("allow", "once", "mode")]


def test_a_question_whose_body_is_gone_is_asked_no_more() -> None:
    turn, id = TurnId("t"), CallId("c")
    begun = TurnStart(seq=1, ts=1, turn=turn)
    called = ToolCall(seq=2, ts=2, turn=turn, call_id=id, name="write", args={"path": "a"})
    question = Approval(
        seq=3, ts=3, turn=turn, approval="appr", phase="asked", call_id=id, tool="write", summary="x"
    )
    assert parked([begun, called, question]) is not None
    assert repair([begun, called, question]) == ()
    bare = [headers(called), headers(question)]
    assert parked([begun, *bare]) is None
    assert [record.type for record in repair([begun, *bare])] == ["tool_result", "interruption", "turn_end"]


@pytest.mark.parametrize("retention", ["headers_only", "none"])
async def test_where_no_bodies_are_kept_nothing_waits_in_the_store(place: str, retention: str) -> None:
    model = ScriptedModel([writes("a")])
    made = await Session.open(model=model, tools=[asking([])], store=place, retention=retention)
    async with EventRecorder(made) as seen:
        prompt = start(made)
        await asked(made, seen)
        await made.aclose("cancel")
        with pytest.raises(PromptCancelled):
            await prompt
    async with session([], [asking([])], id=made.id, store=place) as (again, _):
        assert again.approvals.pending() == []


async def test_a_memory_store_has_nothing_to_leave_it_in() -> None:
    store = MemoryStore()
    made = await Session.open(model=ScriptedModel([writes("a")]), tools=[asking([])], store=store)
    async with EventRecorder(made) as seen:
        prompt = start(made)
        await asked(made, seen)
        await made.aclose("drain", timeout=0.0)
        with pytest.raises(PromptCancelled):
            await prompt
    again = await Session.open(id=made.id, store=store)
    assert again.approvals.pending() == []
    await again.aclose()
    await store.aclose()


async def test_one_who_does_not_own_it_sees_it_and_cannot_answer(place: str) -> None:
    """Another process has it open; what it holds is not touched from here."""
    holder, id = another_process(place)
    try:
        async with session(["end"], [asking([])], id=id, store=place) as (made, _):
            (approval,) = made.approvals.pending()
            with pytest.raises(SessionHeld):
                await made.approvals.answer(approval.id, "allow_once")
            assert len(made.approvals.pending()) == 1
            with pytest.raises(ApprovalNotFound):
                await made.approvals.answer("appr_none", "deny")
    finally:
        holder.kill()
        holder.communicate(timeout=10)


WAITS = """
import asyncio, sys
from tertulia import Session, tool
from tertulia.testing import EventRecorder, ScriptedModel, call

@tool(ask=True)
async def write(path: str) -> str:
    return path

async def main():
    model = ScriptedModel([["I write", call("write", path="a", call_id="call-a")]])
    session = await Session.open(model=model, tools=[write], store=sys.argv[1])
    async with EventRecorder(session) as seen:
        running = asyncio.ensure_future(session.prompt("go"))
        await seen.wait_for("approval_request")
        print(session.id, flush=True)
        await running

asyncio.run(main())
"""


def another_process(place: str) -> tuple["subprocess.Popen[str]", str]:
    """One that has a session open in which a call waits, and the id of that."""
    made = subprocess.Popen(
        [sys.executable, "-c", WAITS, place], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert made.stdout is not None
    return made, made.stdout.readline().strip()


@pytest.mark.req("S2-14b")
async def test_it_outlives_a_kill(place: str) -> None:
    killed, id = another_process(place)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=10)
    ran: list[str] = []
    async with session(["end"], [asking(ran)], id=id, store=place) as (made, seen):
        await made.approvals.answer(made.approvals.pending()[0].id, decision="allow", scope="once")
        await seen.wait_for("done")
        assert ran == ["a"]
        assert [(entry.type, entry.text) for entry in await made.transcript()][-2:] == [
            ("tool_result", "wrote a"), ("message", "end"),
        ]  # fmt: skip
