"""What steer() and follow_up() answer while something else fails, and what a cancel that keeps the queue reaches."""

import asyncio
from typing import Any

import pytest

from tertulia.records.errors import ModelError, PromptCancelled, StoreFull
from tertulia.testing import call, hold
from tertulia.tools.base import tool
from tests.session.kit import reached, world
from tests.session.stores import GatedStore

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("how", ["follow_up", "steer", "submit"])
async def test_the_failure_of_another_turn_is_a_receipt(store: GatedStore, how: str) -> None:
    """What was handed over while the running turn failed is dropped: that error is its waiters', not its caller's."""
    held = hold(RuntimeError("the model broke"))
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        store.hold()
        held.release()
        await store.waiting()  # the end of the failed turn
        options: dict[str, Any] = {"when_busy": "follow_up"} if how == "submit" else {}
        handing = asyncio.create_task(getattr(made.conv, how)("two", **options))
        await asyncio.sleep(0)
        store.let_one()
        with pytest.raises(ModelError):
            await prompt
        assert made.conv.queue.list() == []
        store.let_go()
        given = await handing
        assert given.status in ("dropped", "failed")
        if how == "submit":
            with pytest.raises(ModelError):
                await given.reply()
        await made.verify()


async def test_a_follow_up_that_meets_a_failing_turn_anywhere_never_raises(store: GatedStore) -> None:
    """Each step of the loop at which it may come."""
    for steps in range(40):
        held = hold(RuntimeError("the model broke"))
        async with world(store, [held]) as made:
            prompt = made.start("one")
            await reached(held)
            held.release()
            for _ in range(steps):
                await asyncio.sleep(0)
            assert (await made.conv.follow_up("two")).status in ("queued", "delivered", "dropped")
            with pytest.raises(ModelError):
                await prompt
            await made.conv.wait_idle()


async def test_a_first_commit_that_fails_is_the_callers(store: GatedStore) -> None:
    async with world(store, []) as made:
        store.fail(StoreFull("the disk is full"))
        with pytest.raises(StoreFull):
            await made.conv.follow_up("one")
        await made.conv.wait_idle()
        assert (await made.conv.follow_up("two")).status == "delivered"
        await made.verify()


async def test_a_cancel_that_keeps_the_queue_reaches_a_prompt_that_waits_for_its_slot(
    store: GatedStore,
) -> None:
    held = hold("a")
    async with world(store, [held, "to the follow-up"]) as made:
        first = made.start("one")
        await reached(held)
        other = await made.session.open_conversation()
        waiting = asyncio.create_task(other.prompt("two"))
        await asyncio.sleep(0)
        await other.follow_up("three")
        result = await other.cancel(queue="keep")
        assert (result.active, result.dropped) == (True, ("two",))
        with pytest.raises(PromptCancelled):
            await waiting
        assert [item.text for item in other.queue.list()] == ["three"]
        held.release()
        assert str(await first) == "a"
        await other.wait_idle()
        assert [e.text for e in await other.transcript()] == ["three", "to the follow-up"]
        await made.verify()


async def test_a_cancel_that_keeps_the_queue_leaves_what_only_queues(store: GatedStore) -> None:
    held = hold("a")
    async with world(store, [held, "b", "c"]) as made:
        first = made.start("one")
        await reached(held)
        other = await made.session.open_conversation()
        await other.follow_up("two")
        await other.follow_up("three")
        assert not (await other.cancel(queue="keep")).active
        held.release()
        await first
        await other.wait_idle()
        assert [e.text for e in await other.transcript()] == ["two", "b", "three", "c"]
        await made.verify()


# ── from a tool ──


async def test_a_task_that_a_tool_left_behind_uses_the_session(store: GatedStore) -> None:
    go = asyncio.Event()
    tasks: list[asyncio.Task[str]] = []

    async with world(store, [[call("start")], "done", "to the task"]) as made:

        async def later() -> str:
            await go.wait()
            reply = await made.conv.prompt("from the task", when_busy="follow_up")
            await made.conv.wait_idle()
            return str(reply)

        @tool
        async def start() -> str:
            """Start something."""
            tasks.append(asyncio.create_task(later()))
            return "started"

        made.conv.register(start)
        assert str(await made.conv.prompt("go")) == "done"
        go.set()
        assert await asyncio.wait_for(tasks[0], 10) == "to the task"
        await made.verify()


async def test_a_task_that_a_tool_left_behind_queues_while_the_turn_goes_on(store: GatedStore) -> None:
    held = hold("done")
    tasks: list[asyncio.Task[Any]] = []
    async with world(store, [[call("start")], held, "to the task"]) as made:

        async def later() -> Any:
            await held.reached.wait()
            return await made.conv.prompt("from the task", when_busy="follow_up")

        @tool
        async def start() -> str:
            """Start something."""
            tasks.append(asyncio.create_task(later()))
            return "started"

        made.conv.register(start)
        prompt = made.start("go")
        await reached(held)
        await made.seen.wait_for(lambda event: getattr(event, "state", "") == "queued", count=2)
        held.release()
        assert str(await prompt) == "done"
        assert str(await asyncio.wait_for(tasks[0], 10)) == "to the task"
        await made.verify()


@pytest.mark.parametrize("where", ["tool", "task"])
async def test_a_tool_that_waits_for_its_own_session_is_refused(store: GatedStore, where: str) -> None:
    async with world(store, [[call("ask")], "done"]) as made:

        @tool
        async def ask() -> str:
            """Ask."""
            asking = made.conv.prompt("inner", when_busy="follow_up")
            return str(await (asyncio.create_task(asking) if where == "task" else asking))

        made.conv.register(ask)
        assert str(await made.conv.prompt("go")) == "done"
        assert made.results() == [("ask", "error")]
        await made.verify()
