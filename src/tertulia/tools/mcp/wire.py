"""The three transports as one: a pair of streams, and a sign when the connection is lost."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from ...records.errors import MissingExtra
from .around import Standing, Surroundings
from .config import ServerConfig
from .logbook import Logbook
from .process import stdio


def require() -> None:
    """The SDK, or the line that says how to get it."""
    try:
        import mcp  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra("MCP servers need the extra mcp", hint="pip install 'tertulia[mcp]'") from error


@contextlib.asynccontextmanager
async def transport(
    config: ServerConfig, around: Surroundings, log: Logbook, standing: Standing
) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a connection, which counts as lost when the other side ends it."""
    async with _open(config, around, log, standing) as (incoming, outgoing):
        yield Watched(incoming, standing.lost.set), outgoing


@contextlib.asynccontextmanager
async def _open(
    config: ServerConfig, around: Surroundings, log: Logbook, standing: Standing
) -> AsyncIterator[tuple[Any, Any]]:
    if config.type == "stdio":
        async with stdio(config, around.cwd, log) as streams:
            yield streams
        return
    from .http import remote

    async with remote(config, around, standing) as streams:
        yield streams


class Watched:
    """A stream as it is, but for a call at its end."""

    def __init__(self, stream: Any, lost: Callable[[], None]) -> None:
        self._stream = stream
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "Watched":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._lost()
            raise

    async def __aenter__(self) -> "Watched":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)
