"""Events: their envelope and order, live and in replay, for joiners and for slow readers."""

import asyncio
from typing import Any

import pytest

from tertulia import Session
from tertulia.models.base import Finished, ReasoningPart, Thought
from tertulia.records.errors import InvalidInput, Overloaded, PromptCancelled, TertuliaError
from tertulia.records.event import MessageEvent, TextDelta
from tertulia.testing import EventRecorder, ScriptedModel, Stream, call, hold
from tests.scenarios.kit import add, shape, talk, texts


def plain(events: Any) -> tuple[list[Any], dict[Any, str]]:
    """What must be equal live and in replay: the durable events, and the text of each message that became one."""
    durable = [event for event in events if event.seq is not None]
    messages = {e.message_id for e in durable if e.type == "message"}
    texts: dict[Any, str] = {}
    for event in events:
        if event.type == "text" and event.message_id in messages:
            texts[event.message_id] = texts.get(event.message_id, "") + event.text
        assert event.type != "text" or event.text.strip() or event.message_id in texts
    return durable, texts


async def every_kind(session: Session, model: ScriptedModel) -> None:
    """Turns of every kind: text, tools, whitespace, thoughts, a failure, a cancel, queue, steer, branch, label."""
    model.add(
        "plain", ["two ", "parts"], ["before", call("add", a=1, b=2), call("nope")], "after",
        Stream([" \n", call("add", a=0, b=0)]), Stream(["\n", "  x", " y"]),
        Stream([Thought("hm"), "thought", Finished(reasoning=(ReasoningPart(provider="p", blob="b", text="t"),))]),
        Overloaded("no"), Stream(["partial", Overloaded("late")]), Stream([" ", Overloaded("blank")]),
    )  # fmt: skip
    for n in range(5):
        await session.prompt(f"p{n}")
    for n in range(3):
        with pytest.raises(Overloaded):
            await session.prompt(f"f{n}")
    waiting, blank = hold(), hold()
    model.add(
        Stream(["cut ", waiting]), Stream(["  ", blank]), [call("add", a=5, b=5)], "steered", "followed"
    )
    for each in (waiting, blank):
        running = asyncio.ensure_future(session.prompt("cancelled"))
        await each.until_reached()
        await session.follow_up("dropped")
        session.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await running
    running = asyncio.ensure_future(session.prompt("with company"))
    await asyncio.sleep(0)
    await session.steer("mind this")
    await session.follow_up("and then")
    await running
    await session.wait_idle()
    point = (await session.forkable_user_messages())[1].record_id
    await session.label(point, "here")
    await session.rename("A title")
    end = next(r for r in await session.records() if r.type == "turn_end")
    await session.fork()
    await session.branch(f"{session.root.id}:{end.seq}")
    model.add("on the branch", "resumed")
    await session.prompt("again")
    await session.resume((await session.transcript())[:2])
    await session.prompt("last")


@pytest.mark.req("S2-14c", "S2-09a", "S2-11b", "S4-01c")
async def test_replay_equals_what_was_live(store: Any) -> None:
    async with talk(store, tools=[add]) as (session, model):
        async with EventRecorder(session.root, since=0) as live, EventRecorder(session, since=0) as whole:
            await every_kind(session, model)
            last = session.root._log.last
            await live.wait_for(lambda e: e.seq == last)
            await whole.wait_for(lambda e: e.seq == last and e.conversation_id == session.root.id)
        replayed = await collect(session.root.events(0), last)
        assert plain(replayed) == plain(live.events)
        assert [e.seq for e in replayed if e.seq is not None] == list(range(1, last + 1))
        own = [event for event in whole.events if event.conversation_id == session.root.id]
        assert plain(own) == plain(live.events)
        check_envelopes(session, [*live.events, *whole.events, *replayed])
        check_turns(live.events)
        transcript = shape(await session.transcript())
        id = session.id
    if store is not None:
        async with Session.open(id=id, store=store) as session:
            assert plain(await collect(session.root.events(0), last)) == plain(live.events)
            assert shape(await session.transcript()) == transcript


async def collect(stream: Any, last: int) -> list[Any]:
    events = []
    async with asyncio.timeout(10), stream:
        async for event in stream:
            events.append(event)
            if event.seq == last:
                break
    return events


