"""A store that fails, waits, or belongs to somebody else by now."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import PromptCancelled, SessionHeld, StaleFence, StorageError, StoreFull
from tertulia.records.record import Message, Queue, ToolResult, TurnEnd
from tertulia.session import closed
from tertulia.session.session import Session
from tertulia.store.sqlite import SqliteStore
from tertulia.testing import ScriptedModel, Stream, call, hold
from tests.session.kit import check_records, messages, reached, record_of, world
from tests.session.stores import GatedStore, committed

pytestmark = [pytest.mark.timeout(20), pytest.mark.req("S2-14b")]

FULL = StoreFull("the disk is full", hint="make room")


async def look() -> str:
    return "seen"


# ── a full disk ──


async def test_the_end_of_a_turn_cannot_be_stored(store: GatedStore) -> None:
    """The caller is told, nothing half is kept, the next commit that works begins with that turn's end."""
    held = hold("an answer")
    async with world(store, ["before", held]) as made:
        await made.conv.prompt("one")
        prompt = made.start("two")
        await reached(held)
        later = await made.conv.submit("later", when_busy="follow_up")
        before = list(await made.conv.transcript())
        store.fail(FULL)
        held.release()
        with pytest.raises(StorageError):
            await prompt
        assert list(await made.conv.transcript()) == before
        done = made.seen.of("done")[-1]
        assert (done.seq, done.status, done.code) == (None, "failed", "storage")
        assert [(item.text, item.held) for item in made.conv.queue.list()] == [("later", True)]
        assert later.status == "held"
        made.model.add("three is answered")
        assert str(await made.conv.prompt("three")) == "three is answered"
        ends = record_of(await made.conv.records(), TurnEnd)
        assert [(end.status, end.code) for end in ends] == [
            ("completed", None), ("failed", "storage"), ("completed", None),
        ]  # fmt: skip
        await made.verify(unseen=2)


async def test_the_first_commit_that_works_begins_with_the_end_owed(store: GatedStore) -> None:
    async with world(store, ["one", "two"]) as made:
        await made.conv.prompt("one")
        await made.conv.flush()
        store.fail(FULL, after=1)
        with pytest.raises(StoreFull):
            await made.conv.prompt("two")
        sent = len(store.commits)
        await made.conv.rename("works again")
        assert [r.type for r in committed(store.commits[sent])] == ["usage", "turn_end", "info"]
        await made.verify(unseen=2)


async def test_the_first_commit_of_a_turn_fails(store: GatedStore) -> None:
    """Nothing of the turn is in the log, so there is nothing to end; watchers saw it begin and fail."""
    async with world(store, ["one", "never said"]) as made:
        await made.conv.prompt("one")
        await made.conv.flush()
        before = list(await made.conv.records())
        store.fail(FULL)
        with pytest.raises(StoreFull):
            await made.conv.prompt("two")
        assert list(await made.conv.records()) == before
        assert [e.type for e in made.seen.events[-3:]] == ["turn_start", "error", "done"]
        made.model._script.clear()
        await made.verify()


async def test_the_very_first_commit_fails(store: GatedStore) -> None:
    async with world(store, []) as made:
        store.fail(FULL)
        with pytest.raises(StoreFull):
            await made.conv.prompt("one")
        assert await made.conv.records() == ()
        await made.verify()


@pytest.mark.parametrize("count", [1, 2])
async def test_a_result_cannot_be_stored(store: GatedStore, count: int) -> None:
    """With one failure the turn's own end tells of the call; with two the next commit does."""
    async with world(store, [["looking", call("look")]], tools=[look]) as made:
        store.fail(FULL, after=2, count=count)
        with pytest.raises(StoreFull):
            await made.conv.prompt("one")
        await made.conv.rename("works again")
        assert made.results() == [("look", "error")]
        assert made.ends() == [("failed", "storage")]
        await made.verify(unseen=0 if count == 1 else 2)


async def test_the_calls_cannot_be_stored(store: GatedStore) -> None:
    async with world(store, [["looking", call("look")]], tools=[look]) as made:
        store.fail(FULL, after=1)
        with pytest.raises(StoreFull):
            await made.conv.prompt("one")
        assert messages(made)[-1] == ("assistant", "looking", "aborted")
        await made.verify()


async def test_a_queued_item_that_cannot_be_stored_was_never_accepted(store: GatedStore) -> None:
    held = hold("one")
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        store.fail(FULL)
        with pytest.raises(StoreFull):
            await made.conv.follow_up("two")
        assert made.conv.pending_message_count() == 0
        held.release()
        assert str(await prompt) == "one"
        await made.verify()


async def test_a_cancel_while_the_store_fails(store: GatedStore) -> None:
    held = hold()
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        store.fail(FULL)
        made.conv.cancel_active_prompt()
        with pytest.raises(StoreFull):
            await prompt
        await made.conv.rename("works again")
        await made.verify(unseen=1)


# ── a slow disk ──


async def test_a_cancel_while_a_receipt_is_on_its_way(store: GatedStore) -> None:
    """It was dropped before it was accepted: the receipt says so."""
    held = hold()
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        store.hold()
        follow_up = asyncio.create_task(made.conv.follow_up("two"))
        submitting = asyncio.create_task(made.conv.submit("three", when_busy="steer"))
        await store.waiting()
        assert made.conv.cancel_active_prompt().dropped == ("two", "three")
        store.let_go()
        receipt, handle = await follow_up, await submitting
        assert (receipt.status, receipt.id) == ("dropped", receipt.id)
        with pytest.raises(PromptCancelled):
            await handle.reply()
        with pytest.raises(PromptCancelled):
            await prompt
        await made.conv.flush()
        assert (await store.open(made.conv.id)).inbox == ()
        await made.verify()


