"""What tools one server has, as it last said."""

import asyncio
import contextlib
from typing import Any

import msgspec

from .around import Surroundings, ended, explain
from .config import ServerConfig
from .content import Listed, listed

PAGES, MAX_TOOLS = 50, 512
REFRESH_EVERY = 1.0  # seconds between two listings that a server brings about by itself


class Listing:
    """`version` changes with the tools. They stay as they are while the server is down."""

    def __init__(self, config: ServerConfig, around: Surroundings) -> None:
        self.tools: tuple[Listed, ...] = ()
        self.version = 0
        self._config = config
        self._around = around
        self._client: Any = None
        self._refreshing: asyncio.Task[None] | None = None
        self._changed = False
        self._listed_at = 0.0

    @property
    def stale(self) -> bool:
        """Whether the server said that its tools changed, and they are not listed anew yet."""
        return self._changed or (self._refreshing is not None and not self._refreshing.done())

    async def begin(self, client: Any) -> None:
        self._changed = False
        self._take(await self._fetch(client))
        self._client = client

    async def leave(self) -> None:
        self._client = None
        if self._refreshing is not None:
            await ended({self._refreshing})

    async def settled(self, timeout: float) -> None:
        """Until they are listed anew, if they changed; but not longer than that."""
        if self._changed:
            self._refresh()
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.wait([self._refreshing], timeout=timeout)

    async def heard(self, message: Any) -> None:
        """A notification of the server."""
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._changed = True
            if self._around.clock.monotonic() - self._listed_at >= REFRESH_EVERY:
                self._refresh()  # else at the next model request: a server cannot keep us busy

    async def listen(self, client: Any) -> None:
        """Servers of 2026 say what changed only to who listens."""
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
        from mcp.shared.exceptions import MCPError

        with contextlib.suppress(ListenNotSupportedError, SubscriptionLost, MCPError):
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    pass  # the notification itself comes to heard() too

    def _refresh(self) -> None:
        """Once at a time; a change while that is under way counts for the next time."""
        if self._client is None or (self._refreshing is not None and not self._refreshing.done()):
            return
        self._changed = False
        self._refreshing = asyncio.create_task(self._again(self._client), name="tertulia-mcp-relist")

    async def _again(self, client: Any) -> None:
        try:
            async with asyncio.timeout(self._config.timeout):
                self._take(await self._fetch(client))
        except Exception as error:  # noqa: BLE001 - the tools stay as they were, and why is told
            self._warn("mcp", f"its tools cannot be listed again: {explain(error)}")

    async def _fetch(self, client: Any) -> list[Any]:
        found: list[Any] = []
        if client.server_capabilities.tools is None:
            return found
        cursor: str | None = None
        for _ in range(PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            if not page.next_cursor:
                break
            if page.next_cursor == cursor or len(found) >= MAX_TOOLS:
                break
            cursor = page.next_cursor
        if page.next_cursor or len(found) > MAX_TOOLS:
            self._warn(
                "mcp_tool", f"its list of tools has no end: the first {min(len(found), MAX_TOOLS)} are taken"
            )
        return found[:MAX_TOOLS]

    def _take(self, found: list[Any]) -> None:
        tools, refused = listed(found)
        for problem in refused[:10]:
            self._warn("mcp_tool", f"{problem}; it is left out")
        if self.version:
            before = {tool.name: tool for tool in self.tools}
            tools = tuple(
                msgspec.structs.replace(tool, late=_late(tool, before.get(tool.name))) for tool in tools
            )
        self._listed_at = self._around.clock.monotonic()
        if tools != self.tools or not self.version:
            self.tools = tools
            self.version += 1

    def _warn(self, code: str, text: str) -> None:
        self._around.warn(self._config, code, f"the MCP server {self._config.name}: {text}")


def _late(tool: Listed, before: Listed | None) -> bool:
    return before is None or before.late or before.parameters != tool.parameters
