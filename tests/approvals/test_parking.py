"""A turn that waits for people gives its slot back, and has it again when one is answered."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tertulia import ToolContext
from tertulia.records.errors import PromptCancelled
from tertulia.session.calls import CallContext
from tertulia.testing import EventRecorder, call, hold
from tests.approvals.kit import asked, asking, results, session, start, writes

pytestmark = [pytest.mark.req("S2-08a"), pytest.mark.timeout(30)]


def states(seen: EventRecorder) -> list[str]:
    return [event.data["state"] for event in seen.of("state")]


async def test_a_parked_turn_frees_its_slot_and_has_it_again_first() -> None:
    ran: list[str] = []
    waiting = hold("in between")
    async with session([writes("a"), waiting, "end", "third"], [asking(ran)]) as (made, seen):
        other = await made.open_conversation()
        third = await made.open_conversation()
        first = start(made.root)
        approval = await asked(made, seen)
        await seen.wait_for(lambda event: event.type == "state" and event.data["state"] == "waiting_approval")
        assert [task.status for task in made.tasks] == ["waiting_approval"]
        second, last = start(other), start(third)
        async with asyncio.timeout(10):
            await waiting.reached.wait()  # it runs in the slot
        await made.approvals.answer(approval.id, "allow_once")
        await made.flush()
        assert ran == []  # the slot is not free yet
        waiting.release()
        await second
        assert ((await first).text, (await last).text) == ("end", "third")  # before what queued up earlier
        own = [event.data["state"] for event in seen.of("state") if event.turn_id == (await first).turn_id]
        assert own == ["running", "waiting_approval", "running", "completed"]


async def test_a_turn_with_a_call_that_works_is_not_parked() -> None:
    ran: list[str] = []
    release = asyncio.Event()

    async def work() -> str:
        await release.wait()
        return "worked"

    async with session([[*writes("a", "b"), call("work")]], [asking(ran), work]) as (made, seen):
        prompt = start(made)
        await asked(made, seen, 2)
        await made.flush()
        assert "waiting_approval" not in states(seen)
        release.set()
        await seen.wait_for(lambda event: event.type == "state" and event.data["state"] == "waiting_approval")
        one, two = made.approvals.pending()
        await made.approvals.answer(one.id, "allow_once")
        await seen.wait_for("tool_result", 2)
        await seen.wait_for(
            lambda event: event.type == "state" and event.data["state"] == "waiting_approval", 2
        )
        await made.approvals.answer(two.id, "deny")
        await prompt
        assert ran == ["a"]
        assert states(seen)[-4:] == ["running", "waiting_approval", "running", "completed"]


async def test_a_call_that_asks_twice_waits_until_both_are_answered() -> None:
    """As a server does that asks the model twice at once."""
    release = asyncio.Event()
    inner = asking([])

    async def twice(context: ToolContext) -> str:
        assert isinstance(context, CallContext)
        turn = context.turn
        ask = replace(turn.open_calls[context.call_id], name=inner.name)
        assert turn.gate is not None
        return str(await asyncio.gather(turn.gate(turn, ask, inner), turn.gate(turn, ask, inner)))

    async def work() -> str:
        await release.wait()
        return "worked"

    async with session([[call("twice"), call("work")], "end"], [twice, work]) as (made, seen):
        prompt = start(made)
        await asked(made, seen, 2)
        one, two = made.approvals.pending()
        await made.approvals.answer(one.id, "allow_once")
        await seen.wait_for("approval_resolved")
        assert "waiting_approval" not in states(seen)
        release.set()
        await seen.wait_for(lambda event: event.type == "state" and event.data["state"] == "waiting_approval")
        await made.approvals.answer(two.id, "allow_once")
        assert (await prompt).text == "end"
        assert ("ok", "[None, None]") in await results(made)


@pytest.mark.parametrize("when", ["parked", "in line", "running"])
async def test_a_cancel_of_a_turn_that_was_parked(when: str) -> None:
    ran: list[str] = []
    waiting = hold("other")
    async with session([writes("a"), waiting], [asking(ran)]) as (made, seen):
        other = await made.open_conversation()
        prompt = start(made.root)
        approval = await asked(made, seen)
        await seen.wait_for(lambda event: event.type == "state" and event.data["state"] == "waiting_approval")
        busy = start(other)
        async with asyncio.timeout(10):
            await waiting.reached.wait()
        if when != "parked":
            await made.approvals.answer(approval.id, "allow_once")
            await made.flush()
        if when == "running":
            waiting.release()
            await seen.wait_for("tool_result")
        assert made.cancel_active_prompt().active or when == "running"
        if when != "running":
            with pytest.raises(PromptCancelled):
                await prompt
            assert (await results(made))[0][0] == "cancelled"
            assert ran == []
        waiting.release()
        await busy
        assert made.approvals.pending() == []
        await made.wait_idle()
        assert str(await made.prompt("again")) == "done"


async def test_a_turn_that_is_being_cancelled_is_not_parked() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    async with session([[call("work"), *writes("a")]], [asking([]), work]) as (made, seen):
        prompt = start(made)
        await asked(made, seen)
        made.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await prompt
        await seen.wait_for("done")
        assert "waiting_approval" not in states(seen)


async def test_an_abandoned_item_takes_no_slot_from_a_turn_that_waits_for_it() -> None:
    ran: list[str] = []
    waiting = hold("other")
    async with session([writes("a"), waiting, "end"], [asking(ran)]) as (made, seen):
        other = await made.open_conversation()
        prompt = start(made.root)
        approval = await asked(made, seen)
        await seen.wait_for(lambda event: event.type == "state" and event.data["state"] == "waiting_approval")
        busy = start(other)
        async with asyncio.timeout(10):
            await waiting.reached.wait()
        queued = asyncio.ensure_future(made.prompt("queued", when_busy="follow_up"))
        await seen.wait_for("queue")
        await made.approvals.answer(approval.id, "allow_once")
        await made.flush()
        queued.cancel()
        await asyncio.wait([queued])
        waiting.release()
        await busy
        assert (await prompt).text == "end"


async def test_a_sub_conversation_that_waits_keeps_the_slot_it_borrowed() -> None:
    ran: list[str] = []

    async def delegate(context: Any) -> str:
        return str(await context.prompt("sub"))

    delegate.__annotations__["context"] = ToolContext
    async with session([[call("delegate")], writes("a"), "sub done", "all"], [asking(ran), delegate]) as (
        made,
        seen,
    ):
        prompt = start(made)
        approval = await asked(made, seen)
        await made.approvals.answer(approval.id, "allow_once")
        assert (await prompt).text == "all"
        assert ran == ["a"]
