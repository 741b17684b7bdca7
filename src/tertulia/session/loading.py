"""Reading a conversation's records from the store, and catching up when a claim is won."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from ..records.codec import decode_lenient
from ..records.ids import ConversationId
from ..records.record import AnyRecord, Totals, TurnEnd, TurnStart
from ..store.base import Store
from ..transcript.path import Segment, segments
from ..transcript.repair import repair
from ..transcript.stats import plus, totals
from .desk import Desk
from .journal import Journal, Put, paid
from .log import Log

CHUNK = 1000


async def read(
    log: Log | None, store: Store, path: Sequence[Segment], after: int = 0
) -> AsyncGenerator[list[AnyRecord], None]:
    """The records of a path behind a seq, in chunks. What only memory has, memory gives."""
    hidden = Hidden(log) if log is not None else None
    while path:
        rows = await store.read(path, after=after, limit=CHUNK)
        last = rows[-1].seq if len(rows) == CHUNK else None
        records = [decode_lenient(row.data, row.seq) for row in rows]
        if log is not None and hidden is not None and log.withheld:
            records = _with_withheld(log, path, [hidden.counted(record) for record in records], after, last)
        if records:
            yield records
        if last is None:
            return
        after = last


def _with_withheld(
    log: Log, path: Sequence[Segment], stored: Sequence[AnyRecord], after: int, last: int | None
) -> list[AnyRecord]:
    """These records, and what memory has between them and in their place."""
    found = {record.seq: record for record in stored}
    spans: dict[tuple[ConversationId, int], tuple[int, int]] = {
        (part.conversation, part.branch): (
            max(part.after, after),
            part.until if last is None else min(part.until, last),
        )
        for part in path
    }
    for seq, held in log.withheld.items():
        low, high = spans.get(held.branch, (0, 0))
        if low < seq <= high:
            found[seq] = held.record
    return [found[seq] for seq in sorted(found)]


class Hidden:
    """What the store has nothing of, to count its records as memory does: with what is hidden before them.

    No branch is taken up again once it was left, so the branch of a record is the first that reaches as far.
    """

    def __init__(self, log: Log) -> None:
        self._paths: list[tuple[int, list[AnyRecord]]] = []
        if all(held.kept for held in log.withheld.values()):
            return
        own = [row for row in log.branches.values() if row.conversation == log.id]
        for row in sorted(own, key=lambda row: row.n):
            found = log.hidden(segments(log.branches.values(), log.id, row.n))
            self._paths.append((max(row.last, log.last if row.n == log.row.active else 0), found))

    def counted(self, record: AnyRecord) -> AnyRecord:
        if not self._paths or not (record.is_entry or isinstance(record, TurnStart)):
            return record
        found = next((found for last, found in self._paths if record.seq <= last), [])
        before = totals(each for each in found if each.seq < record.seq)
        if isinstance(record, TurnStart):
            return msgspec.structs.replace(record, totals=plus(record.totals, before))
        return msgspec.structs.replace(record, index=(record.index or 0) + before.entries)


async def stored(log: Log, after: int = 0) -> list[AnyRecord]:
    """The active path as the store has it: what it is read for is no way around what a retention keeps out."""
    return [record async for chunk in read(None, log.store, log.path(), after) for record in chunk]


async def kept_totals_at(log: Log, at: int) -> Totals:
    """The totals of what the store has of the active path, up to a seq."""
    return totals(record for record in await stored(log) if record.seq <= at)


async def records(log: Log) -> list[AnyRecord]:
    """All records of the active path, as it stands now."""
    path, last = log.path(), log.last
    found = [record async for chunk in read(log, log.store, path) for record in chunk]
    return found if last == log.last else [record for record in found if record.seq <= last]


async def load(log: Log) -> None:
    """Bring the active path into memory. What is committed meanwhile is read as well."""
    while not log.loaded:
        path, last = log.path(), log.last
        found = [record async for chunk in read(log, log.store, path) for record in chunk]
        if (path, last) == (log.path(), log.last):
            log.load(found)


async def claimed(journal: Journal) -> None:
    """A claim repairs what a crash left, so it comes before a look at what stands there."""
    if journal.owner.fence is None:
        await asyncio.shield(journal.owner.claim())
        await journal.flush()


async def ready(desk: Desk) -> None:
    """What a turn builds on: a claim mends what a crash left, and the log is in memory."""
    journal = desk.journal
    if desk.moving is not None:
        await asyncio.wait([desk.moving])
    if journal.owner.fence is None and not journal.creation:
        await asyncio.shield(journal.owner.claim())
        await journal.settled()
    await load(desk.log)


async def open_tail(log: Log) -> list[AnyRecord]:
    """The records behind the last turn_end of the active path: all that a repair has to look at."""
    tail: list[AnyRecord] = []
    before = 0
    while True:
        rows = await log.store.read(log.path(), after=before, limit=64, reverse=True)
        for row in rows:
            record = decode_lenient(row.data, row.seq)
            if isinstance(record, TurnEnd):
                return tail[::-1]
            tail.append(record)
        if len(rows) < 64:
            return tail[::-1]
        before = rows[-1].seq


async def catch_up(desk: Desk) -> None:
    """A claim was won: take over what others wrote until then, and mend what a crash left open."""
    log = desk.log
    if desk.journal.creation:
        return  # it is not in the store yet
    opened = await log.store.open(log.id)
    log.adopt(opened)
    await desk.adopt(opened.inbox)
    tail = await open_tail(log)
    if any(record.turn == owed.turn for owed in desk.journal.owed for record in tail):
        return  # the end of that turn is on its way
    paid(desk.journal)
    drafts = repair(tail, log.branch.at)
    if drafts:
        desk.journal.mend(Put(drafts))
