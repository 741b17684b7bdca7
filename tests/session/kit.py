"""A Session under test, and what has to hold of it whatever was done to it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tertulia.records.event import AnyEvent, Done, IterationStart, MessageEvent, TextDelta
from tertulia.records.parts import has_content
from tertulia.records.record import (
    AnyRecord,
    Approval,
    Message,
    ModelUsage,
    Queue,
    Reasoning,
    Record,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    Usage,
)
from tertulia.session.conversation import Conversation
from tertulia.session.session import Session
from tertulia.store.memory import MemoryStore
from tertulia.store.sqlite import SqliteStore
from tertulia.testing import EventRecorder, FakeClock, Hold, ScriptedModel
from tertulia.transcript.stats import totals
from tests.session.stores import GatedStore

KINDS = ("memory", "sqlite")
AGAIN = "are you there?"


@contextlib.asynccontextmanager
async def store_of(kind: str, folder: Path) -> AsyncIterator[GatedStore]:
    inner: Any = MemoryStore() if kind == "memory" else await SqliteStore.at(folder / "store.db")
    try:
        yield GatedStore(inner)
    finally:
        await inner.aclose()


class World:
    """A Session over a scripted model, its root watched from the start."""

    def __init__(self, store: GatedStore, model: ScriptedModel, clock: FakeClock, session: Session) -> None:
        self.store = store
        self.model = model
        self.clock = clock
        self.session = session
        self.conv = session.root
        self.seen = EventRecorder(session.root)
        self.written: list[AnyRecord] = []  # what was committed of the root since, in memory's order
        apply = self.conv._log.apply

        def note(records: Any, *rest: Any) -> None:
            apply(records, *rest)
            self.written.extend(records)

        self.conv._log.apply = note  # type: ignore[method-assign]

    def start(self, *args: Any, **kwargs: Any) -> "asyncio.Task[Any]":
        """A prompt in a task of its own."""
        return asyncio.create_task(self.conv.prompt(*args, **kwargs))

    def types(self) -> list[str]:
        """The types of the records on the active path, those of the queue left out."""
        return [r.type for r in self.written if not isinstance(r, Queue)]

    def results(self) -> list[tuple[str, str]]:
        return [(r.name, r.status) for r in self.written if isinstance(r, ToolResult)]

    def ends(self) -> list[tuple[str, str | None]]:
        return [(r.status, r.code) for r in self.written if isinstance(r, TurnEnd)]

    async def verify(self, *, unseen: int = 0) -> None:
        """The conversation works, its log is whole, its streams tell of it, and the store has the same.

        `unseen`: how many records went out live without their seq, because the store failed.
        """
        await verify(self, unseen)


@contextlib.asynccontextmanager
async def world(store: GatedStore, script: Iterable[Any] = (), **options: Any) -> AsyncIterator[World]:
    model, clock = ScriptedModel(script, default="ok"), FakeClock()
    session = await Session.open(**{"model": model, "store": store, "clock": clock, **options})
    made = World(store, model, clock, session)
    try:
        async with made.seen:
            yield made
    finally:
        store.heal()
        store.let_go()
        await session.aclose("cancel", 5.0)


async def verify(made: World, unseen: int = 0) -> None:
    conv, session = made.conv, made.session
    async with asyncio.timeout(10):
        if not conv._runner.closed:
            await conv.wait_idle()
            made.model.add("yes")
            assert str(await conv.prompt(AGAIN)) == "yes"
        await conv.flush()
        assert not session.tasks
        assert session.approvals.pending() == []
        if not conv._runner.closed:
            replayed = await replay(conv)
            await made.seen.wait_for(lambda event: event.seq == conv._log.last or conv._log.last == 0)
            check_events(made.seen.events, replayed, unseen)
        held = [item.text for item in conv.queue.list()]
        records, stats = await conv.records(), await conv.stats()
        check_records(records)
        assert_stats(stats, records)
        await session.aclose()
        found = await Session.open(id=session.id, store=made.store, model=made.model, clock=made.clock)
        try:
            assert list(await found.root.records()) == list(records)
            again = await found.root.stats()
            if held or not conv._runner.closed:
                assert [item.text for item in found.queue.list()] == held
            assert _settled(again) == _settled(stats)
        finally:
            await found.aclose()


def _settled(stats: Any) -> dict[str, Any]:
    fields = msgspec.structs.asdict(stats)
    del fields["pending_messages"], fields["pending_breakdown"]
    return fields


def assert_stats(stats: Any, records: Sequence[AnyRecord]) -> None:
    counted = totals(records)
    found = (
        stats.user_messages, stats.assistant_messages, stats.tool_calls, stats.tool_results, stats.total_entries,
        stats.usage, stats.cost, stats.last_updated_at or 0,
    )  # fmt: skip
    assert found == (
        counted.user_messages, counted.assistant_messages, counted.tool_calls, counted.tool_results, counted.entries,
        counted.usage, counted.cost, counted.updated,
    )  # fmt: skip


async def reached(held: Hold) -> None:
    """Until the model waits there."""
    async with asyncio.timeout(10):
        await held.reached.wait()


def messages(made: World) -> list[tuple[str, str, str]]:
    return [(r.role, r.text, r.status) for r in made.written if isinstance(r, Message)]


# ── the log ──


def check_records(records: Sequence[AnyRecord]) -> None:
    """One result per call and none without, turns that begin and end once, no empty answers, positions in order."""
    assert [record.seq for record in records] == sorted({record.seq for record in records})
    assert [record.ts for record in records] == sorted({record.ts for record in records})
    entries = [record for record in records if record.is_entry]
    assert [entry.index for entry in entries] == list(range(len(entries)))
    check_calls(records)
    check_turns(records)
    check_queue(records)
    check_approvals(records)
    check_usage(records)
    for record in records:
        assert not isinstance(record, Message) or has_content(record.parts)


def check_calls(records: Sequence[AnyRecord]) -> None:
    pending: list[str] = []
    for record in records:
        if isinstance(record, ToolCall):
            assert record.call_id not in pending
            pending.append(record.call_id)
        elif isinstance(record, ToolResult):
            assert record.call_id in pending, f"a second result, or one without a call: {record}"
            pending.remove(record.call_id)
        elif isinstance(record, TurnEnd):
            assert not pending, f"calls without a result: {pending}"
    assert not pending, f"calls without a result: {pending}"


def check_turns(records: Sequence[AnyRecord]) -> None:
    """Each turn is a stretch from its turn_start to its one turn_end; its entries stand inside."""
    current: str | None = None
    begun: set[str] = set()
    for record in records:
        if isinstance(record, TurnStart):
            assert current is None, f"{record.turn} began inside {current}"
            assert record.turn is not None
            assert record.turn not in begun
            current = record.turn
            begun.add(current)
        elif isinstance(record, TurnEnd):
            assert record.turn == current, f"the end of {record.turn} stands in {current}"
            current = None
        elif record.is_entry or isinstance(record, Reasoning):
            assert record.turn == current, f"{record.type} of {record.turn} stands in {current}"
    assert current is None, f"{current} has no end"


FOLLOWS: dict[str | None, set[str]] = {
    None: {"queued", "delivered", "dropped", "failed", "held"},
    "queued": {
        "held",
        "delivered",
        "dropped",
        "failed",
        "queued",
    },  # again: it was found after a crash, and released
    "held": {"queued", "dropped", "failed"},
}


def check_queue(records: Sequence[AnyRecord]) -> None:
    states: dict[str, str] = {}
    for record in records:
        if isinstance(record, Queue):
            before = states.get(record.item)
            assert record.state in FOLLOWS.get(before, set()), f"{record.item}: {record.state} after {before}"
            states[record.item] = record.state


def check_usage(records: Sequence[AnyRecord]) -> None:
    """A turn's end counts what its requests cost, also those whose answer was taken back."""
    for end in records:
        if isinstance(end, TurnEnd):
            own = [r.usage for r in records if isinstance(r, ModelUsage) and r.turn == end.turn]
            assert end.usage == sum(own, Usage()), f"{end.turn} says {end.usage}, its requests {own}"


