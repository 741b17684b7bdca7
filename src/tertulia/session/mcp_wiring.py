"""MCP in a Session: `session.mcp`, and how a conversation's own tools and those of its servers come together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..records.errors import InvalidInput, McpError, NotFound, ToolConflict
from ..records.event import WarningEvent
from ..records.ids import ConversationId
from ..records.parts import AnyPart
from ..tools.base import Tool, ToolDescriptor, as_tool, describe_tool
from ..tools.mcp.around import Surroundings
from ..tools.mcp.asking import Elicitation
from ..tools.mcp.config import ServerConfig, parse_limits
from ..tools.mcp.connection import Connection
from ..tools.mcp.oauth_files import Vault
from ..tools.mcp.pool import Pool
from ..tools.mcp.reading import McpPrompt, McpResource, Reading
from ..tools.mcp.view import McpOptions, View
from ..tools.toolbox import Toolbox, combined
from .mcp_sampling import sample
from .shared import Setup, Shared

__all__ = ["Elicitation", "Mcp", "McpPrompt", "McpResource", "McpServer"]


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """How a server fares. `error` is why it is not there, `starts` how often it was started."""

    name: str
    where: str
    state: str
    error: str
    tools: tuple[str, ...]
    starts: int
    conversations: int


def take_options(options: dict[str, Any]) -> McpOptions:
    """Those of `Session.open` that are about MCP, out of all."""
    answerer = options.pop("elicitation", None)
    if answerer is not None and not callable(answerer):
        raise InvalidInput(f"elicitation is {answerer!r}", hint="an async function of an Elicitation")
    login = options.pop("mcp_login", None)
    if login is not None and not callable(login):
        raise InvalidInput(
            f"mcp_login is {login!r}", hint="an async function of an address and a server's name"
        )
    log, auth = options.pop("mcp_log_folder", None), options.pop("mcp_auth_folder", None)
    return McpOptions(
        limits=parse_limits(options.pop("mcp_limits", {})),
        answerer=answerer,
        log_folder=Path(log) if log else None,
        auth_folder=Path(auth).absolute() if auth else None,
        login=login,
    )


class Mcp:
    """The servers of a Session: which there are, and what they offer besides tools."""

    def __init__(self, shared: Shared, options: McpOptions) -> None:
        self._shared = shared
        self._options = options
        self._pool: Pool | None = None
        self._tools: dict[ConversationId, Tools] = {}

    def servers(self) -> Sequence[McpServer]:
        return tuple(_described(each) for each in self._connections())

    async def started(self, server: str, timeout: float = 30.0) -> McpServer:
        """How it fares once it runs or has failed; no prompt needs to wait for that."""
        connection = self._connection(server)
        await connection.settled(timeout)
        return _described(connection)

    def tools(self) -> Sequence[Tool]:
        """All that the servers list, whatever conversations may see of it; `register` takes one of these."""
        if self._pool is None:
            return ()
        everything = View(servers=tuple(each.config for each in self._connections()))
        return tuple(tool for tool, _ in self._pool.tools(everything))

    def logs(self, server: str) -> Sequence[str]:
        """The last lines that a server wrote to stderr."""
        return tuple(self._connection(server).log.lines)

    async def list_resources(self, server: str) -> Sequence[McpResource]:
        return await Reading(self._connection(server)).resources()

    async def read_resource(self, server: str, uri: str) -> Sequence[AnyPart]:
        return await Reading(self._connection(server)).resource(uri)

    async def list_prompts(self, server: str) -> Sequence[McpPrompt]:
        return await Reading(self._connection(server)).prompts()

    async def get_prompt(
        self, server: str, name: str, arguments: Mapping[str, str] | None = None
    ) -> Sequence[tuple[str, AnyPart]]:
        """The messages of a prompt, as (role, part)."""
        return await Reading(self._connection(server)).prompt(name, dict(arguments or {}))

    # ── what the Session uses ──

    def attach(self, conversation: ConversationId, setup: Setup) -> "Tools | None":
        """The conversation's servers are started, where they are not running; nothing waits for them here."""
        view = setup.mcp
        if view is None or not view.servers:
            return None
        if self._pool is None:
            self._pool = Pool(self._surroundings(), self._options.limits)
        self._pool.hold(view)
        made = self._tools[conversation] = Tools(self, self._pool, conversation, view)
        return made

    def detach(self, conversation: ConversationId) -> None:
        tools = self._tools.pop(conversation, None)
        if tools is not None and self._pool is not None:
            self._pool.release(tools.held, conversation)

    async def aclose(self, timeout: float) -> None:
        if self._pool is not None:
            await self._pool.aclose(timeout)

    def warn(self, conversation: ConversationId | None, code: str, message: str) -> None:
        self._shared.bus.publish(
            WarningEvent(
                code=code,
                message=message,
                session_id=self._shared.session_id,
                conversation_id=conversation,
                ts=self._shared.clock.now(),
            )
        )

    def _warn_of(self, server: ServerConfig, code: str, message: str) -> None:
        """To each conversation that has this server; to the Session itself when none has it any more."""
        told = [id for id, tools in self._tools.items() if server in tools.held.servers]
        for id in told or (None,):
            self.warn(id, code, message)

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            clock=self._shared.clock,
            cwd=self._shared.sandbox.cwd,
            warn=self._warn_of,
            answerer=self._options.answerer,
            sampler=sample,
            log_folder=self._options.log_folder,
            vault=Vault(self._options.auth_folder),
            login=self._options.login,
        )

    def _connections(self) -> list[Connection]:
        return (
            [] if self._pool is None else sorted(self._pool.connections.values(), key=lambda each: each.name)
        )

    def _connection(self, server: str) -> Connection:
        found = next((each for each in self._connections() if each.name == server), None)
        if found is None:
            names = ", ".join(each.name for each in self._connections()) or "none"
            raise NotFound(f"this session has no MCP server {server!r}", hint=f"servers: {names}")
        return found


