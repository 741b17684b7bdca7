"""What one conversation sees of MCP servers."""

from pathlib import Path
from typing import Literal

import msgspec

from .around import Login
from .asking import Answerer
from .config import McpLimits, ServerConfig
from .content import Listed

OnConflict = Literal["keep", "qualify"]


class McpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a Session says of its MCP servers as a whole."""

    limits: McpLimits = McpLimits()
    answerer: Answerer | None = None
    log_folder: Path | None = None
    auth_folder: Path | None = None
    login: Login | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one conversation has of which servers, as a value: a fork has the same."""

    servers: tuple[ServerConfig, ...] = ()
    allowed: dict[str, frozenset[str]] | None = None
    removed: frozenset[str] = frozenset()  # by unregister(): lasting, whatever the servers list later
    added: frozenset[tuple[str, str]] = frozenset()  # by register(): (server, tool)
    on_conflict: OnConflict = "keep"

    def shows(self, server: ServerConfig, tool: Listed) -> bool:
        if (server.name, tool.name) in self.added:
            return True
        if self.allowed is not None and tool.name not in self.allowed.get(server.name, ()):
            return False
        return (server.tools is None or tool.name in server.tools) and tool.shown not in self.removed

    def without(self, shown: str) -> "View":
        return msgspec.structs.replace(self, removed=self.removed | {shown})
