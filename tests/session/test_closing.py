"""Close, delete and the list of tasks, in the middle of things; and a thousand conversations, one after another."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from tertulia.records.errors import ConversationClosed, PromptCancelled
from tertulia.records.record import Custom, Message
from tertulia.session.session import Session
from tertulia.testing import EventRecorder, ScriptedModel, call, hold
from tests.session.kit import check_records, reached, record_of, world
from tests.session.stores import GatedStore

pytestmark = pytest.mark.timeout(20)


@pytest.mark.req("S1-005b", "S2-10b")
@pytest.mark.parametrize("mode", ["drain", "cancel"])
async def test_close_in_the_middle(store: GatedStore, mode: Any) -> None:
    held = hold("first")
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        queued = made.start("two", when_busy="follow_up")
        handle = await made.conv.submit("three", when_busy="steer")
        closing = asyncio.create_task(made.session.aclose(mode))
        with pytest.raises(PromptCancelled):
            await queued
        with pytest.raises(PromptCancelled):
            await handle.reply()
        with pytest.raises(ConversationClosed):
            await made.conv.prompt("four")
        with pytest.raises(ConversationClosed):
            await made.conv.follow_up("five")
        held.release()
        if mode == "drain":
            assert str(await prompt) == "first"
        else:
            with pytest.raises(PromptCancelled):
                await prompt
        await closing
        await made.session.aclose()
        await made.session.aclose("cancel")
        found = await Session.open(id=made.session.id, store=store, model=made.model)
        assert [(i.text, i.held) for i in found.queue.list()] == [("three", True), ("two", True)]
        check_records(await found.root.records())
        made.model._script.clear()
        made.model.add("to three", "to two")
        assert await found.queue.run() == 2
        await found.root.wait_idle()
        assert [m.text for m in record_of(await found.root.records(), Message)][-4:] == [
            "three", "to three", "two", "to two",
        ]  # fmt: skip
        await found.aclose()


@pytest.mark.req("S2-10a")
async def test_a_close_that_has_to_force(store: GatedStore) -> None:
    """A tool that will not end holds up no close: its end is written for it, and the log says so."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        entered.set()
        while not release.is_set():
            try:
                await asyncio.wait_for(release.wait(), 10)
            except asyncio.CancelledError:
                continue
        return "late"

    async with world(store, [[call("stubborn")]], tools=[stubborn], grace=100) as made:
        try:
            prompt = made.start("go")
            async with asyncio.timeout(15):
                await entered.wait()
                await made.conv.close("cancel", timeout=0.02)
            with pytest.raises(PromptCancelled):
                await prompt
            check_records(await made.conv.records())
            assert [r.kind for r in record_of(await made.conv.records(), Custom)] == ["close_forced"]
            assert made.ends() == [("cancelled", "cancelled")]
            assert not made.session.tasks
            await made.conv.close()
        finally:
            release.set()
            await made.clock.advance(100)
            for _ in range(20):
                await asyncio.sleep(0)


async def test_a_turn_that_has_no_time_left_is_still_stored(store: GatedStore) -> None:
    """How long the turn may take says nothing about the disk."""
    held = hold()
    async with world(store, [held]) as made:
        prompt = made.start("go")
        await reached(held)
        await made.conv.flush()
        store.hold()
        closing = asyncio.create_task(made.conv.close("cancel", timeout=0.0))
        await store.waiting()
        for _ in range(50):
            await asyncio.sleep(0)
        store.let_go()
        await closing
        with pytest.raises(PromptCancelled):
            await prompt
        check_records(await made.conv.records())


@pytest.mark.req("S1-005c")
async def test_delete_in_the_middle(store: GatedStore) -> None:
    held = hold()
    async with world(store, [held, "still here"]) as made:
        other = await made.session.open_conversation()
        async with EventRecorder(other) as seen, EventRecorder(made.session) as all_of_it:
            prompt = asyncio.create_task(other.prompt("go"))
            await reached(held)
            queued = asyncio.create_task(other.prompt("two", when_busy="follow_up"))
            await seen.wait_for("queue")
            await made.session.delete_conversation(other.id)
            for waiting in (prompt, queued):
                with pytest.raises(PromptCancelled):
                    await waiting
            await seen.wait_for("deleted")
            assert seen.events[-1].type == "deleted"
            await all_of_it.wait_for("deleted")
        assert [row.id for row in (await store.list(archived=None)).rows] in ([], [made.conv.id])
        assert str(await made.conv.prompt("you?")) == "still here"
        await made.verify()


@pytest.mark.req("S2-03c")
async def test_the_list_of_tasks(store: GatedStore) -> None:
    one, two = hold("one"), hold("two")
    async with world(store, [one, two], max_running=2) as made:
        other = await made.session.open_conversation()
        first = made.start("first")
        await reached(one)
        second = asyncio.create_task(other.prompt("second"))
        await reached(two)
        listed = {task.conversation_id: task for task in made.session.tasks}
        assert set(listed) == {made.conv.id, other.id}
        assert listed[other.id].started_at == made.clock.now()
        made.session.cancel_task(listed[other.id].task_id)
        with pytest.raises(PromptCancelled):
            await second
        assert [task.conversation_id for task in made.session.tasks] == [made.conv.id]
        one.release()
        await first
        assert made.session.tasks == ()
        await made.verify()


@pytest.mark.req("S2-03b", "S2-14a")
async def test_a_thousand_conversations_leave_nothing_and_free_every_slot() -> None:
    """Opened, run, cancelled or closed in the middle, many at once, one slot for all."""
    model = ScriptedModel(default="ok")
    left: list[weakref.ref[Any]] = []
    running = most = 0

    async def counted(request: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0)
        finally:
            running -= 1
        return "ok"

    model._default = counted

    async def one(session: Session, n: int) -> None:
        conv = await session.open_conversation()
        left.append(weakref.ref(conv))
        prompt = asyncio.create_task(conv.prompt(f"{n}"))
        for _ in range(n % 7):
            await asyncio.sleep(0)
        if n % 3 == 1:
            conv.cancel_active_prompt()
        elif n % 3 == 2:
            await session.close_conversation(conv.id)
        await asyncio.gather(prompt, return_exceptions=True)
        await session.close_conversation(conv.id)

    async with Session.open(model=model) as session:
        for group in range(20):
            await asyncio.gather(*(one(session, group * 50 + n) for n in range(50)))
        assert most == 1
        assert len(session.conversations) == 1
        assert str(await session.prompt("free?")) == "ok"
        gc.collect()
        assert len(left) == 1000
        assert not [ref for ref in left if ref() is not None]
