"""Tools of our own, served to others over stdio."""

from collections.abc import Sequence
from typing import Any

from ...records.errors import TertuliaError
from ...records.parts import text_of
from ..base import Tool
from ..results import result_parts
from ..schema import ArgumentError
from .wire import require


async def serve(name: str, tools: Sequence[Tool]) -> None:
    """Until whoever uses them goes away. The tools are async functions; what they raise is an error result."""
    require()
    from mcp.server.lowlevel.server import Server
    from mcp.server.stdio import stdio_server
    from mcp_types import CallToolResult, ListToolsResult, TextContent
    from mcp_types import Tool as Listed

    by_name = {tool.name: tool for tool in tools}

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Listed(name=each.name, description=each.description, input_schema=each.parameters)
                for each in tools
            ]
        )

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        text, failed = await _called(by_name.get(params.name), params.arguments or {})
        return CallToolResult(content=[TextContent(text=text)], is_error=failed)

    server: Server[Any] = Server(name, on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def _called(tool: Tool | None, args: dict[str, Any]) -> tuple[str, bool]:
    if tool is None:
        return "there is no such tool", True
    try:
        checked = tool.validate(args) if tool.validate is not None else args
        return text_of(result_parts(await tool.fn(**checked))), False
    except (TertuliaError, ArgumentError) as error:
        return str(error), True
