"""What a log needs so that every call has one result, and whether given entries are a transcript at all."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from ..records.codec import decode, encode
from ..records.errors import InvalidInput, InvalidSnapshot
from ..records.ids import CallId
from ..records.parts import Text, has_content
from ..records.record import (
    AnyEntry,
    AnyRecord,
    Approval,
    Interruption,
    Message,
    ModelUsage,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    Usage,
)

INTERRUPTED = "interrupted"
"""The error code of a turn that a crash ended."""

_NO_RESULT = "interrupted before it finished"
_ENDED = "the process ended before the turn was finished"


class Parked(msgspec.Struct, frozen=True):
    """A turn that still waits for people: how it began, its records, its open questions with their calls."""

    start: TurnStart
    records: Sequence[AnyRecord]
    questions: tuple[tuple[ToolCall, Approval], ...]


def parked(records: Sequence[AnyRecord], own_after: int = 0) -> Parked | None:
    """The turn that `repair` leaves open, when these records end with one."""
    rest = _after_last_end(records)
    start = _start_of(rest)
    if start is None or start.seq <= own_after:
        return None
    asked = _awaiting_approval(rest)
    waiting = tuple((call, asked[call.call_id]) for call in unanswered(rest) if call.call_id in asked)
    return Parked(start, rest, waiting) if waiting else None


def repair(records: Sequence[AnyRecord], own_after: int = 0) -> tuple[AnyRecord, ...]:
    """The drafts to append after these records, which reach back at least to the last turn_end.

    Every call without a result gets one, except a call that still waits for its approval: that one is parked, and its
    turn stays open. Else a turn that began after `own_after`, on the conversation's own branch, is closed; an inherited
    one just ends at the cut.
    """
    rest = _after_last_end(records)
    start = _start_of(rest)
    own = start is not None and start.seq > own_after
    waiting = _awaiting_approval(rest) if own else {}
    calls = unanswered(rest)
    drafts: list[AnyRecord] = [_no_result(call) for call in calls if call.call_id not in waiting]
    if start is not None and own and len(drafts) == len(calls):
        drafts += (_interruption(start), _turn_end(start, rest))
    return tuple(drafts)


def unanswered(records: Iterable[AnyRecord]) -> list[ToolCall]:
    """The calls without a result, in order. A result belongs to the latest open call of its id."""
    pending: list[ToolCall] = []
    for record in records:
        if isinstance(record, ToolCall):
            pending.append(record)
        elif isinstance(record, ToolResult):
            _answer(pending, record.call_id)
    return pending


def check_snapshot(entries: Iterable[object]) -> tuple[AnyRecord, ...]:
    """The drafts that make these entries a new branch, content copied; InvalidSnapshot when they are no transcript."""
    if not isinstance(entries, Iterable):
        raise InvalidSnapshot(f"a snapshot is a sequence of entries, not {type(entries).__name__}")
    drafts: list[AnyRecord] = []
    pending: list[ToolCall] = []
    positions: dict[int, int] = {}
    for index, entry in enumerate(entries):
        draft = _draft(entry, index)
        if isinstance(draft, ToolCall):
            pending.append(draft)
            positions[id(draft)] = index
        elif isinstance(draft, ToolResult) and not _answer(pending, draft.call_id):
            raise _invalid(index, f"is a result of {draft.call_id!r}, and no open call has that id")
        drafts.append(draft)
    if pending:
        call = pending[0]
        raise _invalid(positions[id(call)], f"is the call {call.call_id!r}, which has no result")
    return tuple(drafts)


def _after_last_end(records: Sequence[AnyRecord]) -> Sequence[AnyRecord]:
    for position in range(len(records) - 1, -1, -1):
        if isinstance(records[position], TurnEnd):
            return records[position + 1 :]
    return records


def _answer(pending: list[ToolCall], call_id: CallId) -> bool:
    for position in range(len(pending) - 1, -1, -1):
        if pending[position].call_id == call_id:
            del pending[position]
            return True
    return False


def _start_of(records: Sequence[AnyRecord]) -> TurnStart | None:
    return next((record for record in reversed(records) if isinstance(record, TurnStart)), None)


def _awaiting_approval(records: Sequence[AnyRecord]) -> dict[CallId, Approval]:
    """The open questions by call: neither decided nor answered since. One without its body can be asked no more.

    What a call asks when it has begun (a server that wants a model, say) bears another name than the call: a call that
    may have done something is never made again.
    """
    waiting: dict[CallId, Approval] = {}
    names: dict[CallId, str] = {}
    for record in records:
        if isinstance(record, ToolCall):
            names[record.call_id] = record.name
        elif isinstance(record, Approval) and record.phase == "asked" and not record.withheld:
            if names.get(record.call_id) == record.tool:
                waiting[record.call_id] = record
        elif isinstance(record, Approval | ToolResult):
            waiting.pop(record.call_id, None)
    return waiting


def _no_result(call: ToolCall) -> ToolResult:
    return ToolResult(
        seq=0,
        ts=0,
        turn=call.turn,
        call_id=call.call_id,
        name=call.name,
        status="cancelled",
        parts=(Text(text=_NO_RESULT),),
        synthetic=True,
    )


def _interruption(start: TurnStart) -> Interruption:
    return Interruption(seq=0, ts=0, turn=start.turn, reason="crash")


def _turn_end(start: TurnStart, records: Sequence[AnyRecord]) -> TurnEnd:
    """With what the turn's requests are known to have cost."""
    usage, cost = Usage(), None
    for record in records:
        if isinstance(record, ModelUsage) and record.turn == start.turn:
            usage += record.usage
            cost = cost if record.cost is None else (cost or 0.0) + record.cost
    return TurnEnd(
        seq=0,
        ts=0,
        turn=start.turn,
        status="failed",
        code=INTERRUPTED,
        error=_ENDED,
        usage=usage,
        cost=cost,
    )


def _draft(entry: object, index: int) -> AnyEntry:
    if not isinstance(entry, Message | ToolCall | ToolResult):
        raise _invalid(index, f"is no entry but {type(entry).__name__}")
    try:
        draft = replace(entry, seq=0, ts=0, turn=None, first=False, index=None)
        copy = decode(encode(draft))  # checks every field, and shares nothing with what was given
    except (InvalidInput, msgspec.MsgspecError) as error:
        raise _invalid(index, f"cannot be stored: {error}") from error
    if type(copy) is not type(draft) or not isinstance(copy, Message | ToolCall | ToolResult):
        raise _invalid(index, f"is a {entry.type} with fields of the wrong types")
    if isinstance(copy, Message) and not has_content(copy.parts):
        raise _invalid(index, "is a message without content")
    return copy


def _invalid(index: int, what: str) -> InvalidSnapshot:
    return InvalidSnapshot(
        f"entry {index} {what}",
        hint="give the transcript() of an idle conversation, or a part of it that ends with a turn",
        index=index,
    )
