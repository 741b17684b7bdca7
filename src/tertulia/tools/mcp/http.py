"""Streamable HTTP and SSE: the SDK's transports over a client whose answers are bounded. Imported when it is used."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from .config import ServerConfig
from .process import MAX_MESSAGE

CONNECT = (
    10.0  # seconds for a connection and for each write; how long an answer may take is the call's own limit
)


@contextlib.asynccontextmanager
async def remote(config: ServerConfig) -> AsyncIterator[tuple[Any, Any]]:
    def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers=dict(config.headers),
            timeout=httpx2.Timeout(CONNECT, read=None),
            event_hooks={"response": [bounded]},
        )

    if config.type == "sse":
        async with sse_client(config.url, httpx_client_factory=client) as streams:
            yield streams
        return
    async with (
        client() as http,
        streamable_http_client(config.url, http_client=http, max_sse_event_size=MAX_MESSAGE) as streams,
    ):
        yield streams


async def bounded(response: httpx2.Response) -> None:
    """The SDK reads a JSON answer whole, so one that is too large has to break off. Events have a bound each."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = Counted(response.stream)


class Counted(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"the answer is larger than {MAX_MESSAGE // 2**20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
