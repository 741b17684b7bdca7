"""Calls that ask: who answers, for how long the answer holds, and what stands in the log."""

import asyncio
from typing import Any

import pytest

from tertulia import tool
from tertulia.records.errors import (
    ApprovalAlreadyAnswered,
    ApprovalNotFound,
    InvalidInput,
    PromptCancelled,
)
from tertulia.testing import EventRecorder, FakeClock, call
from tests.scenarios.kit import add, talk

ran: list[str] = []


@tool(ask=True)
async def write(path: str) -> str:
    """Writes something."""
    ran.append(path)
    return f"wrote {path}"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


async def outcomes(conversation: Any) -> list[tuple[str, str]]:
    return [(e.status, e.text) for e in await conversation.transcript() if e.type == "tool_result"]


async def pending(session: Any, seen: EventRecorder, count: int = 1) -> Any:
    await seen.wait_for("approval_request", count)
    return session.approvals.pending()[0]


async def test_a_call_waits_for_its_answer_and_the_log_says_both(store: Any) -> None:
    script = [[call("write", path="x", call_id="c1"), call("add", a=1, b=1)], "end"]
    async with talk(store, *script, tools=[write, add]) as (session, _), EventRecorder(session) as seen:
        running = asyncio.ensure_future(session.prompt("go"))
        approval = await pending(session, seen)
        assert (approval.tool, approval.args, approval.call_id) == ("write", {"path": "x"}, "c1")
        assert approval.conversation_id == session.root.id
        assert {option.decision for option in approval.options} == {"allow", "deny"}
        assert ran == []
        await seen.wait_for("tool_result")  # the other call does not wait
        await session.approvals.answer(approval.id, decision="allow", scope="once")
        with pytest.raises(ApprovalAlreadyAnswered):
            await session.approvals.answer(approval.id, decision="deny")
        assert (await running).text == "end"
        assert (ran, session.approvals.pending(), session.approvals.grants()) == (["x"], [], [])
        records: list[Any] = [r for r in await session.records() if r.type == "approval"]
        assert [(r.phase, r.decision, r.call_id) for r in records] == [
            ("asked", None, "c1"),
            ("decided", "allow", "c1"),
        ]
        resolved = await seen.wait_for("approval_resolved")
        assert resolved.data["approval_id"] == approval.id


async def test_deny_is_no_cancel(store: Any) -> None:
    script = [[call("write", path="x")], "without it then"]
    async with talk(store, *script, tools=[write]) as (session, _), EventRecorder(session) as seen:
        running = asyncio.ensure_future(session.prompt("go"))
        approval = await pending(session, seen)
        await session.approvals.answer(approval.id, decision="deny", scope="once", feedback="not that file")
        assert (await running).text == "without it then"
        assert await outcomes(session) == [("denied", "not that file")]
        assert ran == []


@pytest.mark.parametrize(("mode", "status"), [("allow", "ok"), ("deny", "denied")])
async def test_the_modes_ask_nobody(store: Any, mode: Any, status: str) -> None:
    async with talk(store, [call("write", path="x")], "end", tools=[write], approvals=mode) as (session, _):
        await session.prompt("go")
        assert [found for found, _ in await outcomes(session)] == [status]
        [decided] = [r for r in await session.records() if r.type == "approval"]
        assert (decided.phase, decided.decision, decided.by) == ("decided", mode, "mode")


@pytest.mark.parametrize(
    ("answer", "status"),
    [(True, "ok"), (False, "denied"), ("allow_once", "ok"), ("deny", "denied"), ("nonsense", "denied"),
     (None, "denied")],
)  # fmt: skip
async def test_a_function_may_answer(answer: Any, status: str) -> None:
    asked: list[Any] = []

    async def decide(approval: Any) -> Any:
        asked.append(approval.tool)
        return answer

    async with talk(None, [call("write", path="x")], "end", tools=[write], approvals=decide) as (session, _):
        assert (await session.prompt("go")).text == "end"
        assert [found for found, _ in await outcomes(session)] == [status]
        assert asked == ["write"]


async def test_a_function_that_fails_allows_nothing() -> None:
    async def decide(approval: Any) -> Any:
        raise RuntimeError("dialog crashed")

    async with talk(None, [call("write", path="x")], "end", tools=[write], approvals=decide) as (session, _):
        await session.prompt("go")
        ((status, text),) = await outcomes(session)
        assert status == "denied"
        assert "dialog crashed" in text


