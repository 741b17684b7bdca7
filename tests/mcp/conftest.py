"""A server of the tests' own: `fake(tools, …)`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.testing import FakeMcpServer, FakeTool


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., FakeMcpServer]:
    def make(*tools: Any, **script: Any) -> FakeMcpServer:
        return FakeMcpServer(
            tmp_path, [FakeTool(name=t) if isinstance(t, str) else t for t in tools], **script
        )

    return make
