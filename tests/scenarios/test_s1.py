"""Streaming input and output, and how conversations end."""

import asyncio
import weakref
from typing import Any

import pytest

from tertulia import Host, Session
from tertulia.records.errors import (
    ConversationClosed,
    ConversationNotFound,
    NotFound,
    Overloaded,
    PromptCancelled,
    SessionHeld,
    TertuliaError,
)
from tertulia.session.loop import LoopEngine
from tertulia.testing import EventRecorder, ScriptedModel, call, hold
from tests.scenarios.kit import add, sources, talk, texts


@pytest.mark.req("S1-001c", "S1-002a")
async def test_messages_are_sent_ahead_and_run_in_order(store: Any) -> None:
    waiting = hold("1")
    async with talk(store, waiting, Overloaded("bad luck"), "3") as (session, model):
        stream = session.output_stream()
        for text in ("one", "two", "three"):
            receipt = await session.send_message(text)
        assert receipt.status == "queued"  # all were taken before the first was answered
        await waiting.until_reached()
        assert sources(session.pending_messages()) == [
            ("follow_up", "two", "queued"), ("follow_up", "three", "queued"),
        ]  # fmt: skip
        waiting.release()
        await session.wait_idle()
        await session.aclose()
        events = [event async for event in stream]  # ends with the session
    assert [event.data["text"] for event in events if event.type == "message"] == [
        "one", "1", "two", "three", "3",
    ]  # fmt: skip
    assert [event.data["status"] for event in events if event.type == "done"] == [
        "completed", "failed", "completed",
    ]  # fmt: skip
    assert [event.data["code"] for event in events if event.type == "error"] == ["overloaded"]


@pytest.mark.req("S1-001c")
async def test_the_output_stream_begins_when_it_is_made(store: Any) -> None:
    async with talk(store, "before", "after") as (session, _):
        await session.prompt("a")
        stream = session.output_stream()
        await session.prompt("b")
        await session.root.close()
        seen = [event.data["text"] async for event in stream if event.type == "message"]
        assert seen == ["b", "after"]


@pytest.mark.req("S1-002b")
async def test_the_engine_waits_for_input_until_the_queue_closes(store: Any) -> None:
    async with talk(store, "later") as (session, model):
        await session.wait_idle()
        assert (model.requests, session.root.busy) == ([], False)
        async with EventRecorder(session) as seen:
            await session.send_message("now")
            await seen.wait_for("done")
        await session.wait_idle()
        await session.root.close()
        assert len(model.requests) == 1
        with pytest.raises(ConversationClosed):
            await session.send_message("too late")


@pytest.mark.req("S1-005a")
async def test_a_start_that_fails_is_an_error_of_its_message(store: Any) -> None:
    class Broken(LoopEngine):
        def __init__(self) -> None:
            self.tries = 0

        async def run(self, turn: Any) -> Any:
            self.tries += 1
            if self.tries == 1:
                raise OSError("no such program")
            return await super().run(turn)

    async with talk(store, "fine", engine=Broken()) as (session, _):
        with pytest.raises(TertuliaError, match="no such program") as raised:
            await session.prompt("first")
        assert isinstance(raised.value.__cause__, OSError)
        assert (await session.prompt("second")).text == "fine"


@pytest.mark.req("S1-005a")
async def test_a_session_that_nobody_used_leaves_nothing(place: str) -> None:
    async with talk(place) as (session, _):
        id = session.id
    async with await Host.open(store=place) as host:
        assert (await host.list()).rows == ()
        with pytest.raises(NotFound):
            await host.load(id)


