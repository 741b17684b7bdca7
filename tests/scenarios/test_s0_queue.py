"""The queue: what can be seen of it, cleared and changed by hand, and what outlives the process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tertulia import Session
from tertulia.records.errors import IdConflict, InvalidInput, ItemNotFound, PromptCancelled
from tertulia.testing import EventRecorder, ScriptedModel, hold
from tests.scenarios.kit import asked, sources, talk, texts


@asynccontextmanager
async def busy(store: Any, *script: Any, **options: Any) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    """A session whose first prompt waits until it is released."""
    waiting = hold("first answer")
    async with talk(store, waiting, *script, **options) as (session, model):
        running = asyncio.ensure_future(session.prompt("first"))
        await waiting.until_reached()
        yield session, model, waiting, running
        waiting.release()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.req("S0-11", "S0-18")
async def test_the_snapshot_shows_items_in_order_with_cut_texts(store: Any) -> None:
    async with busy(store, default="ok") as (session, _, waiting, running):
        await session.submit("x" * 121, when_busy="follow_up")
        await session.steer("y" * 120)
        await session.follow_up("a\r\nb\rc")
        await session.submit("é" * 11, when_busy="steer")
        await session.send_message("sent")
        shown = session.pending_messages()
        assert sources(shown) == [
            ("prompt_follow_up", "x" * 120 + "...", "queued"), ("steer", "y" * 120, "queued"),
            ("follow_up", "a\nb\nc", "queued"), ("steer", "é" * 11, "queued"), ("follow_up", "sent", "queued"),
        ]  # fmt: skip
        assert len({each.id for each in shown}) == 5
        assert session.pending_messages(max_length=10)[3].text_preview == "é" * 10 + "..."
        assert session.pending_messages(max_length=0)[4].text_preview == "s..."
        assert session.pending_messages(max_length=1000)[0].text_preview == "x" * 121
        waiting.release()
        await session.wait_idle()
        assert session.pending_messages() == []
        # Resolved in the order in which they were done, with their whole text kept.
        done = session.pending_messages(max_length=10, include_resolved=True)
        assert [(each.text_preview, each.status) for each in done] == [
            ("x" * 10 + "...", "resolved"), ("y" * 10 + "...", "resolved"), ("a\nb\nc", "resolved"),
            ("é" * 10 + "...", "resolved"), ("sent", "resolved"),
        ]  # fmt: skip
        assert session.pending_messages(200, include_resolved=True)[0].text_preview == "x" * 121


@pytest.mark.req("S0-18")
async def test_queued_and_resolved_are_cut_alike(store: Any) -> None:
    async with talk(store, "a", hold("b"), default="ok") as (session, model):
        await session.follow_up("r" * 12)
        await session.wait_idle()
        waiting = model._script[0]
        running = asyncio.ensure_future(session.prompt("direct"))
        await waiting.until_reached()
        await session.follow_up("q" * 12)
        assert sources(session.pending_messages(10, True)) == [
            ("follow_up", "q" * 10 + "...", "queued"), ("follow_up", "r" * 10 + "...", "resolved"),
        ]  # fmt: skip
        waiting.release()
        await running
        await session.wait_idle()


@pytest.mark.req("S0-13", "S0-16b")
async def test_clearing_the_history_leaves_the_queue(store: Any) -> None:
    async with talk(store, "a", hold("b"), "c", default="ok") as (session, model):
        await session.follow_up("done")
        await session.wait_idle()
        waiting = model._script[0]
        running = asyncio.ensure_future(session.prompt("now"))
        await waiting.until_reached()
        handle = await session.submit("waits", when_busy="follow_up")
        result = session.clear_pending_history()
        assert (result.queued_removed, result.resolved_removed) == (0, 1)
        assert sources(session.pending_messages(include_resolved=True)) == [
            ("prompt_follow_up", "waits", "queued")
        ]
        waiting.release()
        assert (await running).text == "b"
        assert (await handle.reply()).text == "c"


@pytest.mark.req("S0-13", "S0-16b")
async def test_clearing_the_state_drops_both_and_records_no_failure(store: Any) -> None:
    async with busy(store, "unused") as (session, model, waiting, running):
        queued = asyncio.ensure_future(session.prompt("p", when_busy="follow_up"))
        await asyncio.sleep(0)
        handle = await session.submit("s", when_busy="steer")
        await session.follow_up("f")
        result = session.clear_pending_state()
        assert (result.queued_removed, result.resolved_removed, result.texts) == (3, 0, ("p", "s", "f"))
        assert not result.active_prompt_cancelled
        for waiter in (queued, handle.reply()):
            with pytest.raises(PromptCancelled):
                await waiter
        assert session.pending_messages(include_resolved=True) == []
        waiting.release()
        assert (await running).text == "first answer"
        await session.wait_idle()
        assert len(model.requests) == 1
        empty = session.clear_pending_state(cancel_active_prompt=True)
        assert (empty.queued_removed, empty.active_prompt_cancelled) == (0, False)


@pytest.mark.req("S0-13")
async def test_clearing_with_the_active_prompt(store: Any) -> None:
    async with busy(store, "next") as (session, model, waiting, running):
        await session.follow_up("f")
        result = session.clear_pending_state(cancel_active_prompt=True)
        assert (result.active_prompt_cancelled, result.queued_removed, result.texts) == (True, 1, ("f",))
        with pytest.raises(PromptCancelled):
            await running
        assert session.pending_messages(include_resolved=True) == []
        assert (await session.prompt("again")).text == "next"


@pytest.mark.req("S0-16", "S0-16b")
async def test_a_cancel_fails_the_queue_and_keeps_its_texts(store: Any) -> None:
    async with busy(store, "after") as (session, model, waiting, running):
        queued = asyncio.ensure_future(session.prompt("p" * 200, when_busy="follow_up"))
        await asyncio.sleep(0)
        handle = await session.submit("s", when_busy="steer")
        await session.follow_up("f")
        result = session.cancel_active_prompt()
        later = asyncio.ensure_future(session.prompt("later", when_busy="follow_up"))
        assert result.active
        assert result.dropped == ("p" * 200, "s", "f")
        for waiter in (running, queued, handle.reply()):
            with pytest.raises(PromptCancelled):
                await waiter
        assert [(each.text, each.status) for each in session.pending_messages(include_resolved=True)][-3:] == [
            ("p" * 200, "failed"), ("s", "failed"), ("f", "failed"),
        ]  # fmt: skip
        assert (await later).text == "after"
        assert [text for role, text in await texts(session) if role == "user"] == ["first", "later"]


@pytest.mark.req("S0-17")
async def test_the_history_keeps_the_newest_twenty(store: Any) -> None:
    async with busy(store) as (session, *_):
        await asyncio.gather(*(session.follow_up(f"n{n:02}") for n in range(23)))
        session.cancel_active_prompt()
        await session.wait_idle()
        kept = session.pending_messages(include_resolved=True)
        assert [each.text for each in kept] == [f"n{n:02}" for n in range(3, 23)]
        assert {each.status for each in kept} == {"failed"}


async def test_items_are_changed_by_hand(store: Any) -> None:
    async with busy(store, default="ok") as (session, model, waiting, running):
        for text in "abcd":
            await session.follow_up(text)
        gone = await session.submit("e", when_busy="follow_up")
        a, b, c, d, e = (each.id for each in session.queue.list())
        await session.queue.edit(b, "B")
        removed = await session.queue.remove(e)
        await session.queue.promote(d)
        await session.queue.reorder(a, 2)
        assert [each.text for each in session.queue.list()] == ["d", "B", "a", "c"]
        assert removed.text == "e"
        with pytest.raises(PromptCancelled):
            await gone.reply()
        queue: Any = session.queue
        for change in (queue.edit("nope", "x"), queue.remove(e), queue.promote("nope"), queue.reorder(e, 0)):
            with pytest.raises(ItemNotFound):
                await change
        for bad in (queue.edit(a, ""), queue.edit(a, 5), queue.reorder(a, "first"), queue.reorder(a, None)):
            with pytest.raises(InvalidInput):
                await bad
        await session.queue.reorder(a, -5)
        await session.queue.reorder(d, 99)
        assert [each.text for each in session.queue.list()] == ["a", "B", "c", "d"]
        waiting.release()
        await session.wait_idle()
        assert [text for role, text in await texts(session) if role == "user"] == [
            "first",
            "a",
            "B",
            "c",
            "d",
        ]


async def test_an_item_with_a_client_id_can_be_edited(store: Any) -> None:
    async with busy(store, default="ok") as (session, model, waiting, running):
        handle = await session.submit("draft", when_busy="follow_up", id="mine")
        await session.queue.edit(handle.id, "final")
        waiting.release()
        assert (await handle.reply()).text == "ok"
        assert ("user", "final") in await texts(session)
        assert (await session.prompt("draft", id="mine")).turn_id == handle.turn_id


async def test_the_queue_announces_each_change(store: Any) -> None:
    async with busy(store, default="ok", retention="full") as (session, model, waiting, running):
        async with EventRecorder(session) as seen:
            one = await session.submit("one", when_busy="follow_up")
            two = await session.submit("two", when_busy="follow_up")
            await session.queue.remove(two.id)
            waiting.release()
            await one.reply()
            await seen.wait_for("done", count=2)
        changes = [(e.item_id, e.state) for e in seen.events if e.type == "queue"]
        assert changes == [
            (one.id, "queued"), (two.id, "queued"), (two.id, "dropped"), (one.id, "delivered"),
        ]  # fmt: skip
        delivered: Any = next(e for e in seen.events if e.type == "queue" and e.state == "delivered")  # type: ignore[union-attr]
        said = next(r for r in await session.records() if r.type == "message" and r.text == "one")
        assert delivered.delivered == said.seq
        assert all(e.turn_id is None for e in seen.events if e.type == "queue")


@pytest.mark.parametrize("retention", ["none", "headers_only"])
async def test_without_bodies_the_queue_lives_in_memory(store: Any, retention: str) -> None:
    async with busy(store, default="ok", retention=retention) as (session, model, waiting, running):
        async with EventRecorder(session) as seen:
            receipt = await session.follow_up("secret")
            assert (receipt.status, receipt.durable) == ("queued", False)
            waiting.release()
            await seen.wait_for("done", count=2)
        states = [e.state for e in seen.of("queue")]  # type: ignore[union-attr]
        assert states == ["queued", "delivered"]
        assert await texts(session) == [
            ("user", "first"), ("assistant", "first answer"), ("user", "secret"), ("assistant", "ok"),
        ]  # fmt: skip


async def test_client_ids_name_one_input(store: Any) -> None:
    async with talk(store, "one", "two", default="more") as (session, model):
        first, again = await asyncio.gather(session.prompt("a", id="k"), session.prompt("a", id="k"))
        assert first == again
        assert await session.prompt("a", id="k") == first
        with pytest.raises(IdConflict):
            await session.prompt("b", id="k")
        with pytest.raises(InvalidInput):
            await session.prompt("b", id="")
        assert (await session.submit("a", id="k")).turn_id == first.turn_id
        other = await session.fork()
        assert (await other.prompt("b", id="k")).text == "two"  # an id is its conversation's own
        assert len(model.requests) == 2


async def test_client_ids_while_busy(store: Any) -> None:
    async with busy(store, "one", default="more") as (session, model, waiting, running):
        one = await session.submit("a", when_busy="follow_up", id="k")
        same = await session.submit("a", when_busy="reject", id="k")
        assert one.id == same.id
        with pytest.raises(IdConflict):
            await session.submit("b", when_busy="follow_up", id="k")
        assert session.pending_message_count() == 1
        waiting.release()
        assert await one.reply() == await same.reply()
        assert [text for _, text in await texts(session)].count("a") == 1


async def test_client_ids_outlive_the_process(place: str) -> None:
    async with talk(place, "answer", RuntimeError("no"), default="new") as (session, model):
        first = await session.prompt("a", id="k")
        with pytest.raises(Exception, match="no"):
            await session.prompt("f", id="failed")
        await session.prompt("between")
        id = session.id
    async with Session.open(id=id, store=place, model=ScriptedModel(default="new")) as session:
        replies = await asyncio.gather(*(session.prompt("a", id="k") for _ in range(3)))
        assert all((reply.text, reply.turn_id) == ("answer", first.turn_id) for reply in replies)
        with pytest.raises(IdConflict):
            await session.prompt("b", id="k")
        with pytest.raises(Exception, match="no"):
            await session.prompt("f", id="failed")
        fresh = await asyncio.gather(*(session.prompt("n", id="n", when_busy="follow_up") for _ in range(3)))
        assert len({reply.turn_id for reply in fresh}) == 1
        assert [text for _, text in await texts(session)].count("n") == 1


async def test_queued_items_are_held_after_a_restart(place: str) -> None:
    async with busy(place, retention="full") as (session, model, waiting, running):
        waits = await session.submit("p", when_busy="follow_up", id="mine")
        await session.follow_up("f")
        await session.steer("s")
        await session.queue.promote(session.queue.list()[2].id)
        await session.queue.edit(session.queue.list()[2].id, "F")
        id = session.id
        closing = asyncio.ensure_future(session.aclose())
        with pytest.raises(PromptCancelled):
            await waits.reply()
        waiting.release()
        await closing
    model = ScriptedModel(default="ok")
    async with Session.open(id=id, store=place, model=model) as session:
        assert [(each.text, each.held) for each in session.queue.list()] == [
            ("s", True),
            ("p", True),
            ("F", True),
        ]
        assert session.pending_message_count() == 3
        await session.wait_idle()
        assert not session.root.busy
        assert (await session.prompt("direct")).text == "ok"
        assert session.pending_message_count() == 3
        handle = await session.submit("p", id="mine", when_busy="follow_up")
        assert handle.id == waits.id
        assert await session.queue.run() in (2, 3)
        await handle.reply()
        await session.wait_idle()
        said = [text for role, text in await texts(session) if role == "user"]
        assert said[:2] == ["first", "direct"]
        assert sorted(said[2:]) == ["F", "p", "s"]


async def test_a_prompt_with_the_id_of_a_held_one_runs_it(place: str) -> None:
    async with busy(place) as (session, model, waiting, running):
        await session.submit("again", when_busy="follow_up", id="mine")
        await session.follow_up("other")
        id = session.id
        closing = asyncio.ensure_future(session.aclose())
        await asyncio.sleep(0)
        waiting.release()
        await closing
    async with Session.open(id=id, store=place, model=ScriptedModel(default="ok")) as session:
        assert (await session.prompt("again", id="mine")).text == "ok"
        assert [each.text for each in session.queue.list()] == ["other"]


async def test_what_is_removed_first_of_all_stays_removed(place: str) -> None:
    async with busy(place) as (session, model, waiting, running):
        await session.follow_up("a")
        await session.follow_up("b")
        id = session.id
        closing = asyncio.ensure_future(session.aclose())
        await asyncio.sleep(0)
        waiting.release()
        await closing
    async with Session.open(id=id, store=place) as session:
        await session.queue.remove(session.queue.list()[0].id)
        assert [each.text for each in session.queue.list()] == ["b"]
    async with Session.open(id=id, store=place) as session:
        assert [each.text for each in session.queue.list()] == ["b"]


async def test_a_service_runs_what_was_queued(place: str) -> None:
    async with busy(place) as (session, model, waiting, running):
        for text in "abc":
            await session.follow_up(text)
        id = session.id
        closing = asyncio.ensure_future(session.aclose())
        await asyncio.sleep(0)
        waiting.release()
        await closing
    model = ScriptedModel(default="ok")
    async with Session.open(id=id, store=place, model=model, run_queue=True) as session:
        await session.wait_idle()
        assert [text for role, text in await texts(session) if role == "user"] == ["first", "a", "b", "c"]
        assert asked(model.requests[0])[-1] == ("user", "a")
        assert session.queue.list() == []


async def test_the_queue_does_not_run_without_a_model(place: str) -> None:
    async with busy(place) as (session, model, waiting, running):
        await session.follow_up("a")
        id = session.id
        closing = asyncio.ensure_future(session.aclose())
        await asyncio.sleep(0)
        waiting.release()
        await closing
    with pytest.raises(InvalidInput, match="model"):
        await Session.open(id=id, store=place, run_queue=True)
    async with Session.open(id=id, store=place) as session:
        with pytest.raises(InvalidInput, match="model"):
            await session.queue.run()
        assert [each.held for each in session.queue.list()] == [True]
        assert (await session.prompt("x", model=ScriptedModel(["fine"]))).text == "fine"


@pytest.mark.req("S2-11a")
async def test_a_stricter_turn_leaves_no_body_in_the_queue(tmp_path: Any) -> None:
    path = tmp_path / "s.db"
    async with busy(str(path)) as (session, model, waiting, running):
        handle = await session.submit("tops3cret", when_busy="follow_up", retention="none", id="k")
        await session.flush()
        files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"tops3cret" not in files
        session.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await handle.reply()
