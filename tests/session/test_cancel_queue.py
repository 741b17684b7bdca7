"""What a cancel, or a clearing, does to the queue behind the prompt that runs."""

import asyncio
from typing import Any

import pytest

from tertulia.records.errors import PromptCancelled
from tertulia.testing import EventRecorder, hold
from tests.session.kit import check_records, messages, reached, world
from tests.session.stores import GatedStore

pytestmark = pytest.mark.timeout(20)


async def cancelled(prompt: "asyncio.Task[Any]") -> None:
    with pytest.raises(PromptCancelled):
        await asyncio.wait_for(prompt, 10)


@pytest.mark.req("S0-16", "S0-16b")
async def test_the_queue_goes_with_it(store: GatedStore) -> None:
    held = hold()
    async with world(store, [held]) as made:
        prompt = made.start("hello")
        await reached(held)
        waiting = made.start("a prompt", when_busy="follow_up")
        handle = await made.conv.submit("submitted", when_busy="follow_up")
        receipt = await made.conv.follow_up("a follow-up")
        assert receipt.status == "queued"
        result = made.conv.cancel_active_prompt()
        after = await made.conv.follow_up("said after the cancel")
        assert (result.active, result.dropped) == (True, ("submitted", "a prompt", "a follow-up"))
        await cancelled(prompt)
        await cancelled(waiting)
        with pytest.raises(PromptCancelled):
            await handle.reply()
        await made.conv.wait_idle()
        shown = {i.text: i.status for i in made.conv.pending_messages(include_resolved=True)}
        assert shown == {
            "a prompt": "failed", "submitted": "failed", "a follow-up": "failed", "said after the cancel": "resolved",
        }  # fmt: skip
        assert after.status in ("queued", "delivered")
        await made.verify()
        assert [text for role, text, _ in messages(made) if role == "user"][:2] == [
            "hello",
            "said after the cancel",
        ]


async def test_keeping_the_queue(store: GatedStore) -> None:
    held = hold()
    async with world(store, [held, "second"]) as made:
        prompt = made.start("hello")
        await reached(held)
        handle = await made.conv.submit("queued", when_busy="follow_up")
        result = await made.conv.cancel(queue="keep")
        assert (result.active, result.dropped) == (True, ())
        await cancelled(prompt)
        assert str(await handle.reply()) == "second"
        await made.verify()


@pytest.mark.req("S0-13", "S0-16b")
async def test_clearing_the_queue(store: GatedStore) -> None:
    held = hold("done")
    async with world(store, [held]) as made:
        prompt = made.start("hello")
        await reached(held)
        waiting = made.start("a prompt", when_busy="follow_up")
        handle = await made.conv.submit("submitted", when_busy="steer")
        result = made.conv.clear_pending_state()
        assert (result.queued_removed, result.active_prompt_cancelled) == (2, False)
        assert result.texts == ("submitted", "a prompt")
        await cancelled(waiting)
        with pytest.raises(PromptCancelled):
            await handle.reply()
        assert made.conv.pending_messages(include_resolved=True) == []
        held.release()
        assert str(await prompt) == "done"
        assert not made.conv.clear_pending_state(cancel_active_prompt=True).active_prompt_cancelled
        await made.verify()


@pytest.mark.req("S0-13")
async def test_clearing_the_queue_with_what_runs(store: GatedStore) -> None:
    held = hold("done")
    async with world(store, [held]) as made:
        prompt = made.start("hello")
        await reached(held)
        assert made.conv.clear_pending_state(cancel_active_prompt=True).active_prompt_cancelled
        await cancelled(prompt)
        await made.verify()


async def test_a_cancelled_caller_takes_its_own_item_back(store: GatedStore) -> None:
    """What others queued, and what runs, is not its business."""
    held = hold("first")
    async with world(store, [held, "third"]) as made:
        first = made.start("first")
        await reached(held)
        second = made.start("second", when_busy="follow_up")
        await made.seen.wait_for("queue")
        third = made.start("third", when_busy="follow_up")
        await made.seen.wait_for("queue", count=2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        held.release()
        assert (str(await first), str(await third)) == ("first", "third")
        await made.verify()


async def test_idle_there_is_nothing_to_cancel(store: GatedStore) -> None:
    async with world(store) as made:
        assert made.conv.cancel_active_prompt() == made.conv.cancel_active_prompt()
        assert not (await made.conv.cancel()).active
        await made.verify()
        assert not made.conv.cancel_active_prompt().active


async def test_two_conversations_one_slot(store: GatedStore) -> None:
    """The one that is cancelled gives its slot to the one that waits."""
    held = hold()
    async with world(store, [held, "mine now"]) as made:
        other = await made.session.open_conversation()
        async with EventRecorder(other) as seen:
            prompt = made.start("hello")
            await reached(held)
            waiting = asyncio.create_task(other.prompt("waits"))
            await seen.wait_for("queue")
            assert made.conv.cancel_active_prompt().active
            await cancelled(prompt)
            assert str(await waiting) == "mine now"
            check_records(await other.records())
        await made.verify()