@pytest.mark.req("S1-005b", "S2-10b")
@pytest.mark.parametrize("how", ["context", "aclose", "conversation"])
async def test_draining_finishes_the_current_message_and_holds_the_rest(place: str, how: str) -> None:
    waiting = hold("done")
    model = ScriptedModel([waiting], default="ok")
    session = await Session.open(store=place, model=model)
    stream = session.output_stream()
    running = asyncio.ensure_future(session.prompt("current"))
    await waiting.until_reached()
    queued = asyncio.ensure_future(session.prompt("queued", when_busy="follow_up"))
    await asyncio.sleep(0)
    await session.send_message("also")
    end = {
        "context": lambda: session.__aexit__(None, None, None),
        "aclose": session.aclose,
        "conversation": lambda: session.root.close(mode="drain"),
    }[how]
    closing = asyncio.ensure_future(end())
    with pytest.raises(PromptCancelled):
        await queued
    assert not running.done()
    with pytest.raises(ConversationClosed):
        await session.prompt("refused")
    waiting.release()
    assert (await running).text == "done"
    await closing
    assert [event.type async for event in stream][-1] in ("done", "conversation")
    assert len(model.requests) == 1
    id = session.id
    await asyncio.gather(session.aclose(), session.aclose("cancel"))
    async with Session.open(id=id, store=place, model=model) as session:
        assert [(each.text, each.held) for each in session.queue.list()] == [("queued", True), ("also", True)]


@pytest.mark.req("S1-005b")
@pytest.mark.parametrize("how", ["error", "cancel"])
async def test_an_exception_or_cancel_stops_the_current_message(store: Any, how: str) -> None:
    waiting = hold()
    session = await Session.open(store=store, model=ScriptedModel([waiting]))
    running = asyncio.ensure_future(session.prompt("current"))
    await waiting.until_reached()
    if how == "error":
        with pytest.raises(KeyError):
            async with session:
                raise KeyError("mine")
    else:
        await session.aclose("cancel")
    with pytest.raises(PromptCancelled):
        await running
    await session.aclose()


@pytest.mark.req("S1-005b")
async def test_a_drain_that_takes_too_long_cancels(store: Any) -> None:
    waiting = hold()
    session = await Session.open(store=store, model=ScriptedModel([waiting]))
    running = asyncio.ensure_future(session.prompt("for ever"))
    await waiting.until_reached()
    await session.aclose(timeout=0.01)
    with pytest.raises(PromptCancelled):
        await running


@pytest.mark.req("S1-005c", "S1-005d")
async def test_a_deleted_conversation_is_gone_and_says_so(store: Any) -> None:
    waiting = hold()
    async with talk(store, "a", waiting) as (session, _):
        conversation = await session.open_conversation()
        await conversation.prompt("x")
        running = asyncio.ensure_future(conversation.prompt("y"))
        await waiting.until_reached()
        own, whole = conversation.output_stream(), session.events()
        whole.start()
        await session.delete_conversation(conversation.id)
        with pytest.raises(PromptCancelled):
            await running
        events = [event async for event in own]  # it ends
        assert [event.type for event in events][-1] == "deleted"
        assert events[-1].conversation_id == conversation.id
        with pytest.raises(ConversationClosed):
            await conversation.prompt("z")
        with pytest.raises(ConversationNotFound):
            session.conversation(conversation.id)
        for id in (conversation.id, "conv_unknown"):
            with pytest.raises(ConversationNotFound):
                await session.delete_conversation(id)
        await session.aclose()
        assert [e.conversation_id for e in [e async for e in whole] if e.type == "deleted"] == [
            conversation.id
        ]


@pytest.mark.req("S1-005d")
async def test_deleting_a_parent_keeps_what_a_fork_reaches(place: str, tmp_path: Any) -> None:
    async with talk(place, "shared answer", "parent-only", default="ok") as (session, _):
        parent = await session.open_conversation()
        await parent.prompt("shared question")
        child = await parent.fork()
        await parent.prompt("unshared parent words")
        await session.delete_conversation(parent.id)
        assert await texts(child) == [("user", "shared question"), ("assistant", "shared answer")]
        await child.prompt("more")
        id, child_id, parent_id = session.id, child.id, parent.id
    host = await Host.open(store=place)
    async with host:
        assert parent_id not in {row.id for row in (await host.list()).rows}
        with pytest.raises(ConversationNotFound):
            await host.load(parent_id)
        loaded = await host.load(child_id, model=ScriptedModel(["still"]))
        assert [text for _, text in await texts(loaded)] == ["shared question", "shared answer", "more", "ok"]
        assert (await loaded.prompt("again")).text == "still"
        await host.delete(child_id)
        assert {row.id for row in (await host.list()).rows} <= {loaded.session.root.id}  # type: ignore[attr-defined]
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for words in (b"unshared parent words", b"parent-only", b"shared question", b"shared answer"):
        assert words not in stored
    assert id


