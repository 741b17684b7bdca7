"""The tools of one conversation, as a value: forks share it and a snapshot is free."""

from collections.abc import Iterable, Sequence

import msgspec

from ..records.errors import ToolConflict
from .base import Tool, ToolDescriptor, describe_tool

MAX_NAME = 64  # what providers take


class Toolbox(msgspec.Struct, frozen=True):
    """Built-ins first, then registered tools in order of registration, then MCP tools by server and name."""

    tools: tuple[Tool, ...] = ()

    def get(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def with_tool(self, tool: Tool) -> "Toolbox":
        """Of two with one name and equal parameters the first stays; else it is a ToolConflict."""
        held = self.get(tool.name)
        if held is None:
            return Toolbox((*self.tools, tool))
        if held.signature != tool.signature:
            raise ToolConflict(
                f"a tool named {tool.name} with other parameters is registered",
                hint=f"unregister({tool.name!r}) first, or give the new one another name",
                name=tool.name,
            )
        return self

    def without(self, name: str) -> "Toolbox":
        return Toolbox(tuple(tool for tool in self.tools if tool.name != name))

    def enabled(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools if tool.enabled)

    def descriptors(self) -> tuple[ToolDescriptor, ...]:
        return tuple(describe_tool(tool) for tool in self.tools)


def toolbox(tools: Iterable[Tool]) -> Toolbox:
    box = Toolbox()
    for tool in tools:
        box = box.with_tool(tool)
    return box


def combined(
    native: Toolbox, found: Sequence[tuple[Tool, bool]], *, qualify: bool = False
) -> tuple[Toolbox, tuple[str, ...]]:
    """The native tools, then those of MCP servers in their order; and what had to be left out.

    Each found tool comes with whether it came late. Of two with one name and equal parameters the first stays. With
    other parameters the first stays too, and one that came late is never the first; or, qualified, both bear the name
    of their server.
    """
    if qualify:
        found = _qualified(native, found)
    holders = {tool.name: tool for tool in native.tools}
    kept: set[int] = set()
    conflicts: list[str] = []
    for place, (tool, _) in sorted(enumerate(found), key=lambda each: each[1][1]):
        held = holders.setdefault(tool.name, tool)
        if held is tool:
            kept.add(place)
        elif held.signature != tool.signature:
            conflicts.append(
                f"the tool {tool.name} of {_owner(tool)} differs from that of {_owner(held)}, which is kept"
            )
    tools = tuple(tool for place, (tool, _) in enumerate(found) if place in kept)
    return Toolbox((*native.tools, *tools)), tuple(conflicts)


def _qualified(native: Toolbox, found: Sequence[tuple[Tool, bool]]) -> list[tuple[Tool, bool]]:
    """Names that stand for different tools get their server before them; a native tool keeps its own."""
    signatures: dict[str, set[bytes]] = {}
    for tool in (*native.tools, *(each for each, _ in found)):
        signatures.setdefault(tool.name, set()).add(tool.signature)
    return [(_by_server(tool) if len(signatures[tool.name]) > 1 else tool, late) for tool, late in found]


def _by_server(tool: Tool) -> Tool:
    server = "".join(each if each.isascii() and each.isalnum() else "_" for each in tool.server or "mcp")
    return msgspec.structs.replace(tool, name=f"{server}__{tool.name}"[:MAX_NAME])


def _owner(tool: Tool) -> str:
    return f"the MCP server {tool.server}" if tool.server else "this program"
