"""Servers of the tests' own: `fake(tools, …)`, and `far`, which wants signing in."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.testing import FakeMcpServer, FakeOAuthServer, FakeTool


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., FakeMcpServer]:
    def make(*tools: Any, **script: Any) -> FakeMcpServer:
        return FakeMcpServer(
            tmp_path, [FakeTool(name=t) if isinstance(t, str) else t for t in tools], **script
        )

    return make


@pytest.fixture
async def far() -> AsyncIterator[FakeOAuthServer]:
    async with FakeOAuthServer() as server:
        yield server
