"""What a tool is told about the call it serves, and its way back into the Session's loop."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from ..records.ids import CallId, ConversationId, SessionId, TurnId
from ..records.record import Hit
from ..sandbox.files import Place
from ..sandbox.sandbox import Sandbox

OUTPUT = "output:"
"""What a model puts before the ref of an output that was cut, to read it where it would give a path."""

T = TypeVar("T")


class Portal:
    """Lets a plain function, which runs in a thread of its own, await something in the Session's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
        return asyncio.run_coroutine_threadsafe(fn(*args, **kwargs), self._loop).result()


class ToolContext(Protocol):
    """What a tool is told about the call it serves, when it asks by annotating a parameter with this type."""

    session_id: SessionId
    conversation_id: ConversationId
    turn_id: TurnId
    call_id: CallId
    cwd: str
    portal: Portal
    sandbox: Sandbox
    max_output: int
    nested: bool

    def progress(self, value: Any) -> None:
        """Emit a tool_progress event; from any thread."""
        ...

    def retrieved(self, query: str, hits: Sequence[Hit]) -> None:
        """Record what a search found, for people to see where an answer comes from; nothing when it found nothing."""
        ...

    def tools(self) -> tuple[Any, ...]:
        """The Tools that the model of this turn is told of."""
        ...

    async def prompt(
        self, input: Any, *, opened: Callable[[ConversationId], None] | None = None, **overrides: Any
    ) -> Any:
        """Ask a sub-conversation of the same Session, in this turn's slot; returns its Reply.

        `opened` is told its id before it runs. The turns of a sub-conversation have `nested` set in their calls.
        """
        ...

    async def write_file(self, path: str, data: bytes | None, before: bytes | None) -> Place:
        """Let a file hold `data` (None: remove it), in a way that rewind_files() can take back.

        `before` is what was read of it (None: there was none); Conflict when it holds something else by now.
        """
        ...

    async def put_blob(self, data: bytes) -> str:
        """Keep bytes in the store; they live as long as the result of this call."""
        ...

    async def get_blob(self, ref: str) -> bytes:
        """Bytes that a result of this conversation holds; NotFound for any others."""
        ...
