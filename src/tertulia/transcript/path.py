"""Branches, the path to one (a list of stretches of branches, root first), and where a path may be cut."""

from collections.abc import Iterable, Sequence

import msgspec

from ..records.errors import InvalidForkEntryIndex
from ..records.ids import CallId, ConversationId
from ..records.parts import describe
from ..records.record import AnyRecord, Message, Queue, Reasoning, ToolCall, ToolResult, Totals, TurnStart

FORKABLE_ORIGINS = frozenset(
    {None, "user", "prompt", "prompt_follow_up", "steer", "follow_up", "send_message", "resume"}
)
"""The origins of a user message that a person wrote. All else is injected text, whatever its role."""


class BranchRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A branch of a conversation, by its number there. The first one of a fork points into its parent's.

    `at`: the last seq that it inherits. `base` and `totals` count the path up to `at`, and to the tip `last`.
    """

    conversation: ConversationId
    n: int
    parent: tuple[ConversationId, int] | None = None
    at: int = 0
    last: int = 0
    base: Totals = Totals()
    totals: Totals = Totals()


class Segment(msgspec.Struct, frozen=True):
    """A stretch of one branch: the records with `after` < seq <= `until`."""

    conversation: ConversationId
    branch: int
    after: int
    until: int


class Forkable(msgspec.Struct, frozen=True):
    """A user message that a fork can start from."""

    entry_index: int
    text: str
    record_id: str
    seq: int


def segments(
    branches: Iterable[BranchRow], conversation: ConversationId, n: int, until: int | None = None
) -> tuple[Segment, ...]:
    """The path to branch `n`, up to `until` or its tip. Empty stretches are left out.

    A parent that is missing, or that was passed already, ends the walk: what is below it can still be read.
    """
    rows = {(row.conversation, row.n): row for row in branches}
    found: list[Segment] = []
    row = rows.pop((conversation, n), None)
    while row is not None:
        limit = row.last if until is None else until
        if limit > row.at:
            found.append(Segment(row.conversation, row.n, row.at, limit))
        until = row.at if until is None else min(until, row.at)
        row = rows.pop(row.parent, None) if row.parent else None
    return tuple(reversed(found))


def complete_prefix(records: Sequence[AnyRecord]) -> int:
    """The seq at which the longest prefix ends in which every call has its result; 0 when there is none.

    It does not end on reasoning: that belongs to the message or the call behind it.
    """
    pending: dict[CallId, int] = {}
    end = 0
    for record in records:
        if isinstance(record, ToolCall):
            pending[record.call_id] = pending.get(record.call_id, 0) + 1
        elif isinstance(record, ToolResult):
            _take(pending, record.call_id)
        if not pending and not isinstance(record, Reasoning):
            end = record.seq
    return end


def forkable(records: Sequence[AnyRecord], conversation: ConversationId) -> tuple[Forkable, ...]:
    """The user messages with content, in order."""
    found = []
    for record in records:
        text = _forkable_text(record)
        if text and record.index is not None:
            found.append(Forkable(record.index, text, f"{conversation}:{record.seq}", record.seq))
    return tuple(found)


def cut_before(records: Sequence[AnyRecord], index: int) -> int:
    """The seq after which a fork from the user message at `index` cuts: before what was written with it."""
    if type(index) is not int:
        raise InvalidForkEntryIndex(index)
    for position, record in enumerate(records):
        if record.index == index and _forkable_text(record):
            start = _group_start(records, position)
            return records[start - 1].seq if start else 0
    raise InvalidForkEntryIndex(index)


def _take(pending: dict[CallId, int], call_id: CallId) -> None:
    count = pending.get(call_id, 0)
    if count > 1:
        pending[call_id] = count - 1
    elif count:
        del pending[call_id]


def _forkable_text(record: AnyRecord) -> str:
    if not isinstance(record, Message) or record.role != "user" or record.origin not in FORKABLE_ORIGINS:
        return ""
    return describe(record.parts)


def _group_start(records: Sequence[AnyRecord], position: int) -> int:
    """Where what was written with this message begins: its turn_start, or the queue records before it."""
    turn = records[position].turn
    start = position
    while start and not records[start - 1].is_entry:
        start -= 1
        if isinstance(records[start], TurnStart):
            if records[start].turn == turn:
                return start
            break
    start = position
    while start and isinstance(records[start - 1], Queue):
        start -= 1
    return start