def _described(connection: Connection) -> McpServer:
    return McpServer(
        name=connection.name,
        where=connection.config.where,
        state=connection.state,
        error=connection.error if connection.state == "waiting" else "",
        tools=tuple(tool.name for tool in connection.listing.tools),
        starts=connection.starts,
        conversations=connection.references,
    )


class Tools:
    """The tools of one conversation: its own, and what its view shows of its servers."""

    def __init__(self, mcp: Mcp, pool: Pool, conversation: ConversationId, view: View) -> None:
        self.held = view
        self._mcp = mcp
        self._pool = pool
        self._conversation = conversation
        self._told: set[str] = set()
        self._last: tuple[Toolbox, View, tuple[int, ...]] | None = None
        self._box = Toolbox()

    def combined(self, native: Toolbox, view: View) -> Toolbox:
        stamp = self._pool.stamp(view)
        last = self._last
        if last is None or last[0] is not native or last[1] is not view or last[2] != stamp:
            found = self._pool.tools(view)
            self._box, conflicts = combined(native, found, qualify=view.on_conflict == "qualify")
            self._last = (native, view, stamp)
            for conflict in conflicts:
                self._warn_once("tool_conflict", conflict)
        return self._box

    async def ready(self, view: View) -> None:
        """Before a model request: what changed is there, and who is slow is named."""
        for connection in await self._pool.ready(view):
            text = f"the MCP server {connection.name} is still starting: its tools come with a later request"
            self._warn_once("mcp_slow", text)

    def _warn_once(self, code: str, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._mcp.warn(self._conversation, code, message)


def register(setup: Setup, tool: Any, conversation: ConversationId, mcp: Mcp) -> ToolDescriptor:
    """Add a tool of one's own, or one of a server that the view does not show."""
    made = as_tool(tool)
    if made.source == "mcp":
        return _admit(setup, made)
    try:
        held = setup.tools().get(made.name)
        keeps = setup.mcp is None or setup.mcp.on_conflict == "keep"
        if held is not None and held.source == "mcp" and held.signature != made.signature and keeps:
            raise ToolConflict(
                f"the MCP server {held.server} has a tool named {made.name} with other parameters",
                hint=f"unregister({made.name!r}) first, give it another name, or open with on_conflict='qualify'",
                name=made.name,
            )
        setup.toolbox = setup.toolbox.with_tool(made)
    except ToolConflict as conflict:
        mcp.warn(conversation, "tool_conflict", str(conflict))
        raise
    return next(each for each in setup.toolbox.descriptors() if each.name == made.name)


def _admit(setup: Setup, tool: Tool) -> ToolDescriptor:
    view, own = setup.mcp, getattr(tool.fn, "tool", tool.name)
    if view is None or tool.server not in {each.name for each in view.servers}:
        raise McpError(
            f"this conversation has no MCP server {tool.server}", hint="open it with mcp_servers=…"
        )
    added = view.added | {(tool.server, own)}
    setup.mcp = msgspec.structs.replace(view, removed=view.removed - {tool.name}, added=added)
    return describe_tool(tool)


def unregister(setup: Setup, name: str) -> bool:
    """Remove a tool for good, its own or a server's; whether there was one."""
    shown = setup.tools().get(name)
    setup.toolbox = setup.toolbox.without(name)
    if setup.mcp is not None:
        own = (shown.server, getattr(shown.fn, "tool", name)) if shown is not None else None
        added = frozenset(each for each in setup.mcp.added if each != own)
        setup.mcp = msgspec.structs.replace(setup.mcp.without(name), added=added)
    return shown is not None
