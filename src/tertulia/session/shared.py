"""What the conversations of one Session share, and what each is set up with."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from ..models.base import Model
from ..records.clock import Clock
from ..records.errors import WrongThread
from ..records.ids import ConversationId, SessionId, TurnId
from ..sandbox.sandbox import Sandbox
from ..store.base import Store
from ..tools.mcp.view import McpOptions, View
from ..tools.toolbox import Toolbox
from ..transcript.retention import Retention
from .bus import Bus
from .engine import Engine, Gate, Limits, Turn
from .log import Log
from .owner import Owner
from .scheduler import Scheduler

OnError = Literal["fail", "hold", "continue"]


class Shared:
    """The Session's own things, below the Session: conversations hold this and never the Session itself."""

    def __init__(
        self, session_id: SessionId, store: Store, clock: Clock, slots: int, sandbox: Sandbox
    ) -> None:
        self.session_id = session_id
        self.store = store
        self.clock = clock
        self.sandbox = sandbox
        self.bus = Bus()
        self.scheduler = Scheduler(slots)
        self.owner = Owner(store, session_id)
        self.logs: dict[ConversationId, Log] = {}
        self.turns: dict[TurnId, tuple[ConversationId, Turn]] = {}
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()

    def check_thread(self) -> None:
        """Synchronous methods change state at once, which only the Session's own loop may do."""
        if threading.get_ident() != self.thread:
            raise WrongThread(
                "this session belongs to the thread that opened it",
                hint="use asyncio.run_coroutine_threadsafe, or ToolContext.portal from a tool",
            )

    def check_loop(self) -> None:
        self.check_thread()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return  # called between two steps of the loop
        if running is not self.loop:
            raise WrongThread("this session belongs to another event loop", hint="open one in this loop")


class ServerTools(Protocol):
    """The tools of a conversation's MCP servers, beside its own."""

    def combined(self, native: Toolbox, view: View) -> Toolbox: ...

    async def ready(self, view: View) -> None: ...


class Setup(msgspec.Struct, kw_only=True):
    """How a conversation runs its turns. Its toolbox and its view of MCP change by register and unregister."""

    engine: Engine
    make_engine: Callable[[], Engine]
    toolbox: Toolbox
    retention: Retention
    limits: Limits
    model: Model | None = None
    fallbacks: tuple[Model, ...] = ()
    system_prompt: str | Callable[[], str] = ""
    on_error: OnError = "fail"
    gate: Gate | None = None
    mcp: View | None = None
    mcp_options: McpOptions = McpOptions()
    server_tools: ServerTools | None = None

    def tools(self) -> Toolbox:
        """All tools that there are now, those of MCP servers among them."""
        if self.server_tools is None or self.mcp is None:
            return self.toolbox
        return self.server_tools.combined(self.toolbox, self.mcp)

    async def tools_ready(self) -> None:
        """Wait, not for long, for servers that start or whose tools changed."""
        if self.server_tools is not None and self.mcp is not None:
            await self.server_tools.ready(self.mcp)

    def system(self) -> str:
        prompt = self.system_prompt
        return prompt() if callable(prompt) else prompt

    def child(self, **changes: Any) -> "Setup":
        """The same for another conversation, with some things changed."""
        return msgspec.structs.replace(self, **changes)
