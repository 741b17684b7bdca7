"""What runs a turn: the Engine protocol, and the Turn that an engine is handed.

An engine says what its model says through `session.turn` (begin, said, thought, answer), passes tool calls through
`session.calls`, and returns an Ending. Queue, journal, approvals, events and cancellation are not its business.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Literal, Protocol

import msgspec

from ..models.base import Finished, Model
from ..records.clock import Clock
from ..records.event import AnyEvent
from ..records.ids import CallId, TurnId
from ..records.parts import AnyPart
from ..records.record import Approval, ModelUsage, ToolCall, Usage
from ..sandbox.sandbox import Sandbox
from ..store.base import Store
from ..tools.base import Tool
from ..tools.toolbox import Toolbox
from ..transcript.context import View
from .inbox import Item
from .journal import Journal
from .structured import Output

CancelReason = Literal["cancelled", "timeout"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often; the same for every turn of a conversation unless a prompt overrides it."""

    max_retries: int = 0
    retry_base_delay: float = 1.0
    turn_limit: int = 100  # model requests in one turn
    turn_timeout: float | None = None
    grace: float = 5.0  # how long a cancelled tool may take to end
    max_output: int = 50_000  # characters of a tool result that the model sees
    idle_timeout: float | None = None  # without a sign of the model; None: what the model itself says
    compact_min_messages: int = 8


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended well. `last` is the final answer, not committed yet: it goes out with the turn's end."""

    stop_reason: str = "end"
    last: Finished | None = None


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says between turns."""

    text: str
    finished: Finished = Finished()


class Gate(Protocol):
    async def __call__(self, turn: "Turn", call: ToolCall, tool: Tool) -> str | None:
        """None when the call may run, else why not, for the model to read."""
        ...


class Progress:
    """How far a turn has come."""

    def __init__(self, item: Item | None, clock: Clock) -> None:
        self.started: asyncio.Future[Any] | None = None  # the first commit
        self.ended: asyncio.Future[Any] | None = None  # the last one
        self.cancelled: CancelReason | None = None
        self.began = clock.monotonic()
        self.started_at = clock.now()
        self.message_id: str | None = None  # of the answer that is being streamed
        self.announced = False  # whether its iteration_start went out
        self.audible = False  # whether its text is more than blank
        self.texts: list[str] = []
        self.messages = 0
        self.open_calls: dict[CallId, ToolCall] = {}
        self.answering: tuple[asyncio.Future[Any], tuple[ToolCall, ...]] | None = None  # in its commit
        self.spent: list[ModelUsage] = []  # what answers cost, until that is stored
        self.counted: Finished | None = None  # the answer whose cost is in there already
        self.results: list[asyncio.Future[Any]] = []
        self.answered: dict[CallId, tuple[ToolCall, asyncio.Future[Any]]] = {}  # durable, or on their way
        self.unfinished: tuple[ToolCall, ...] = ()  # calls that a restart left waiting: they run first
        self.asked: dict[CallId, Approval] = {}  # questions that are not decided yet
        self.waiting: set[CallId] = set()  # calls that wait for a person
        self.midway: set[CallId] = set()  # those that had begun already: they cannot wait on in the store
        self.parked = False  # all its calls do, and it has given its slot back
        self.left = False  # closed while it was parked: it waits on in the store
        self.at_end: list[Callable[[], object]] = []
        self.usage = Usage()
        self.cost: float | None = None
        self.tool_calls = 0
        self.said: str = ""  # the last whole text
        self.parsed: Any = None  # as `output` asked for it
        self.mended = False  # whether the model was asked once to mend its output
        self.compacted = False  # whether a full context was compacted
        self.heard = 0.0  # when the model last gave a sign, on the monotonic clock
        self.timeout = ""  # what ran out, for the error
        self.items: list[Item] = [] if item is None else [item]
        self.deliveries: dict[str, asyncio.Future[Any]] = {}  # the commits of the steers among them
        self.task: asyncio.Task[None] | None = None
        self.outcome: Ending | BaseException | None = None


class Turn(Progress):
    """One run of one input: what it is given, and how far it has come."""

    def __init__(
        self,
        item: Item | None,
        origin: str,
        model: Model | None,
        journal: Journal,
        clock: Clock,
        limits: Limits,
        cwd: str,
    ) -> None:
        super().__init__(item, clock)
        self.id: TurnId
        self.item = item
        self.origin = origin
        self.model = model
        self.journal = journal
        self.clock = clock
        self.limits = limits
        self.cwd = cwd
        self.store: Store
        self.sandbox: Sandbox
        self.input: tuple[AnyPart, ...] = item.parts if item is not None else ()
        self.system: Callable[[], str] = str
        self.toolbox: Callable[[], Toolbox] = Toolbox
        self.tools_ready: Callable[[], Coroutine[Any, Any, None]] | None = None  # awaited before each request
        self.view: Callable[[], View]
        self.deliver: Callable[[], asyncio.Future[Any] | None] = lambda: None
        self.gate: Gate | None = None
        self.fallbacks: tuple[Model, ...] = ()
        self.output: Output | None = None
        self.spoken: Spoken | None = None  # what the engine said by itself, for a turn of origin `engine`
        self.cancel: Callable[[CancelReason], bool] = lambda reason: False
        self.sub_prompt: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self.nested = False  # of a conversation that a tool asks
        self.waits: Callable[[], None] = lambda: None  # told when a call begins to wait for a person, or ends
        self.slot: Callable[[], Coroutine[Any, Any, None]] = _at_once  # until it may go on after that

    @property
    def model_name(self) -> str:
        return self.model.name if self.model is not None else ""

    def common(self) -> dict[str, Any]:
        """The envelope of this turn's transient events."""
        envelope = self.journal.envelope
        return {
            "session_id": envelope.session_id,
            "conversation_id": envelope.conversation_id,
            "turn_id": self.id,
            "ts": self.clock.now(),
        }

    def emit(self, event: AnyEvent) -> None:
        self.journal.publish(event)


async def _at_once() -> None:
    """A turn that never gave its slot back has it."""


class Engine(Protocol):
    """What runs turns of one conversation."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[str]:
        """What it does: "model" (asks the conversation's model), "steer" (takes steers by itself)."""
        ...

    async def run(self, turn: Turn) -> Ending:
        """One turn, to its end. Cancelling the task that awaits this is how it is interrupted."""
        ...

    async def steer(self, item: Item) -> bool:
        """Take a steer into the running turn now; False leaves it in the queue. Asked only with "steer"."""
        ...

    async def interrupt(self) -> None:
        """Stop what runs outside of our task, if anything does."""
        ...

    async def close(self) -> None: ...

    def output(self) -> AsyncIterator[Spoken] | None:
        """What it says between turns; the conversation opens a turn without a user message for each."""
        ...
