"""THE function that makes a record's events, live and in replay.

Exactly one durable event for each record, which has the record's seq, and before it companions that have none.
What an entry makes has the source "transcript" and the entry's index; all else has the source "session".
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ..records.event import (
    AnyEvent,
    ApprovalRequest,
    ApprovalResolved,
    Chart,
    CompactionEvent,
    ConversationEvent,
    Done,
    ErrorEvent,
    IterationStart,
    MessageEvent,
    QueueEvent,
    ReasoningEvent,
    RetrievalEvent,
    TextDelta,
    ToolCallEvent,
    ToolResultEvent,
    TurnStarted,
    UsageEvent,
    WarningEvent,
)
from ..records.ids import ConversationId, SessionId
from ..records.parts import Data
from ..records.record import (
    AnyRecord,
    Approval,
    Branched,
    Compaction,
    Custom,
    Info,
    Interruption,
    Label,
    Message,
    ModelUsage,
    Queue,
    Reasoning,
    Record,
    Retrieval,
    Settings,
    Tombstone,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    Unknown,
)

CHART = "chart_data"
"""The name of the data part of a tool result that is announced as a chart."""


class Envelope(msgspec.Struct, frozen=True):
    """Under whose ids the events go out: the reader's, for a path that a fork inherited."""

    session_id: SessionId | None
    conversation_id: ConversationId


_Common = dict[str, Any]
_Events = tuple[AnyEvent, ...]


def events(record: AnyRecord, envelope: Envelope) -> tuple[AnyEvent, ...]:
    """The record's companions in order, then its durable event."""
    common: _Common = {
        "session_id": envelope.session_id,
        "conversation_id": envelope.conversation_id,
        "turn_id": None if isinstance(record, Queue) else record.turn,
        "ts": record.ts,
    }
    if record.is_entry:
        common["source"] = "transcript"
        common["entry_index"] = record.index
    return MAKERS[type(record)](record, common)


def transcript_events(records: Iterable[AnyRecord], envelope: Envelope) -> tuple[AnyEvent, ...]:
    """The events that the entries make, and no others."""
    return tuple(event for record in records if record.is_entry for event in events(record, envelope))


def joined(stream: Iterable[AnyEvent]) -> list[AnyEvent]:
    """The events with consecutive `text` events of one message made one, as a replay has them."""
    result: list[AnyEvent] = []
    texts: list[str] = []
    for event in stream:
        last = result[-1] if result else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta) and _same_message(last, event):
            texts.append(event.text)
            continue
        _close(result, texts)
        result.append(event)
        texts = [event.text] if isinstance(event, TextDelta) else []
    _close(result, texts)
    return result


def _same_message(one: TextDelta, other: TextDelta) -> bool:
    return one.message_id == other.message_id and one.conversation_id == other.conversation_id


def _close(result: list[AnyEvent], texts: list[str]) -> None:
    if len(texts) > 1:
        result[-1] = msgspec.structs.replace(result[-1], text="".join(texts))


def _begun(record: Message | ToolCall | Reasoning, common: _Common) -> _Events:
    return (IterationStart(message_id=record.msg, **common),) if record.first else ()


def _message(record: Message, common: _Common) -> _Events:
    text = record.text
    event = MessageEvent(
        seq=record.seq,
        role=record.role,
        parts=record.parts,
        text=text,
        status=record.status,
        message_id=record.msg,
        origin=record.origin,
        **common,
    )
    if record.role != "assistant":
        return (event,)
    said = (TextDelta(text=text, message_id=record.msg, **common),) if text else ()
    return (*_begun(record, common), *said, event)


def _tool_call(record: ToolCall, common: _Common) -> _Events:
    event = ToolCallEvent(
        seq=record.seq,
        tool_call_id=record.call_id,
        name=record.name,
        args=record.args,
        message_id=record.msg,
        **common,
    )
    return (*_begun(record, common), event)


