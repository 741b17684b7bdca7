"""Events: what observers see. A durable one (with a seq) reports one committed record; others are transient.

Every type is a struct of its own, so `match event:` and isinstance narrow; `event.type` is its name on every wire
and `event.data` the fields of its own as a plain dict.
"""

from typing import Any, Literal

import msgspec

from .ids import CallId, ConversationId, ItemId, SessionId, TurnId
from .parts import AnyPart
from .record import Hit, ItemSource, ItemState, ResultStatus, Role, TurnStatus, Usage

Source = Literal["transcript", "session"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The envelope. `conversation_id` and `turn_id` are None only for what belongs to the Session itself."""

    session_id: SessionId | None = None
    conversation_id: ConversationId | None = None
    turn_id: TurnId | None = None
    seq: int | None = None
    ts: int = 0
    source: Source = "session"
    entry_index: int | None = None
    trace_id: str | None = None
    span_id: str | None = None

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def task_id(self) -> TurnId | None:
        return self.turn_id

    @property
    def sub_id(self) -> TurnId | None:
        """The same for all events of one task, for consumers that know it by this name."""
        return self.turn_id

    @property
    def data(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for name in self.__struct_fields__:
            if name not in _ENVELOPE:
                own[name] = msgspec.to_builtins(getattr(self, name))
        return own


_ENVELOPE = frozenset(Event.__struct_fields__)


class TurnStarted(Event, tag="turn_start", frozen=True, kw_only=True):
    item: ItemId | None = None
    engine: str = ""
    model: str = ""


class IterationStart(Event, tag="iteration_start", frozen=True, kw_only=True):
    """One model request begins to answer; `message_id` is the same for all that it says."""

    message_id: str | None = None


class TextDelta(Event, tag="text", frozen=True, kw_only=True):
    text: str
    message_id: str | None = None


class ThoughtDelta(Event, tag="thought", frozen=True, kw_only=True):
    text: str
    message_id: str | None = None


class ReasoningEvent(Event, tag="reasoning", frozen=True, kw_only=True):
    text: str
    provider: str
    message_id: str | None = None


class MessageEvent(Event, tag="message", frozen=True, kw_only=True):
    """Authoritative: the deltas before it, joined, are its text."""

    role: Role
    parts: tuple[AnyPart, ...]
    text: str
    status: str = "ok"
    message_id: str | None = None
    origin: str | None = None


class ToolCallEvent(Event, tag="tool_call", frozen=True, kw_only=True):
    tool_call_id: CallId
    name: str
    args: dict[str, Any]
    message_id: str | None = None


class ToolProgress(Event, tag="tool_progress", frozen=True, kw_only=True):
    tool_call_id: CallId
    name: str
    progress: Any = None


class ToolResultEvent(Event, tag="tool_result", frozen=True, kw_only=True):
    tool_call_id: CallId
    name: str
    status: ResultStatus
    parts: tuple[AnyPart, ...] = ()
    text: str = ""
    synthetic: bool = False


class RetrievalEvent(Event, tag="retrieval", frozen=True, kw_only=True):
    query: str
    hits: tuple[Hit, ...]


class Chart(Event, tag="chart", frozen=True, kw_only=True):
    tool_call_id: CallId | None
    chart_data: Any


class ApprovalRequest(Event, tag="approval_request", frozen=True, kw_only=True):
    approval_id: str
    tool_call_id: CallId
    tool: str
    summary: str = ""
    key: tuple[str, ...] = ()


class ApprovalResolved(Event, tag="approval_resolved", frozen=True, kw_only=True):
    approval_id: str
    tool_call_id: CallId
    tool: str
    decision: str | None = None
    scope: str | None = None
    by: str | None = None
    feedback: str | None = None


class QueueEvent(Event, tag="queue", frozen=True, kw_only=True):
    item_id: ItemId
    state: ItemState
    item_source: ItemSource
    delivered: int | None = None


class State(Event, tag="state", frozen=True, kw_only=True):
    state: Literal[
        "queued", "running", "retrying", "waiting_approval", "completed", "cancelled", "timed_out", "failed"
    ]
    item_id: ItemId | None = None


class Retry(Event, tag="retry", frozen=True, kw_only=True):
    attempt: int
    delay: float
    code: str
    error: str
    discarded: bool = False


class CompactionEvent(Event, tag="compaction", frozen=True, kw_only=True):
    compaction_id: str
    summary: str
    through: int
    entries: int
    method: str


class UsageEvent(Event, tag="usage", frozen=True, kw_only=True):
    model: str
    usage: Usage
    cost: float | None = None


class WarningEvent(Event, tag="warning", frozen=True, kw_only=True):
    code: str
    message: str


class ErrorEvent(Event, tag="error", frozen=True, kw_only=True):
    code: str
    message: str


class Done(Event, tag="done", frozen=True, kw_only=True):
    status: TurnStatus
    code: str | None = None
    error: str | None = None
    stop_reason: str | None = None
    usage: Usage = Usage()
    cost: float | None = None
    elapsed: float = 0.0


class ConversationEvent(Event, tag="conversation", frozen=True, kw_only=True):
    """A change outside the transcript: branch, label, info, settings, custom, open, closed."""

    kind: str
    detail: dict[str, Any] = {}


class Resync(Event, tag="resync", frozen=True, kw_only=True):
    """Durable events were dropped for this slow subscriber: read on from `after`."""

    after: int


class Deleted(Event, tag="deleted", frozen=True, kw_only=True):
    """The conversation is gone; the last event a subscriber gets."""


AnyEvent = (
    TurnStarted
    | IterationStart
    | TextDelta
    | ThoughtDelta
    | ReasoningEvent
    | MessageEvent
    | ToolCallEvent
    | ToolProgress
    | ToolResultEvent
    | RetrievalEvent
    | Chart
    | ApprovalRequest
    | ApprovalResolved
    | QueueEvent
    | State
    | Retry
    | CompactionEvent
    | UsageEvent
    | WarningEvent
    | ErrorEvent
    | Done
    | ConversationEvent
    | Resync
    | Deleted
)
