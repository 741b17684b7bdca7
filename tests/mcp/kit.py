"""What the tests of MCP share."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tertulia import Session
from tertulia.testing import EventRecorder, FakeClock, FakeMcpServer, FakeTool, ScriptedModel

BOUND = 20.0  # seconds that anything here may take on a slow machine
_marks = itertools.count(1)


def mark() -> str:
    """A length of sleep that no other process has: by it a test finds the one it had started."""
    return f"9{next(_marks):03d}.{id(_marks) % 10**9}"


def with_argument(text: str) -> set[int]:
    """The processes that have this among their arguments."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in file.read_bytes().split(b"\0"):
                found.add(int(file.parent.name))
    return found


async def until(condition: Callable[[], Any], timeout: float = BOUND) -> None:
    """Until it is true. What happens in other processes nobody tells us of: this looks again and again."""
    async with asyncio.timeout(timeout):
        while not condition():
            tick = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, tick.set)
            await tick.wait()


@contextlib.asynccontextmanager
async def talk(
    servers: dict[str, Any], *script: Any, **options: Any
) -> AsyncIterator[tuple[Session, ScriptedModel, EventRecorder]]:
    """A session with these servers, ready, with a model that answers by this script."""
    model = ScriptedModel(script, default=options.pop("default", None))
    given = {name: getattr(each, "config", each) for name, each in servers.items()}
    options.setdefault("approvals", "allow")
    async with (
        asyncio.timeout(BOUND * 2),
        Session.open(model=model, mcp_servers=given, **options) as session,
        EventRecorder(session) as seen,
    ):
        yield session, model, seen


async def ready(session: Session, *names: str) -> None:
    """Until these servers (or all) run."""
    await until(
        lambda: all(
            each.state == "ready" for each in session.mcp.servers() if not names or each.name in names
        )
    )


def shown(model: ScriptedModel, request: int = -1) -> list[str]:
    return [tool.name for tool in model.requests[request].tools]


async def results(session: Any) -> list[tuple[str, str, str]]:
    return [(e.name, e.status, e.text) for e in await session.transcript() if e.type == "tool_result"]


def warnings(seen: EventRecorder, code: str | None = None) -> list[str]:
    return [e.data["message"] for e in seen.of("warning") if code is None or e.data["code"] == code]


__all__ = ["BOUND", "FakeClock", "FakeMcpServer", "FakeTool"]
