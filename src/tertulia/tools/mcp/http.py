"""Streamable HTTP and SSE: the SDK's transports over a client whose answers are bounded. Imported when it is used."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from ...records.errors import TertuliaError
from .around import Standing, Surroundings
from .config import ServerConfig
from .oauth import SignIn
from .process import MAX_MESSAGE

CONNECT = (
    10.0  # seconds for a connection and for each write; how long an answer may take is the call's own limit
)


class Client(httpx2.AsyncClient):
    """Where signing in fails, the answer is a refusal: an error would end the transport without a word."""

    def __init__(self, config: ServerConfig, auth: SignIn | None, standing: Standing) -> None:
        self._standing = standing
        super().__init__(
            auth=auth,
            headers=dict(config.headers),
            timeout=httpx2.Timeout(CONNECT, read=None),
            event_hooks={"response": [bounded]},
        )

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._standing.refusal is not None:  # it is the same for all until the next start
            return httpx2.Response(401, request=request)
        try:
            return await super().send(request, **options)
        except TertuliaError as error:
            self._standing.refuse(error)
            return httpx2.Response(401, request=request)


@contextlib.asynccontextmanager
async def remote(
    config: ServerConfig, around: Surroundings, standing: Standing
) -> AsyncIterator[tuple[Any, Any]]:
    sign_in = SignIn(config, around, standing) if config.signs_in else None

    def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        return Client(config, sign_in, standing)

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
    """The SDK reads whole what is no stream of events, so that has to break off. Events have a bound each."""
    wanted = "text/event-stream" in response.request.headers.get("accept", "") and response.is_success
    if not (wanted and response.headers.get("content-type", "").startswith("text/event-stream")):
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
