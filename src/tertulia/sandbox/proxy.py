"""The way out of a command that may reach some hosts: an HTTP proxy of ours, at a port of the command's own loopback.

The command's network holds nothing but that port. What asks for a host on the list, by CONNECT or by a plain http
address, is connected to it from here; what asks for another is refused, and the refusal is told.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Coroutine
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ..records.errors import SandboxError
from .hosts import Hosts
from .threads import in_thread

PORT = 3128
ADDRESS = f"http://127.0.0.1:{PORT}"
DOORWAY = os.path.join(os.path.dirname(__file__), "doorway.py")

CHUNK = 65536
CONNECTIONS = 64
TOTAL = 128  # connections of all commands of this process: each takes two of its files
NAMES, ALL_NAMES = 8, 64  # that are looked up at a time, of one command and of all
START, HEAD, CONNECT = 10.0, 30.0, 15.0  # seconds: for the port, a request's first lines, a host's answer
TOLD = 20  # refused hosts that are remembered


class Refused(Exception):
    """What a request cannot have, with the status that says so."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


def environment() -> dict[str, str]:
    """What tells programs of the proxy."""
    names = ("http_proxy", "https_proxy", "all_proxy")
    found = {name: ADDRESS for each in names for name in (each, each.upper())}
    return {**found, "no_proxy": "", "NO_PROXY": "", "NODE_USE_ENV_PROXY": "1"}


_places = threading.BoundedSemaphore(TOTAL)
_lookups = threading.BoundedSemaphore(ALL_NAMES)


class Proxy:
    def __init__(self, hosts: Hosts) -> None:
        self.refused: dict[str, None] = {}
        self._names = asyncio.Semaphore(NAMES)
        self._closed = False
        self._hosts = hosts
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, pid: int) -> None:
        """Listen in the network of this process."""
        listener = await listening(pid)
        try:
            self._server = await asyncio.start_server(
                self._accept, sock=listener, limit=CHUNK, start_serving=False
            )
            await self._server.start_serving()
        except BaseException:
            if self._server is None:
                listener.close()
            else:
                self._server.close()
            raise

    async def aclose(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _accept(self, reader: Reader, writer: Writer) -> None:
        if self._closed:  # it came in the last moment
            writer.transport.abort()
        elif len(self._serving) >= CONNECTIONS:
            _turn_away(writer, f"more than {CONNECTIONS} connections at a time")
        elif not _places.acquire(blocking=False):
            _turn_away(writer, f"more than {TOTAL} connections of all commands at a time")
        else:
            task = asyncio.create_task(self._serve(reader, writer), name="tertulia-connection")
            self._serving.add(task)
            task.add_done_callback(partial(self._left, writer))

    def _left(self, writer: Writer, task: "asyncio.Task[None]") -> None:
        """Also when it was cancelled before it began."""
        self._serving.discard(task)
        _places.release()
        writer.transport.abort()

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        await self._answer(reader, writer)
        await _closed(writer)

    async def _answer(self, reader: Reader, writer: Writer) -> None:
        try:
            head = await _head(reader)
            host, port, rest = _asked(head)
            there, out = await self._connect(host, port)
        except Refused as refused:
            _say(writer, refused)
            return
        except (OSError, EOFError):
            return  # it left, or says nothing
        try:
            if rest is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                out.write(rest)
            await _both(_pump(reader, out), _pump(there, writer))
            await _closed(out)
        finally:
            out.transport.abort()

    async def _connect(self, host: str, port: int) -> tuple[Reader, Writer]:
        if not self._hosts.allows(host, port):
            raise self._refuse(host, port, "is not on the list of hosts that commands may reach")
        try:
            async with asyncio.timeout(CONNECT):
                async with self._names:
                    addresses = await _resolved(host, port)
                if not all(self._hosts.reaches(each, port) for each in addresses):
                    raise self._refuse(
                        host, port, "is inside of a network, and its address is not on the list"
                    )
                return await _first(addresses, port)
        except (OSError, ValueError) as error:
            why = str(error) or "it does not answer"
            raise Refused("502 Bad Gateway", f"{host} cannot be reached: {why}") from error

    def _refuse(self, host: str, port: int, why: str) -> Refused:
        place = f"{host[:200]}:{port}"
        if len(self.refused) < TOLD:
            self.refused[place] = None
        return Refused("403 Forbidden", f"{place} {why}: {', '.join(self._hosts.listed)[:1000]}")


async def listening(pid: int) -> socket.socket:
    """A socket that listens at the port, in the network of that process."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            helper = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", DOORWAY, str(namespace), str(theirs.fileno()), str(PORT),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=(namespace, theirs.fileno()), env={},
            )  # fmt: skip
        finally:
            os.close(namespace)
        theirs.close()
        _, said = await _ended(helper)
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
            if descriptors:
                return socket.socket(fileno=descriptors[0])
    lines = said.decode(errors="replace").strip().splitlines()
    raise SandboxError(
        f"no port can be opened in the command's network: {lines[-1] if lines else 'no reason given'}"
    )


async def _ended(helper: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    try:
        async with asyncio.timeout(START):
            return await helper.communicate()
    finally:
        if helper.returncode is None:
            helper.kill()
            await helper.wait()


async def _head(reader: Reader) -> bytes:
    try:
        async with asyncio.timeout(HEAD):
            return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise Refused("431 Request Header Fields Too Large", f"the request has over {CHUNK} bytes") from error


def _asked(head: bytes) -> tuple[str, int, bytes | None]:
    """The host and port that a request is for and, when it is not CONNECT, what to say to it."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    try:
        method, target, version = first.decode("ascii").split(" ")
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Refused("400 Bad Request", "this is no request to a proxy") from error
    if method == "CONNECT" and host and port:
        return host, port, None
    if parts.scheme != "http" or not host or b"\n" in head.replace(b"\r\n", b""):
        raise Refused("400 Bad Request", "this proxy takes CONNECT, and http addresses")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [
        line for line in lines if not line.lower().startswith((b"proxy-", b"connection:", b"keep-alive:"))
    ]
    # One request for each connection: a later one might be for another host.
    said = [f"{method} {path} {version}".encode(), *kept, b"Connection: close", b"", b""]
    return host, port or 80, b"\r\n".join(said)


async def _resolved(host: str, port: int) -> list[str]:
    """In no thread of the loop's: a name server that is silent would hold up all else that waits for one."""
    if not _lookups.acquire(blocking=False):
        raise Refused("503 Service Unavailable", f"more than {ALL_NAMES} names are being looked up")
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await in_thread("name", ask, _lookups.release)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _first(addresses: list[str], port: int) -> tuple[Reader, Writer]:
    """A connection to the first that answers; the addresses are those that were checked, so no name is asked again."""
    failure: OSError = OSError("it has no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port, limit=CHUNK)
        except OSError as error:
            failure = error
    raise failure


async def _pump(source: Reader, target: Writer) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def _both(*pumps: Coroutine[Any, Any, None]) -> None:
    """Until both directions have ended, or one has broken."""
    tasks = [asyncio.ensure_future(each) for each in pumps]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            with contextlib.suppress(OSError):
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _turn_away(writer: Writer, why: str) -> None:
    _say(writer, Refused("503 Service Unavailable", why))
    writer.close()


def _say(writer: Writer, refused: Refused) -> None:
    body = f"tertulia: {refused}\n".encode()
    head = f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)


async def _closed(writer: Writer) -> None:
    """When all that was written has left."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