def check_envelopes(session: Session, events: list[Any]) -> None:
    for event in events:
        assert event.session_id == session.id, event
        assert event.ts > 0, event
        assert event.conversation_id, event
        assert event.task_id == event.turn_id == event.sub_id
        assert (event.entry_index is not None) == (event.source == "transcript"), event
        if event.type in ("done", "error", "usage", "thought", "state") and not getattr(
            event, "item_id", None
        ):
            assert event.turn_id, event
        if event.type == "queue":
            assert event.turn_id is None
            assert event.item_id


def check_turns(events: list[Any]) -> None:
    """turn_start precedes all of its turn; exactly one done ends it, and an error precedes a failed one."""
    open_turns: list[str] = []
    done: list[str] = []
    for event in events:
        turn = event.turn_id
        if event.type == "turn_start":
            assert turn not in open_turns
            open_turns.append(turn)
        elif turn is not None and event.type != "state":
            assert turn in open_turns, event
            assert turn not in done, event
        if event.type == "done":
            done.append(turn)
            assert event.status in ("completed", "cancelled", "timed_out", "failed")
            if event.status == "failed":
                before = [e for e in events if e.turn_id == turn and e.type != "state"]
                assert before[before.index(event) - 1].type == "error"
    assert open_turns == done


@pytest.mark.req("S4-01a", "S4-01b")
async def test_text_tool_text_gives_several_iterations(store: Any) -> None:
    script = [["first", call("add", a=1, b=2)], [call("add", a=3, b=4)], "second"]
    async with talk(store, *script, tools=[add]) as (session, _), EventRecorder(session) as seen:
        reply = await session.prompt("go")
        await seen.wait_for("done")
        shown = ("iteration_start", "text", "tool_call", "tool_result", "done")
        assert [event.type for event in seen.of(*shown)] == [
            "iteration_start", "text", "tool_call", "tool_result", "iteration_start", "tool_call", "tool_result",
            "iteration_start", "text", "done",
        ]  # fmt: skip
        assert {event.turn_id for event in seen.of(*shown)} == {reply.turn_id}
        results, calls = seen.of("tool_result"), seen.of("tool_call")
        assert [e.data["tool_call_id"] for e in results] == [e.data["tool_call_id"] for e in calls]
        stored = [e.call_id for e in await session.transcript() if e.type == "tool_result"]
        assert stored == [e.data["tool_call_id"] for e in results]


@pytest.mark.req("S4-01c", "S4-01a")
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "timed_out"])
async def test_a_turn_ends_with_one_done(store: Any, status: str) -> None:
    waiting = hold(Overloaded("bad") if status == "failed" else "fine")
    async with talk(store, waiting) as (session, _), EventRecorder(session) as seen:
        options: dict[str, Any] = {"turn_timeout": 0.01} if status == "timed_out" else {}
        running = asyncio.ensure_future(session.prompt("x", **options))
        await waiting.until_reached()
        if status == "cancelled":
            session.cancel_active_prompt()
        elif status != "timed_out":
            waiting.release()
        await asyncio.gather(running, return_exceptions=True)
        await seen.wait_for("done")
        assert [event.data["status"] for event in seen.of("done")] == [status]
        assert len(seen.of("error")) == (status == "failed")
        assert len({event.turn_id for event in seen.events if event.turn_id}) == 1


@pytest.mark.req("S2-14c")
@pytest.mark.parametrize("retention", ["headers_only", "none"])
async def test_replay_shows_what_the_policy_kept(place: str, retention: str) -> None:
    async with talk(place, tools=[add], retention=retention) as (session, model):
        async with EventRecorder(session.root, since=0) as live:
            await every_kind(session, model)
            last = session.root._log.last
            await live.wait_for(lambda e: e.seq == last)
        assert plain(await collect(session.root.events(0), last)) == plain(live.events)  # memory has it all
        stats = await session.stats()
        assert stats.total_entries == len(await session.transcript())
        id = session.id
    async with Session.open(id=id, store=place) as session:
        stored = await collect(session.root.events(0), last)
        kinds = {event.type for event in stored}
        if retention == "none":
            assert kinds <= {"turn_start", "done", "error"}
        else:
            assert {"message", "tool_call", "tool_result"} <= kinds
            assert "plain" not in str(stored)
            assert [e.seq for e in stored if e.seq is not None] == list(range(1, last + 1))
        check_envelopes(session, stored)


