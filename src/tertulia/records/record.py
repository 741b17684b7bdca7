"""The record: what the log of a conversation is made of.

A record is immutable and never changes once it is committed; only retention rewrites one, and then it keeps
its seq, type and ts. `message`, `tool_call` and `tool_result` are the transcript; the others stand in the same
log.
"""

from typing import Any, ClassVar, Literal

import msgspec

from .ids import CallId, ConversationId, ItemId, TurnId
from .parts import AnyPart, describe, shown, text_of

MAJOR = 1
"""A newer minor adds types and fields, which older readers keep; a newer major is refused."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What was read from or written to a prompt cache is not among the input; reasoning is among the output."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    requests: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        if self == _NOTHING:
            return other  # what most turns add up; they need not hold it twice
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.requests + other.requests,
        )


_NOTHING = Usage()


class Totals(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, gc=False):
    """Running totals of a path, kept so that opening, stats and an entry's index read no history."""

    entries: int = 0
    user_messages: int = 0
    assistant_messages: int = 0
    tool_calls: int = 0
    tool_results: int = 0
    updated: int = 0  # ts of the last entry, 0 when there is none
    usage: Usage = Usage()
    cost: float | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """What all records carry.

    `msg` groups what one model message held; `first` marks the record that begins it; `index` is the entry's
    position in the transcript; `refs` are the blobs this record owns; `withheld`: retention took its body.
    """

    seq: int
    ts: int
    v: int = 1  # left out of the bytes when it is 1, for ever: what says no version is of the first
    turn: TurnId | None = None
    msg: str | None = None
    first: bool = False
    index: int | None = None
    origin: str | None = None
    refs: tuple[str, ...] = ()
    withheld: bool = False

    is_entry: ClassVar[bool] = False

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


class Entry(Record, frozen=True, kw_only=True):
    """A record of the transcript. All entries answer the same attributes: callers need no type checks."""

    is_entry: ClassVar[bool] = True

    @property
    def role(self) -> str | None:
        return None

    @property
    def text(self) -> str:
        return ""

    @property
    def call_id(self) -> CallId | None:
        return None

    @property
    def name(self) -> str | None:
        return None

    @property
    def args(self) -> dict[str, Any] | None:
        return None

    @property
    def status(self) -> str | None:
        return None


Role = Literal["user", "assistant", "system"]
ResultStatus = Literal["ok", "error", "cancelled", "denied", "timeout"]
TurnStatus = Literal["completed", "cancelled", "timed_out", "failed"]


class Message(Entry, tag="message", frozen=True, kw_only=True):
    """What a user, the assistant or the system said. An aborted one is left out of later model requests."""

    role: Role
    parts: tuple[AnyPart, ...]
    status: Literal["ok", "aborted"] = "ok"

    @property
    def text(self) -> str:
        return text_of(shown(self.parts))


class ToolCall(
    Entry, tag="tool_call", rename={"call_id": "tool_call_id", "name": "tool_name"}, frozen=True, kw_only=True
):
    """`invalid` keeps the text of arguments that were no JSON object; `reported`: the engine ran it itself."""

    call_id: CallId
    name: str
    args: dict[str, Any]
    invalid: str | None = None
    reported: bool = False

    @property
    def tool_name(self) -> str:
        return self.name

    @property
    def tool_call_id(self) -> CallId:
        return self.call_id


class ToolResult(
    Entry,
    tag="tool_result",
    rename={"call_id": "tool_call_id", "name": "tool_name"},
    frozen=True,
    kw_only=True,
):
    """`synthetic`: written by us for a call that never answered."""

    call_id: CallId
    name: str
    status: ResultStatus
    parts: tuple[AnyPart, ...] = ()
    synthetic: bool = False

    @property
    def text(self) -> str:
        return describe(self.parts)

    @property
    def tool_name(self) -> str:
        return self.name

    @property
    def tool_call_id(self) -> CallId:
        return self.call_id


