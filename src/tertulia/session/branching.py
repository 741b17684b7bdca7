"""Forks, branches and resume: rows that point into a path, never copies of it."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from ..records.errors import InvalidInput
from ..records.ids import ConversationId, SessionId
from ..records.record import AnyRecord, Branched, Totals, TurnEnd, TurnStart
from ..store.base import ConversationRow, Op, Opened, PutBranch, PutConversation
from ..transcript.path import BranchRow, Segment, complete_prefix, cut_before
from ..transcript.repair import check_snapshot
from ..transcript.retention import format as format_retention
from ..transcript.stats import count
from .journal import Journal, Put
from .loading import kept_totals_at, records
from .log import Cut, Log
from .shared import Setup


def new_conversation(
    id: ConversationId, session: SessionId, setup: Setup, now: int, parent: tuple[ConversationId, int] | None = None
) -> ConversationRow:  # fmt: skip
    return ConversationRow(
        id=id,
        session=session,
        parent=parent,
        created=now,
        updated=now,
        settings={"retention": format_retention(setup.retention)},
    )


def creation(row: ConversationRow, branch: BranchRow) -> tuple[Op, ...]:
    return (PutConversation(row=row), PutBranch(row=branch))


def opened(row: ConversationRow, branches: Sequence[BranchRow], last: int) -> Opened:
    """A conversation as the store would open it, for one that was made just now."""
    return Opened(conversation=row, branches=tuple(branches), inbox=(), last=last)


async def cut_before_message(log: Log, index: Any) -> Cut:
    """Where a fork from a user message cuts, and the totals of what it keeps."""
    path = await records(log)
    at = cut_before(path, index)
    return await _cut(log, at, _totals_at(log, path, at))


async def cut_now(log: Log) -> Cut:
    """Where a fork of the present state cuts: the whole path, or while a turn runs what of it is complete.

    Only the turn under way is looked at, so a long history costs nothing. What is cut is settled before any waiting.
    """
    if log.live is None and not log.open_turn:
        return Cut(log.branch.last, log.totals, log.kept_totals)
    assert log.tail is not None
    before = log.tail[0].seq if log.tail and isinstance(log.tail[0], TurnEnd) else 0
    at = complete_prefix(log.tail) or before
    return await _cut(log, at, _totals_at(log, log.tail, at))


async def _cut(log: Log, at: int, totals: Totals) -> Cut:
    return Cut(at, totals, await kept_totals_at(log, at) if log.hidden(log.path()) else totals)


def _totals_at(log: Log, records: Sequence[AnyRecord], at: int) -> Totals:
    """From the end, or from a turn before or behind the cut: a turn_start says what the path held before it."""
    if at >= log.branch.last:
        return log.totals
    end = len(records)
    while end and records[end - 1].seq > at:
        end -= 1
    start = end
    while start:
        start -= 1
        record = records[start]
        if isinstance(record, TurnStart):
            totals = record.totals
            break
    else:
        # No entry stands between two turns; but some do before the first one after a resume.
        between = takewhile(lambda record: not isinstance(record, TurnStart), records[end:])
        if not any(record.is_entry for record in between):
            behind = next((record for record in records[end:] if isinstance(record, TurnStart)), None)
            if behind is not None:
                return behind.totals
        totals = Totals()
    for record in records[start:end]:
        totals = count(totals, record)
    return totals


def branch_at(log: Log, at: int) -> tuple[ConversationId, int]:
    """The (conversation, branch) of the active path that holds the record `at`: what a row cut there points to."""
    part: Segment | None = None
    for part in log.path():
        if at <= part.until:
            break
    if part is None:
        return log.id, log.row.active
    return part.conversation, part.branch


async def fork(
    log: Log, journal: Journal, row: ConversationRow, cut: Cut, extra: Sequence[Op] = ()
) -> Log:  # fmt: skip
    """The child's log. One commit of a few rows, whatever the length of what it inherits."""
    at = cut.at
    parent = branch_at(log, at)
    branch = BranchRow(
        conversation=row.id, n=0, parent=parent, at=at, last=at, base=cut.totals, totals=cut.totals
    )
    ancestors = tuple(log.branches.values())
    withheld = {seq: held for seq, held in log.withheld.items() if seq <= at}
    noted = Branched(seq=0, ts=0, branch=parent[1], parent=parent[1], at=at, conversation=row.id)
    await asyncio.shield(journal.put(Put([noted], (*creation(row, _stored(branch, cut)), *extra))))
    child = Log(opened(row, (branch, *ancestors), at), log.store)
    child.withheld = withheld
    if cut.kept is not cut.totals:
        child.kept[row.id, 0] = cut.kept
    return child


def _stored(branch: BranchRow, cut: Cut) -> BranchRow:
    return msgspec.structs.replace(branch, base=cut.kept, totals=cut.kept)


def next_branch(log: Log) -> int:
    return 1 + max(n for conversation, n in log.branches if conversation == log.id)


async def branch(log: Log, journal: Journal, seq: int) -> None:
    """Go on from the record `seq` in a branch of its own; what came after it stays where it was."""
    path = await records(log)
    if not any(record.seq == seq for record in path):
        raise InvalidInput(f"record {seq} is not on the active path", hint="branch from one of records()")
    at = complete_prefix([record for record in path if record.seq <= seq])
    if at != seq:
        raise InvalidInput(
            f"a branch at record {seq} would part a tool call from its result", hint=f"branch at {at} instead"
        )
    cut = await _cut(log, at, _totals_at(log, path, at))
    row = BranchRow(
        conversation=log.id, n=next_branch(log), parent=branch_at(log, at), at=at, last=at, base=cut.totals,
        totals=cut.totals,
    )  # fmt: skip
    noted = Branched(seq=0, ts=0, branch=row.n, parent=log.row.active, at=at)
    put = Put([noted], (PutBranch(row=_stored(row, cut)),), branch=row)
    put.kept = cut.kept
    await asyncio.shield(journal.put(put))


async def resume(log: Log, journal: Journal, entries: Iterable[Any]) -> None:
    """A new root branch that holds these entries, in one commit."""
    drafts = check_snapshot(entries)
    row = BranchRow(conversation=log.id, n=next_branch(log))
    noted = Branched(seq=0, ts=0, branch=row.n, parent=log.row.active, at=0)
    await asyncio.shield(journal.put(Put([noted, *drafts], (PutBranch(row=row),), branch=row)))


def record_seq(log: Log, record_id: str) -> int:
    """The seq in a record's id (conv:seq)."""
    conversation, _, seq = str(record_id).rpartition(":")
    number = int(seq) if seq.isascii() and seq.isdecimal() and len(seq) < 20 else 0
    if conversation != log.id or not 0 < number <= log.last:
        raise InvalidInput(
            f"{record_id!r} names no record of {log.id}", hint="record ids look like conv_…:12"
        )
    return number
