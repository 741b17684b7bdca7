"""The MCP connections of one Session, shared by all its conversations; each sees of them what its view allows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ...records.ids import ConversationId
from ...records.parts import AnyPart
from ..base import Tool
from ..context import ToolContext
from ..schema import Arguments, schema_validator
from .around import Surroundings
from .config import McpLimits, ServerConfig
from .connection import Connection
from .content import Listed
from .limits import Rate, Slots
from .view import View
from .wire import require

CONTEXT = "tool context"  # no argument can be confused with it: names in a call hold no space
START_WAIT = 3.0  # seconds that a model request waits for servers that are starting
RELEASES = 3  # how often a release is tried


class Pool:
    """Connections are held by reference: the first view of a server starts it, the last one's end ends it."""

    def __init__(self, around: Surroundings, limits: McpLimits) -> None:
        self._around = around
        self._limits = limits
        self._slots = Slots(limits.ceiling, limits.concurrent)
        self._rates: dict[ConversationId, Rate] = {}
        self._made: dict[ServerConfig, tuple[int, tuple[Tool, ...]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.connections: dict[ServerConfig, Connection] = {}

    # ── references ──

    def hold(self, view: View) -> None:
        """Start what the view needs, all at once; returns without waiting for any of it."""
        require()
        for config in view.servers:
            connection = self.connections.get(config)
            if connection is None:
                connection = self.connections[config] = Connection(config, self._around)
            connection.references += 1
            connection.start()

    def release(self, view: View, conversation: ConversationId) -> None:
        """The conversation is closed. Servers that nobody needs any more end in the background."""
        self._rates.pop(conversation, None)
        for config in view.servers:
            connection = self.connections[config]
            connection.references -= 1
            if not connection.references:
                del self.connections[config]
                self._made.pop(config, None)
                task = asyncio.create_task(self._end(connection), name=f"tertulia-mcp-end-{config.name}")
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def aclose(self, timeout: float) -> None:
        """End every server. What cannot be ended in time is said in a warning, and left to its supervisor."""
        for connection in self.connections.values():
            self._ending.add(asyncio.create_task(self._end(connection)))
        self.connections = {}
        if self._ending:
            _, late = await asyncio.wait(self._ending, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)

    async def _end(self, connection: Connection) -> None:
        failure: BaseException | None = None
        for _ in range(RELEASES):
            try:
                await connection.end()
                return
            except asyncio.CancelledError:
                failure = TimeoutError("it did not end in time")
                break
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - tried again, then told
                failure = error
        text = f"the MCP server {connection.name} could not be released: {failure}"
        self._around.warn(connection.config, "mcp_release", text)

    # ── tools ──

    async def ready(self, view: View) -> list[Connection]:
        """Wait a little for servers that start or list anew; those that need longer come with a later request."""
        mine = self._of(view)
        if waiting := [
            each.settled(START_WAIT) for each in mine if each.state == "starting" or each.listing.stale
        ]:
            await asyncio.gather(*waiting)
        return [each for each in mine if each.state == "starting" and not each.listing.version]

    def stamp(self, view: View) -> tuple[int, ...]:
        """Changes when the tools may have."""
        return tuple(each.listing.version for each in self._of(view))

    def tools(self, view: View) -> tuple[tuple[Tool, bool], ...]:
        """Each tool that the view shows, by server and name, and whether it came late."""
        found: list[tuple[Tool, bool]] = []
        for connection in self._of(view):
            for tool, listed in zip(self._tools_of(connection), connection.listing.tools, strict=True):
                if view.shows(connection.config, listed):
                    found.append((tool, listed.late))
        return tuple(found)

    def _of(self, view: View) -> list[Connection]:
        return [self.connections[config] for config in view.servers if config in self.connections]

    def _tools_of(self, connection: Connection) -> tuple[Tool, ...]:
        made = self._made.get(connection.config)
        if made is None or made[0] != connection.listing.version:
            tools = tuple(self._tool(connection, each) for each in connection.listing.tools)
            made = self._made[connection.config] = (connection.listing.version, tools)
        return made[1]

    def _tool(self, connection: Connection, listed: Listed) -> Tool:
        name = connection.name
        return Tool(
            name=listed.shown,
            description=f"[{name}, an MCP server] {listed.description}".rstrip(),
            short_description=listed.description.partition("\n")[0][:80],
            parameters=listed.parameters,
            fn=_Function(self._call, connection, listed.name),
            source="mcp",
            server=name,
            ask=not (connection.config.trust and listed.read_only),
            validate=_lenient(listed.parameters),
            context_parameter=CONTEXT,
        )

    async def _call(
        self, connection: Connection, tool: str, args: dict[str, Any], context: ToolContext
    ) -> list[AnyPart]:
        conversation = context.conversation_id
        if self._limits.per_minute is not None:
            rate = self._rates.get(conversation)
            if rate is None:
                rate = self._rates[conversation] = Rate(self._limits.per_minute, self._around.clock)
            await rate.wait()
        await self._slots.enter(conversation)
        try:
            return await connection.call(tool, args, context)
        finally:
            self._slots.leave(conversation)


class _Function:
    """What a Tool of a server runs."""

    def __init__(
        self,
        call: Callable[[Connection, str, dict[str, Any], ToolContext], Awaitable[list[AnyPart]]],
        connection: Connection,
        tool: str,
    ) -> None:
        self._run = call
        self.connection = connection
        self.tool = tool

    async def __call__(self, /, **args: Any) -> list[AnyPart]:
        context = args.pop(CONTEXT)
        return await self._run(self.connection, self.tool, args, context)


def _lenient(schema: dict[str, Any]) -> Arguments:
    """A server's schema may be anything: what we cannot make sense of is left to the server to check."""
    check = schema_validator(schema)

    def validate(args: dict[str, Any]) -> dict[str, Any]:
        try:
            return check(args)
        except (TypeError, AttributeError, KeyError):
            return args

    return validate