@pytest.mark.req("S1-005c")
async def test_the_root_can_be_deleted_too(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await session.prompt("x")
        other = await session.open_conversation()
        await session.delete_conversation(session.root.id)
        with pytest.raises(ConversationClosed):
            await session.prompt("y")
        assert (await other.prompt("z")).text == "ok"
        third = await session.open_conversation()
        assert (await third.prompt("z")).text == "ok"
        for each in (other, third):
            await session.delete_conversation(each.id)
        last = await session.open_conversation()
        assert (await last.prompt("still")).text == "ok"


async def test_a_session_is_found_by_any_conversation_also_without_its_root(place: str) -> None:
    async with talk(place, default="ok") as (session, _):
        used = await session.open_conversation()
        await used.prompt("x")
        ids = session.id, used.id
    for id in ids:
        async with talk(place, default="ok", id=id) as (session, _):
            assert session.id == ids[0]
            assert len(await session.conversation(used.id).transcript()) == 2
            assert list(await session.transcript()) == []
    async with talk(place, default="ok", id=ids[0]) as (session, _):
        await session.prompt("the root at last")
        await session.open_conversation()
    async with talk(place, id=ids[1]) as (session, _):
        assert len(await session.transcript()) == 2


@pytest.mark.req("S1-005c")
async def test_a_closed_conversation_can_be_deleted(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        conversation = await session.open_conversation()
        await conversation.prompt("x")
        await session.close_conversation(conversation.id)
        await session.delete_conversation(conversation.id)
        with pytest.raises(ConversationNotFound):
            await session.delete_conversation(conversation.id)


async def test_a_host_creates_loads_lists_and_deletes(place: str) -> None:
    model = ScriptedModel(default="ok")
    async with await Host.open(store=place, model=model) as host:
        one, two = await host.create(), await host.create(model=ScriptedModel(default="other"))
        await one.prompt("a")
        assert (await two.prompt("b")).text == "other"
        await two.rename("Second thoughts")
        rows = (await host.list()).rows
        assert [row.id for row in rows] == [two.id, one.id]
        assert [row.id for row in (await host.list(search="SECOND")).rows] == [two.id]
        assert await host.load(one.id) is one
        await two.archive()
        assert [row.id for row in (await host.list()).rows] == [one.id]
        assert [row.id for row in (await host.list(archived=True)).rows] == [two.id]
        ids = one.id, two.id
    async with await Host.open(store=place, model=model) as host:
        first, again = await asyncio.gather(host.load(ids[0]), host.load(ids[0]))
        assert first is again
        assert await texts(first) == [("user", "a"), ("assistant", "ok")]
        await first.close()
        reopened = await host.load(ids[0])  # what a closed conversation's error tells to do
        assert (await reopened.prompt("more")).text == "ok"
        await host.close(ids[0])
        third = await host.load(ids[0])
        assert len(await third.transcript()) == 4
        await host.delete(ids[1])
        with pytest.raises(ConversationNotFound):
            await host.load(ids[1])
        for bad in ("", "nope", 5):
            with pytest.raises(TertuliaError):
                await host.load(bad)  # type: ignore[arg-type]


async def test_one_session_of_an_id_at_a_time(tmp_path: Any) -> None:
    place = tmp_path / "s.db"
    model = ScriptedModel(default="ok")
    async with Session.open(store=place, model=model) as session:
        await session.prompt("x")
        id = session.id
        with pytest.raises(SessionHeld):
            await Session.open(id=id, store=place)
    results = await asyncio.gather(
        *(Session.open(id=id, store=place, model=model) for _ in range(3)), return_exceptions=True
    )
    opened = [each for each in results if isinstance(each, Session)]
    assert len(opened) == 1
    assert all(isinstance(each, SessionHeld) for each in results if each not in opened)
    assert (await opened[0].prompt("y")).text == "ok"
    await opened[0].aclose()


@pytest.mark.req("S2-10a", "S2-10b")
async def test_open_message_close(store: Any) -> None:
    waiting = hold()
    async with talk(store, [call("add", a=1, b=2)], "three", waiting, tools=[add]) as (session, _):
        conversation = await session.open_conversation()
        assert session.conversation(conversation.id) is conversation
        reply = await conversation.prompt("sum")
        assert (reply.text, reply.tool_calls, reply.usage.requests) == ("three", 1, 2)
        assert reply.elapsed >= 0
        assert reply.turn_id.startswith("turn_")
        assert hasattr(reply, "trace_id")
        running = asyncio.ensure_future(conversation.prompt("wait"))
        await waiting.until_reached()
        queued = asyncio.ensure_future(conversation.prompt("behind", when_busy="follow_up"))
        await asyncio.sleep(0)
        await session.close_conversation(conversation.id)
        for waiter in (running, queued):
            with pytest.raises(PromptCancelled):
                await waiter
        await session.close_conversation(conversation.id)
        await conversation.close()
        change: Any
        for change in (
            lambda: conversation.prompt("x"), lambda: conversation.submit("x"), lambda: conversation.steer("x"),
            lambda: conversation.follow_up("x"), lambda: conversation.send_message("x"), lambda: conversation.fork(),
            lambda: conversation.resume([]), lambda: conversation.rename("x"), lambda: conversation.queue.run(),
        ):  # fmt: skip
            with pytest.raises(ConversationClosed):
                await change()
        for name in ("register", "unregister"):
            with pytest.raises(ConversationClosed):
                getattr(conversation, name)("add")
        with pytest.raises(ConversationNotFound):
            session.conversation(conversation.id)
        assert conversation not in session.conversations
        assert [text for _, text in await texts(conversation)][:3] == ["sum", "", "3"]  # what is stored stays


@pytest.mark.req("S2-10a")
async def test_a_close_that_has_to_be_forced_is_recorded(store: Any) -> None:
    class Stubborn(LoopEngine):
        entered = asyncio.Event()
        leave = asyncio.Event()

        async def run(self, turn: Any) -> Any:
            self.entered.set()
            while not self.leave.is_set():
                try:
                    await self.leave.wait()
                except asyncio.CancelledError:
                    continue
            raise asyncio.CancelledError

    engine = Stubborn()
    engine.entered, engine.leave = asyncio.Event(), asyncio.Event()
    async with talk(store, "fine") as (session, _):
        conversation = await session.open_conversation(engine=engine)
        running = asyncio.ensure_future(conversation.prompt("x"))
        async with asyncio.timeout(10):
            await engine.entered.wait()
        try:
            async with EventRecorder(conversation) as seen:
                await session.close_conversation(conversation.id, timeout=0.01)
            with pytest.raises(PromptCancelled):
                await running
            assert "close_forced" in str([event.data for event in seen.of("conversation")])
            assert (await session.prompt("the slot is free")).text == "fine"
        finally:
            engine.leave.set()


async def test_nothing_keeps_a_closed_conversation(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        conversation = await session.open_conversation()
        await conversation.prompt("x")
        await conversation.close()
        ref = weakref.ref(conversation)
        del conversation
        await asyncio.sleep(0)
        import gc

        gc.collect()
        assert ref() is None
        assert len(session.conversations) == 1