class TurnStart(Record, tag="turn_start", frozen=True, kw_only=True):
    """`totals` are those of the path before this turn: a fork here needs to count nothing."""

    item: ItemId | None = None
    engine: str = "loop"
    model: str = ""
    totals: Totals = Totals()


class TurnEnd(Record, tag="turn_end", frozen=True, kw_only=True):
    status: TurnStatus
    code: str | None = None
    error: str | None = None
    stop_reason: str | None = None
    usage: Usage = Usage()
    cost: float | None = None
    elapsed: float = 0.0


class Reasoning(Record, tag="reasoning", frozen=True, kw_only=True):
    """`blob` is kept verbatim for the provider that made it, `text` is what may be shown."""

    provider: str
    blob: str = ""
    text: str = ""


class Interruption(Record, tag="interruption", frozen=True, kw_only=True):
    reason: str = "cancelled"


class Compaction(Record, tag="compaction", frozen=True, kw_only=True):
    """`summary` stands for the entries up to seq `through` in later requests; they stay in the log."""

    id: str
    summary: str
    through: int
    entries: int = 0
    method: str = "local"


class Hit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    source: str
    title: str
    snippet: str
    score: float
    scores: dict[str, float] = {}
    span: tuple[int, int] | None = None


class Retrieval(Record, tag="retrieval", frozen=True, kw_only=True):
    query: str
    hits: tuple[Hit, ...]


class Approval(Record, tag="approval", frozen=True, kw_only=True):
    """Once when asked, once when decided."""

    approval: str
    phase: Literal["asked", "decided"]
    call_id: CallId
    tool: str
    summary: str = ""
    key: tuple[str, ...] = ()
    decision: Literal["allow", "deny", "cancelled"] | None = None
    scope: str | None = None
    expires: int | None = None
    by: str | None = None
    feedback: str | None = None


ItemState = Literal["queued", "held", "delivered", "dropped", "failed"]
ItemSource = Literal["prompt", "prompt_follow_up", "steer", "follow_up", "send_message"]


class Queue(Record, tag="queue", frozen=True, kw_only=True):
    """A change of an item of the queue. The body stands in the inbox row, never here."""

    item: ItemId
    state: ItemState
    source: ItemSource
    delivered: int | None = None  # seq of the user message it became


class Branched(Record, tag="branch", frozen=True, kw_only=True):
    """A new branch of this conversation, or (with `conversation`) a fork taken from it."""

    branch: int
    parent: int
    at: int
    conversation: ConversationId | None = None


class Label(Record, tag="label", frozen=True, kw_only=True):
    target: int
    text: str


class Info(Record, tag="info", frozen=True, kw_only=True):
    title: str | None = None
    archived: bool | None = None


class Settings(Record, tag="settings", frozen=True, kw_only=True):
    values: dict[str, Any]


class ModelUsage(Record, tag="usage", frozen=True, kw_only=True):
    """What one model request cost, written in the commit of that request's output."""

    model: str
    usage: Usage
    cost: float | None = None


class Custom(Record, tag="custom", frozen=True, kw_only=True):
    kind: str
    data: Any = None


class Tombstone(Record, tag="tombstone", frozen=True, kw_only=True):
    """Stands for the records `seq` to `through`, which retention deleted."""

    through: int


class Unknown(Record, tag="unknown", frozen=True, kw_only=True):
    """A record of a type this version does not know, or one that cannot be read: kept, and passed over."""

    name: str
    raw: bytes


AnyEntry = Message | ToolCall | ToolResult
AnyRecord = (
    Message
    | ToolCall
    | ToolResult
    | TurnStart
    | TurnEnd
    | Reasoning
    | Interruption
    | Compaction
    | Retrieval
    | Approval
    | Queue
    | Branched
    | Label
    | Info
    | Settings
    | ModelUsage
    | Custom
    | Tombstone
    | Unknown
)