async def test_who_waits_for_a_receipt_goes_away(store: GatedStore) -> None:
    """Accepting is not undone: only a caller of prompt() takes its item along."""
    held = hold("one")
    async with world(store, [held, "two"]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        store.hold()
        follow_up = asyncio.create_task(made.conv.follow_up("two"))
        await store.waiting()
        follow_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await follow_up
        store.let_go()
        held.release()
        assert str(await prompt) == "one"
        await made.conv.wait_idle()
        assert [text for role, text, _ in messages(made) if role == "assistant"] == ["one", "two"]
        await made.verify()


async def test_a_cancel_is_durable_when_cancel_returns(store: GatedStore) -> None:
    held = hold()
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        assert (await made.conv.cancel()).active
        assert made.ends() == [("cancelled", "cancelled")]
        with pytest.raises(PromptCancelled):
            await prompt
        await made.verify()


async def test_a_store_that_never_answers_holds_up_no_close(
    store: GatedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed, "STORE", 0.05)
    held = hold("one")
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        queued = made.start("two", when_busy="follow_up")
        await made.seen.wait_for("queue")
        store.hold()
        async with asyncio.timeout(15):
            await made.conv.close("cancel", timeout=0.05)
            with pytest.raises(PromptCancelled):
                await queued
            with pytest.raises((PromptCancelled, StorageError)):
                await prompt
        store.let_go()


async def test_a_steer_in_the_last_answer_runs_as_a_turn_of_its_own(store: GatedStore) -> None:
    held = hold()
    async with world(store, [Stream(["the last ", held, "answer"]), "to the steer"]) as made:
        prompt = made.start("one")
        await reached(held)
        steer = await made.conv.submit("and this?", when_busy="steer")
        held.release()
        assert str(await prompt) == "the last answer"
        assert str(await steer.reply()) == "to the steer"
        assert len(record_of(await made.conv.records(), TurnEnd)) == 2
        states = [r.state for r in record_of(await made.conv.records(), Queue)]
        assert states == ["queued", "delivered"]
        await made.verify()


# ── whose session it is ──


async def test_a_stale_owner_is_told_and_claims_again(store: GatedStore) -> None:
    """In the middle of a turn: nothing it wrote afterwards is in the log, and the turn ends once."""
    held = hold("too late")
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        fence = await store.inner.claim(made.session.id)
        await store.inner.release(fence)
        held.release()
        with pytest.raises(StaleFence):
            await prompt
        assert made.conv.cancel_active_prompt().active is False
        await made.conv.rename("mine again")
        check_records(await made.conv.records())
        assert [status for status, _ in made.ends()] == ["failed"]


async def test_a_held_session_is_read_and_not_written(tmp_path: Path) -> None:
    mine = await SqliteStore.at(tmp_path / "store.db")
    theirs = await SqliteStore.at(tmp_path / "store.db")
    try:
        async with world(GatedStore(mine), ["one", "two"]) as made:
            await made.conv.prompt("one")
            other = await Session.open(id=made.session.id, store=theirs, model=ScriptedModel(["never"]))
            assert [entry.text for entry in await other.transcript()] == ["one", "one"]
            with pytest.raises(SessionHeld) as raised:
                await other.prompt("may I?")
            assert "process" in raised.value.holder
            assert [entry.text for entry in await other.transcript()] == ["one", "one"]
            with pytest.raises(SessionHeld):
                await other.follow_up("may I?")
            await other.aclose()
            assert str(await made.conv.prompt("two")) == "two"
            await made.verify()
    finally:
        await mine.aclose()
        await theirs.aclose()


# ── how often it writes ──


async def _commits(store: GatedStore, script: list[Any], **options: Any) -> int:
    async with world(store, ["first", *script], **options) as made:
        await made.conv.prompt("first")
        await made.conv.flush()
        before = len(store.commits)
        await made.conv.prompt("counted")
        found = len(store.commits) - before
        await made.verify()
    return found


async def test_a_text_turn_is_two_commits(store: GatedStore) -> None:
    assert await _commits(store, ["text"]) == 2


async def test_a_turn_with_one_call_is_three_or_four(store: GatedStore) -> None:
    assert await _commits(store, [[call("look")], "text"], tools=[look]) in (3, 4)


@pytest.mark.parametrize("count", [2, 5])
async def test_parallel_calls_add_one_each_at_most(store: GatedStore, count: int) -> None:
    found = await _commits(store, [[call("look") for _ in range(count)], "text"], tools=[look])
    assert found <= 4 + count - 1


async def test_what_is_shown_is_stored(store: GatedStore) -> None:
    """No event of a record goes out before its commit is done."""
    async with world(store, [["looking", call("look")], "done"], tools=[look]) as made:
        await made.conv.rename("claimed")
        store.hold()
        prompt = made.start("one")
        shown = 0
        while not prompt.done():
            for _ in range(10):
                await asyncio.sleep(0)
            stored = [r.seq for batch in store.commits for r in committed(batch)]
            assert {e.seq for e in made.seen.events if e.seq is not None} <= set(stored)
            shown += 1
            if store.held:
                store.let_one()
        assert shown > 3
        assert len(record_of(await made.conv.records(), ToolResult)) == 1
        assert len(record_of(await made.conv.records(), Message)) == 3
        store.let_go()
        await made.verify()
