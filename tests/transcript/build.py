"""Short names for the records that tests write by hand. `stamped` gives them what a journal gives."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from tertulia.records.parts import Text
from tertulia.records.record import (
    AnyRecord,
    Approval,
    Compaction,
    Interruption,
    Message,
    ModelUsage,
    Queue,
    Reasoning,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    Usage,
)


def stamped(records: Iterable[Any], start: int = 0, index: int = 0) -> list[AnyRecord]:
    """As the journal stamps: dense seqs after `start`, rising ts, and each entry's position."""
    out: list[AnyRecord] = []
    begun: set[str | None] = {None}
    for seq, record in enumerate(records, start + 1):
        first = record.msg not in begun
        begun.add(record.msg)
        position = index if record.is_entry else None
        index += record.is_entry
        out.append(replace(record, seq=seq, ts=seq * 10, index=position, first=first))
    return out


def started(turn: str = "t1") -> TurnStart:
    return TurnStart(seq=0, ts=0, turn=turn, item="i1")


def ended(turn: str = "t1", status: Any = "completed", **fields: Any) -> TurnEnd:
    return TurnEnd(seq=0, ts=0, turn=turn, status=status, **fields)


def queued(state: Any = "delivered") -> Queue:
    return Queue(seq=0, ts=0, item="i1", state=state, source="prompt")


def user(text: str, turn: str | None = "t1", origin: str | None = None) -> Message:
    return Message(seq=0, ts=0, turn=turn, role="user", parts=(Text(text=text),), origin=origin)


def said(text: str, msg: str | None = "m1", turn: str | None = "t1", status: Any = "ok") -> Message:
    return Message(seq=0, ts=0, turn=turn, msg=msg, role="assistant", parts=(Text(text=text),), status=status)


def thought(blob: str, msg: str = "m1") -> Reasoning:
    return Reasoning(seq=0, ts=0, turn="t1", msg=msg, provider="p", blob=blob)


def called(call_id: str, msg: str | None = "m1", turn: str | None = "t1") -> ToolCall:
    return ToolCall(seq=0, ts=0, turn=turn, msg=msg, call_id=call_id, name="read", args={"path": call_id})


def answered(call_id: str, text: str = "done", turn: str | None = "t1") -> ToolResult:
    parts = (Text(text=text),)
    return ToolResult(seq=0, ts=0, turn=turn, call_id=call_id, name="read", status="ok", parts=parts)


def asked(call_id: str) -> Approval:
    return Approval(
        seq=0, ts=0, turn="t1", approval=f"a-{call_id}", phase="asked", call_id=call_id, tool="read"
    )


def decided(call_id: str, decision: Any = "allow") -> Approval:
    return Approval(
        seq=0, ts=0, approval=f"a-{call_id}", phase="decided", call_id=call_id, tool="read", decision=decision
    )


def interrupted(reason: str = "cancelled") -> Interruption:
    return Interruption(seq=0, ts=0, turn="t1", reason=reason)


def used(cost: float | None = None, turn: str | None = "t1") -> ModelUsage:
    return ModelUsage(seq=0, ts=0, turn=turn, model="m", usage=Usage(10, 2), cost=cost)


def compacted(through: int, summary: str = "what was") -> Compaction:
    return Compaction(seq=0, ts=0, id="k1", summary=summary, through=through)
