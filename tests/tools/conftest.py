"""A tool, called as a turn calls it: arguments validated, the context filled in, a sandbox around it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tertulia.sandbox.changes import replace
from tertulia.sandbox.sandbox import Sandbox
from tertulia.tools.base import Tool, is_async
from tertulia.tools.builtin import default_tools
from tertulia.tools.context import Portal

Use = Callable[..., Awaitable[Any]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
async def context(root: Path) -> AsyncIterator[Any]:
    seen: list[Any] = []
    sandbox = Sandbox("on", str(root))

    async def write_file(path: str, data: bytes | None, before: bytes | None) -> Any:
        return replace(sandbox.files, path, data, before)

    yield SimpleNamespace(
        sandbox=sandbox,
        cwd=str(root),
        progress=seen.append,
        seen=seen,
        portal=Portal(asyncio.get_running_loop()),
        write_file=write_file,
        max_output=50_000,
    )
    async with asyncio.timeout(15):
        await sandbox.aclose()


@pytest.fixture
def use(context: Any) -> Use:
    """`await use("read", path="a.txt")`; a plain function runs in a thread, as it does in a turn."""
    tools: dict[str, Tool] = {tool.name: tool for tool in default_tools()}

    async def use(name: str, **args: Any) -> Any:
        tool = tools[name]
        assert tool.validate is not None
        given = tool.validate(args)
        if tool.context_parameter is not None:
            given[tool.context_parameter] = context
        async with asyncio.timeout(30):
            return await tool.fn(**given) if is_async(tool.fn) else await asyncio.to_thread(tool.fn, **given)

    return use