def check_approvals(records: Sequence[AnyRecord]) -> None:
    """Each question is resolved, once, before its turn ends: no dialog stays open."""
    asked: list[str] = []
    for record in records:
        if isinstance(record, Approval) and record.phase == "asked":
            asked.append(record.approval)
        elif isinstance(record, Approval):
            assert record.approval in asked, f"{record.approval} is decided twice, or was never asked"
            asked.remove(record.approval)
        elif isinstance(record, TurnEnd):
            assert not asked, f"questions that were never resolved: {asked}"


# ── the streams ──


async def replay(conv: Conversation) -> list[AnyEvent]:
    """All events up to where the log stands."""
    last, found = conv._log.last, []
    async with conv.events(since=0) as stream:
        while last and (not found or found[-1].seq != last):
            found.append(await anext(stream))
    return found


def check_events(live: Sequence[AnyEvent], replayed: Sequence[AnyEvent], unseen: int) -> None:
    shown = [event for event in live if event.seq is not None]
    again = [event for event in replayed if event.seq is not None]
    missing = [event for event in again if event not in shown]
    assert len(missing) == unseen, missing
    assert shown == [event for event in again if event in shown]
    ends = Counter(event.turn_id for event in live if isinstance(event, Done))
    starts = Counter(event.turn_id for event in live if event.type == "turn_start")
    assert ends == starts, "each turn has one start and one done"
    check_texts(live)
    check_texts(replayed)


def check_texts(stream: Iterable[AnyEvent]) -> None:
    """What was shown of an answer, since it last began, is its text."""
    texts: list[str] = []
    begun: str | None = None
    for event in stream:
        if isinstance(event, IterationStart):
            texts, begun = [], event.message_id
        elif isinstance(event, TextDelta):
            assert event.message_id == begun
            texts.append(event.text)
        elif isinstance(event, MessageEvent) and event.role == "assistant":
            assert event.message_id == begun
            assert "".join(texts) == event.text


def record_of(records: Iterable[Record], kind: type[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]
