"""One call of an MCP server's tool through the pool of a Session: slots, limits, cancelling, its supervised process.

Beside: the SDK's own client and transport, with a process of the same server.
"""

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tertulia import Session, Tool
from tertulia.testing import FakeMcpServer, FakeTool
from tertulia.tools.mcp.pool import CONTEXT

from .harness import Result, Scale, pick, rounds, timed
from .models import Answers


async def run(scale: Scale) -> list[Result]:
    times = pick(scale, 2, 50)
    with tempfile.TemporaryDirectory(prefix="tertulia-bench-") as folder:
        server = FakeMcpServer(Path(folder), [FakeTool(name="echo", text="heard")])
        async with (
            Session.open(model=Answers(), mcp_servers={"fake": server.config}) as session,
            _client(server) as client,
        ):
            await session.mcp.started("fake")
            (tool,) = session.mcp.tools()
            context = SimpleNamespace(conversation_id=session.root.id, progress=lambda value: None)
            ours, theirs = await rounds(
                pick(scale, 1, 15),
                lambda: timed(times, lambda: _through(tool, context)),
                lambda: timed(times, lambda: _bare(client)),
            )
    return [Result("MCP call, stdio", ours, "ms", theirs, "the SDK's own client")]


@contextlib.asynccontextmanager
async def _client(server: FakeMcpServer) -> AsyncIterator[Client]:
    program, *arguments = server.command
    parameters = StdioServerParameters(command=program, args=arguments)
    errors = sys.__stderr__ or sys.stderr  # it wants one with a descriptor
    async with Client(stdio_client(parameters, errlog=errors), cache=None) as client:
        yield client


async def _through(tool: Tool, context: SimpleNamespace) -> None:
    _heard(await tool.fn(**{CONTEXT: context}))


async def _bare(client: Client) -> None:
    _heard((await client.call_tool("echo", {})).content)


def _heard(content: Any) -> None:
    if [part.text for part in content] != ["heard"]:
        raise AssertionError(f"the server answered {content}")