@pytest.mark.parametrize("handler", [False, True])
async def test_a_deadline_means_no(store: Any, handler: bool) -> None:
    clock = FakeClock()

    async def decide(approval: Any) -> Any:
        await asyncio.Event().wait()

    options: dict[str, Any] = {"approvals": decide} if handler else {}
    script = [[call("write", path="x")], "end"]
    async with talk(store, *script, tools=[write], clock=clock, approval_timeout=60.0, **options) as (
        session,
        _,
    ):
        async with EventRecorder(session) as seen:
            running = asyncio.ensure_future(session.prompt("go"))
            approval = await pending(session, seen)
            assert approval.deadline is not None
            await clock.asleep()
            await clock.advance(61)
            await running
        assert [status for status, _ in await outcomes(session)] == ["denied"]
        decided: Any = [r for r in await session.records() if r.type == "approval"][-1]
        assert (decided.decision, decided.by) == ("deny", "deadline")


@pytest.mark.parametrize(
    ("scope", "same_turn", "next_turn", "elsewhere"),
    [("once", True, True, True), ("turn", False, True, True), ("conversation", False, False, True),
     ("session", False, False, False), (None, False, False, False)],
)  # fmt: skip
async def test_scopes(scope: Any, same_turn: bool, next_turn: bool, elsewhere: bool) -> None:
    """Whether the second call is asked about: in the turn, in the next one, in another conversation."""
    script = [[call("write", path="1")], [call("write", path="2")], "end", [call("write", path="3")], "end",
              [call("write", path="4")], "end"]  # fmt: skip
    async with talk(None, *script, tools=[write]) as (session, _), EventRecorder(session) as seen:
        other = await session.open_conversation()
        asked: list[str] = []

        async def answer() -> None:
            count = 0
            while True:
                count += 1
                await seen.wait_for("approval_request", count)
                (approval,) = session.approvals.pending()
                asked.append(approval.args["path"])
                chosen = scope if approval.args["path"] == "1" else "once"
                await session.approvals.answer(approval.id, decision="allow", scope=chosen)

        answering = asyncio.ensure_future(answer())
        await session.prompt("one")
        await session.prompt("two")
        await other.prompt("three")
        answering.cancel()
        expected = [
            "1",
            *(["2"] if same_turn else []),
            *(["3"] if next_turn else []),
            *(["4"] if elsewhere else []),
        ]
        assert asked == expected
        assert ran == ["1", "2", "3", "4"]


async def test_grants_are_listed_revoked_and_expire() -> None:
    clock = FakeClock()
    script = [item for n in range(4) for item in ([call("write", path=str(n))], "end")]
    async with (
        talk(None, *script, tools=[write], clock=clock) as (session, _),
        EventRecorder(session) as seen,
    ):
        running = asyncio.ensure_future(session.prompt("0"))
        await session.approvals.answer((await pending(session, seen)).id, decision="allow", ttl=60)
        await running
        (grant,) = session.approvals.grants()
        assert (grant.decision, grant.scope, grant.key) == ("allow", "session", ("write",))
        await session.prompt("1")
        await clock.advance(61)
        running = asyncio.ensure_future(session.prompt("2"))
        await session.approvals.answer((await pending(session, seen, 2)).id, decision="allow")
        await running
        (grant,) = session.approvals.grants()
        session.approvals.revoke(grant.id)
        assert session.approvals.grants() == []
        with pytest.raises(ApprovalNotFound):
            session.approvals.revoke(grant.id)
        running = asyncio.ensure_future(session.prompt("3"))
        await session.approvals.answer((await pending(session, seen, 3)).id, "deny")
        await running
        assert ran == ["0", "1", "2"]


async def test_answers_that_mean_nothing_decide_nothing(store: Any) -> None:
    script = [[call("write", path="x")], "end"]
    async with talk(store, *script, tools=[write]) as (session, _), EventRecorder(session) as seen:
        running = asyncio.ensure_future(session.prompt("go"))
        id = (await pending(session, seen)).id
        bad: list[dict[str, Any]] = [
            {}, {"decision": "maybe"}, {"option": "nope"}, {"decision": "allow", "scope": "galaxy"},
            {"decision": "allow", "ttl": "soon"}, {"decision": "allow", "ttl": -1},
        ]  # fmt: skip
        for answer in bad:
            with pytest.raises(InvalidInput):
                await session.approvals.answer(id, **answer)
        with pytest.raises(ApprovalNotFound):
            await session.approvals.answer("appr_none", decision="allow")
        assert len(session.approvals.pending()) == 1
        await session.approvals.answer(id, "allow_once")
        await running


async def test_a_cancel_resolves_what_waits(store: Any) -> None:
    script = [[call("write", path="1"), call("write", path="2")], "next"]
    async with talk(store, *script, tools=[write]) as (session, _), EventRecorder(session) as seen:
        running = asyncio.ensure_future(session.prompt("go"))
        await seen.wait_for("approval_request", 2)
        session.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await running
        assert session.approvals.pending() == []
        assert [status for status, _ in await outcomes(session)] == ["cancelled", "cancelled"]
        await seen.wait_for("approval_resolved", 2)
        assert [e.data["decision"] for e in seen.of("approval_resolved")] == ["cancelled", "cancelled"]
        assert (await session.prompt("on")).text == "next"
        assert ran == []