async def test_a_joiner_gets_the_open_message_so_far(store: Any) -> None:
    one, two = hold(), hold()
    async with talk(store, "before", Stream(["Once ", "upon ", one, "a ", two, "time"])) as (session, _):
        await session.prompt("first")
        running = asyncio.ensure_future(session.prompt("tell"))
        await one.until_reached()
        async with (
            EventRecorder(session.root) as now,
            EventRecorder(session.root, since=0) as all_of_it,
            EventRecorder(session) as whole,
        ):
            if True:
                await now.wait_for("text")
                assert [(e.type, e.data.get("text")) for e in now.events] == [
                    ("iteration_start", None), ("text", "Once upon "),
                ]  # fmt: skip
                one.release()
                await two.until_reached()
                two.release()
                reply = await running
                for each in (now, all_of_it, whole):
                    await each.wait_for(lambda e: e.type == "done" and e.turn_id == reply.turn_id)
        for each in (now, all_of_it, whole):
            own = [e for e in each.events if e.turn_id == reply.turn_id]
            assert "".join(e.text for e in own if isinstance(e, TextDelta)) == "Once upon a time"
            assert [e.text for e in own if isinstance(e, MessageEvent) and e.role == "assistant"] == [
                reply.text
            ]
            assert sum(e.type == "iteration_start" for e in own) == 1


@pytest.mark.parametrize("when", ["message", "done", "tool_call"])
async def test_whoever_joins_on_an_event_gets_nothing_twice(store: Any, when: str) -> None:
    found: list[Any] = []
    script = [["look", call("add", a=1, b=1)], "the end"]
    async with talk(store, *script, tools=[add]) as (session, _):
        async with session.root.events() as stream:
            running = asyncio.ensure_future(session.prompt("go"))
            async for event in stream:
                if event.type == when and event.data.get("role") != "user":
                    break
            async with EventRecorder(session.root, since=0) as seen:
                await running
                await seen.wait_for("done")
                found = list(seen.events)
        said = [event.text for event in found if isinstance(event, TextDelta)]
        assert said == ["look", "the end"]
        assert sum(event.type == "iteration_start" for event in found) == 2
        seqs = [event.seq for event in found if event.seq is not None]
        assert seqs == list(range(1, session.root._log.last + 1))


async def test_a_cursor_goes_on_without_gap_or_double(store: Any) -> None:
    """Readers come and go while turns are written; each reads everything exactly once."""
    async with talk(store, default=["a ", "b ", "c"], tools=[add]) as (session, _):
        other = await session.open_conversation()

        async def write() -> None:
            for n in range(12):
                await asyncio.gather(session.prompt(f"p{n}"), other.prompt(f"q{n}"))
                if n % 4 == 3:
                    await session.fork()

        async def read(source: Any, take: int, until: int) -> list[Any]:
            seen: list[Any] = []
            cursor = 0
            while sum(e.type == "done" for e in seen if e.seq) < until:
                async with source.events(cursor) as stream:
                    for _ in range(take):
                        seen.append(await anext(stream))
                        cursor = stream.cursor
                        if seen[-1].type == "done":
                            break
            return seen

        writing = asyncio.ensure_future(write())
        async with asyncio.timeout(30):
            single, whole = await asyncio.gather(read(session.root, 7, 12), read(session, 11, 24))
            await writing
        seqs = [e.seq for e in single if e.seq is not None]
        assert seqs == list(range(1, len(seqs) + 1))
        for id in (session.root.id, other.id):
            durable = [e.seq for e in whole if e.seq is not None and e.conversation_id == id]
            assert durable == sorted(set(durable))
            assert sum(e.type == "done" and e.conversation_id == id for e in whole) == 12


async def test_a_session_cursor_outlives_the_process(place: str) -> None:
    async with talk(place, default="ok") as (session, _):
        other = await session.open_conversation()
        async with session.events(0) as stream:
            await session.prompt("a")
            await other.prompt("b")
            seen = []
            async for event in stream:
                seen.append(event)
                if event.type == "done" and event.conversation_id == other.id:
                    break
            cursor, id = stream.cursor, session.id
        await session.prompt("c")
    async with talk(place, default="ok", id=id) as (session, _), session.events(cursor) as stream:
        await session.prompt("d")
        later = []
        async for event in stream:
            later.append(event)
            if sum(e.type == "done" for e in later) == 2:
                break
    said = [e.data["text"] for e in (*seen, *later) if e.type == "message" and e.data["role"] == "user"]
    assert said == ["a", "b", "c", "d"]


