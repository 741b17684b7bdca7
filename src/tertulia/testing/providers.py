"""Fake provider servers: real HTTP on loopback, so that the real client packages are exercised without a network.

One server speaks the Messages, Chat Completions, Responses and Gemini streaming formats; the path of the request
says which. What it answers is a script, as with ScriptedModel: text, `Think`, calls, `Cut`, a hold, a `Status`.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import msgspec

from ..records.record import Usage
from .model import Hold
from .providers_wire import ERRORS, FORMATS, Cut, Ends, Reply, Status, Think

__all__ = ["Cut", "Ends", "FakeProvider", "Reply", "Seen", "Status", "Think"]

_HEAD = "HTTP/1.1 {code} {reason}\r\ncontent-type: {type}\r\ntransfer-encoding: chunked\r\n{headers}\r\n"
_REASONS = {
    200: "OK",
    401: "Unauthorized",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
}


class Seen:
    """One request as it came, and what became of its connection."""

    def __init__(self, path: str, headers: dict[str, str], raw: bytes) -> None:
        self.path = path
        self.headers = headers
        self.raw = raw
        self.closed = asyncio.Event()  # the client has closed the connection
        self.done = asyncio.Event()  # the answer went out whole

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class FakeProvider:
    """`async with FakeProvider(["Hello."]) as fake`, then a client with `base_url=fake.url`.

    Each item of the script answers one request: text, pieces in a list, a Reply, a Status, a hold (nothing is sent
    before its release), or a function of the request that returns one of these. `requests` is what came.
    """

    def __init__(
        self, script: Iterable[Any] = (), default: Any = None, *, usage: Usage | None = None
    ) -> None:
        self._script = list(script)
        self._default = default
        self._usage = usage or Usage(input_tokens=10, output_tokens=5)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.requests: list[Seen] = []
        self.url = ""

    def add(self, *answers: Any) -> None:
        """More answers, behind those that are left."""
        self._script.extend(answers)

    async def __aenter__(self) -> "FakeProvider":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        answering: asyncio.Task[None] | None = None
        seen: Seen | None = None
        try:
            while (
                request := await _read(reader)
            ) is not None:  # reading on, so that a client that leaves is noticed
                if answering is not None:
                    await answering
                seen = request
                self.requests.append(seen)
                answering = asyncio.create_task(self._answer(seen, writer))
        except asyncio.CancelledError:
            pass  # the server is closing; a connection's task may end quietly
        finally:
            self._connections.discard(task)
            if seen is not None:
                seen.closed.set()
            if answering is not None:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
            writer.transport.abort()

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter) -> None:
        answer = self._next(seen)
        while not isinstance(answer, Reply | Status):
            if isinstance(answer, Hold):
                await answer.wait()
                answer = answer.then
            elif callable(answer):
                answer = answer(seen)
            else:
                answer = Reply(*(answer if isinstance(answer, list | tuple) else (answer,)))
        format = next((name for name, (ending, _) in FORMATS.items() if ending in seen.path), None)
        if format is None:
            answer = Status(404, f"there is no {seen.path}")
        if isinstance(answer, Status):
            await _send_status(answer, format or "chat", writer)
            seen.done.set()
            return
        _, speak = FORMATS[format or "chat"]
        writer.write(_head(200, "text/event-stream", {}))
        if await _send(speak(answer, answer.usage or self._usage, seen), writer):
            seen.done.set()

    def _next(self, seen: Seen) -> Any:
        if self._script:
            return self._script.pop(0)
        if self._default is not None:
            return self._default
        return Status(500, f"request {len(self.requests)}: the script has no answer for it")


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    """The next request; None when the client has gone."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Seen(first.split(" ")[1], headers, body)


async def _send(pieces: Iterator[bytes | Cut | Hold], writer: asyncio.StreamWriter) -> bool:
    """Whether all of it went out."""
    for piece in pieces:
        if isinstance(piece, Hold):
            await piece.wait()
        elif isinstance(piece, Cut):
            writer.transport.abort()
            return False
        else:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _send_status(status: Status, format: str, writer: asyncio.StreamWriter) -> None:
    headers = dict(status.headers)
    if status.retry_after is not None:
        headers["retry-after"] = str(status.retry_after)
    body = status.body if status.body is not None else msgspec.json.encode(ERRORS[format](status))
    writer.write(_head(status.code, "application/json", headers))
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n")
    await writer.drain()


def _head(code: int, media: str, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return _HEAD.format(code=code, reason=_REASONS.get(code, "Error"), type=media, headers=lines).encode()