def _tool_result(record: ToolResult, common: _Common) -> _Events:
    charts = [
        Chart(tool_call_id=record.call_id, chart_data=part.value, **common)
        for part in record.parts
        if isinstance(part, Data) and part.name == CHART
    ]
    event = ToolResultEvent(
        seq=record.seq,
        tool_call_id=record.call_id,
        name=record.name,
        status=record.status,
        parts=record.parts,
        text=record.text,
        synthetic=record.synthetic,
        **common,
    )
    return (*charts, event)


def _turn_start(record: TurnStart, common: _Common) -> _Events:
    return (
        TurnStarted(seq=record.seq, item=record.item, engine=record.engine, model=record.model, **common),
    )


def _turn_end(record: TurnEnd, common: _Common) -> _Events:
    done = Done(
        seq=record.seq,
        status=record.status,
        code=record.code,
        error=record.error,
        stop_reason=record.stop_reason,
        usage=record.usage,
        cost=record.cost,
        elapsed=record.elapsed,
        **common,
    )
    if record.status != "failed":
        return (done,)
    return (ErrorEvent(code=record.code or "failed", message=record.error or "", **common), done)


def _reasoning(record: Reasoning, common: _Common) -> _Events:
    event = ReasoningEvent(
        seq=record.seq, text=record.text, provider=record.provider, message_id=record.msg, **common
    )
    return (*_begun(record, common), event)


def _interruption(record: Interruption, common: _Common) -> _Events:
    message = f"the turn was interrupted: {record.reason}"
    return (WarningEvent(seq=record.seq, code="interrupted", message=message, **common),)


def _compaction(record: Compaction, common: _Common) -> _Events:
    event = CompactionEvent(
        seq=record.seq,
        compaction_id=record.id,
        summary=record.summary,
        through=record.through,
        entries=record.entries,
        method=record.method,
        **common,
    )
    return (event,)


def _retrieval(record: Retrieval, common: _Common) -> _Events:
    return (RetrievalEvent(seq=record.seq, query=record.query, hits=record.hits, **common),)


def _approval(record: Approval, common: _Common) -> _Events:
    common |= {"approval_id": record.approval, "tool_call_id": record.call_id, "tool": record.tool}
    if record.phase == "asked":
        return (ApprovalRequest(seq=record.seq, summary=record.summary, key=record.key, **common),)
    resolved = ApprovalResolved(
        seq=record.seq,
        decision=record.decision,
        scope=record.scope,
        by=record.by,
        feedback=record.feedback,
        **common,
    )
    return (resolved,)


def _queue(record: Queue, common: _Common) -> _Events:
    event = QueueEvent(
        seq=record.seq,
        item_id=record.item,
        state=record.state,
        item_source=record.source,
        delivered=record.delivered,
        **common,
    )
    return (event,)


def _usage(record: ModelUsage, common: _Common) -> _Events:
    return (UsageEvent(seq=record.seq, model=record.model, usage=record.usage, cost=record.cost, **common),)


_COMMON_FIELDS = frozenset(Record.__struct_fields__)


def _conversation(record: AnyRecord, common: _Common) -> _Events:
    """`detail` is the record's own fields as they are; the bytes of an unknown record stay in the log."""
    own = [name for name in record.__struct_fields__ if name not in _COMMON_FIELDS and name != "raw"]
    detail = {name: getattr(record, name) for name in own}
    return (ConversationEvent(seq=record.seq, kind=record.type, detail=detail, **common),)


MAKERS: dict[type[Record], Callable[[Any, _Common], _Events]] = {
    Message: _message,
    ToolCall: _tool_call,
    ToolResult: _tool_result,
    TurnStart: _turn_start,
    TurnEnd: _turn_end,
    Reasoning: _reasoning,
    Interruption: _interruption,
    Compaction: _compaction,
    Retrieval: _retrieval,
    Approval: _approval,
    Queue: _queue,
    Branched: _conversation,
    Label: _conversation,
    Info: _conversation,
    Settings: _conversation,
    ModelUsage: _usage,
    Custom: _conversation,
    Tombstone: _conversation,
    Unknown: _conversation,
}
"""One for each record type there is; a test says so."""