@pytest.mark.req("S2-14d")
@pytest.mark.parametrize("scope", ["conversation", "session"])
async def test_a_slow_reader_loses_deltas_and_no_entry(store: Any, scope: str) -> None:
    async with talk(store, default=["x"] * 50, tools=[add], retention="full") as (session, model):
        source: Any = session.root if scope == "conversation" else session
        model.add(*[[*["y", "z"] * 20, *[call("add", a=n, b=1) for n in range(150)]] for _ in range(6)])
        events: list[Any] = []
        async with asyncio.timeout(20), source.events() as stream:  # which reads nothing for now
            await session.prompt("many calls")
            await session.prompt("one more")
            assert len(stream._subscription.buffer) <= 1024
            while sum(e.type == "done" for e in events) < 2:
                events.append(await anext(stream))
        assert "resync" in [event.type for event in events]
        resync = next(e for e in events if e.type == "resync")
        assert (resync.session_id, resync.ts > 0) == (session.id, True)
        seqs = [e.seq for e in events if e.seq is not None]
        assert seqs == list(range(1, session.root._log.last + 1))


@pytest.mark.req("S2-14d")
async def test_a_reader_that_fell_behind_on_transient_events_misses_no_entry(store: Any) -> None:
    async with talk(store, "go", "next") as (session, _):
        await session.prompt("x")
        events: list[Any] = []
        async with asyncio.timeout(10), session.root.events() as stream:
            flood = (
                TextDelta(text="", conversation_id=session.root.id, message_id=str(n)) for n in range(1100)
            )
            session._shared.bus.publish_all(flood)
            first = session.root._log.last
            await session.prompt("x")
            while not events or events[-1].type != "done":
                events.append(await anext(stream))
        seqs = [event.seq for event in events if event.seq is not None]
        assert seqs == list(range(first + 1, session.root._log.last + 1))


async def test_text_of_a_full_buffer_is_merged_not_lost(store: Any) -> None:
    async with talk(store, Stream([str(n % 10) for n in range(5000)])) as (session, _):
        events: list[Any] = []
        async with session.root.events() as stream:
            reply = await session.prompt("count")
            while not events or events[-1].type != "done":
                events.append(await anext(stream))
        message = next(e for e in events if isinstance(e, MessageEvent) and e.role == "assistant")
        assert message.text == reply.text
        assert len(reply.text) == 5000


async def test_a_fork_shows_what_it_inherited_as_its_own(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await session.prompt("one")
        child = await session.fork()
        await child.prompt("two")
        await session.prompt("parent only")
        events = await collect(child.events(0), child._log.last)
        assert {event.conversation_id for event in events} == {child.id}
        assert [e.text for e in events if isinstance(e, MessageEvent)] == ["one", "ok", "two", "ok"]
        seqs = [e.seq for e in events if e.seq is not None]
        assert seqs == sorted(set(seqs))


async def test_a_reader_that_leaves_cancels_nothing(store: Any) -> None:
    waiting = hold("still here")
    async with talk(store, waiting) as (session, _):
        running = asyncio.ensure_future(session.prompt("x"))
        await waiting.until_reached()
        async with session.root.events():
            pass
        stream: Any = session.root.events().start()
        del stream
        waiting.release()
        assert (await running).text == "still here"
        assert session._shared.bus._of == {}


async def test_what_is_no_cursor_is_refused(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await session.prompt("x")
        bad: list[Any] = [-1, "5", 1.5, True, b"x", []]
        for since in bad:
            for source in (session, session.root):
                with pytest.raises(InvalidInput):
                    source.events(since)
        async with EventRecorder(session.root, since=10**9) as seen:  # from a future that never was
            await session.prompt("y")
        assert isinstance(seen.events, list)


async def test_streams_end_with_the_conversation(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        conversation = await session.open_conversation()
        await conversation.prompt("x")
        stream = conversation.events().start()
        await conversation.close()
        assert [event async for event in stream] == []
        assert [e.type async for e in conversation.events(0)][
            -1
        ] == "done"  # what is stored can still be read
        assert await texts(conversation) == [("user", "x"), ("assistant", "ok")]
        with pytest.raises(TertuliaError):
            await conversation.prompt("y")
