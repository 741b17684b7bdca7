"""The transport of a stdio server: our own, for a supervised process, bounded lines and a drained stderr."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ...records.errors import McpError
from .config import ServerConfig
from .logbook import Logbook

MAX_MESSAGE = 8 * 1024 * 1024
CHUNK = 64 * 1024
INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "TMPDIR")
LEAVE, KILL = 1.0, 3.0  # seconds: for the server to end by itself; for the supervisor to end it
SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
TOO_LONG = -32001
_ID = re.compile(rb'"id"\s*:\s*(\d+|"[^"\\]{1,200}")')


@contextlib.asynccontextmanager
async def stdio(config: ServerConfig, cwd: str, log: Logbook) -> AsyncIterator[tuple[Any, Any]]:
    """The streams of a server that is started here and gone, with all it started, at the end of the block."""
    import anyio

    process, lifeline = await _spawn(config, cwd)
    # The SDK takes each message in turn: a server that floods is held up by its own pipe.
    arrived, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, leaving = anyio.create_memory_object_stream[Any](0)
    tasks = [
        asyncio.create_task(_read(process, arrived, log), name="tertulia-mcp-read"),
        asyncio.create_task(_write(process, leaving, arrived), name="tertulia-mcp-write"),
        asyncio.create_task(_drain(process, log), name="tertulia-mcp-log"),
    ]
    try:
        yield incoming, outgoing
    finally:
        ending = asyncio.ensure_future(_end(process, lifeline, tasks))
        for stream in (arrived, incoming, outgoing, leaving):
            stream.close()
        await _unbroken(ending)


async def _unbroken(ending: "asyncio.Future[None]") -> None:
    """Wait for what is bounded anyway, also when we are cancelled meanwhile: no process is left for that."""
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancelled = error
    ending.result()
    if cancelled is not None:
        raise cancelled


async def _spawn(config: ServerConfig, cwd: str) -> tuple[asyncio.subprocess.Process, int]:
    import shutil  # here, since it takes longer to import than all of this

    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(config.env)
    folder = os.path.join(cwd, config.cwd or "")
    program = (
        shutil.which(config.command, path=environment.get("PATH")) if "/" not in config.command else None
    )
    if "/" not in config.command and program is None:
        raise McpError(f"there is no program {config.command!r}", hint="check the server's command and PATH")
    held, lifeline = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", SUPERVISOR, str(held), str(os.getpid()),
            program or config.command, *config.args,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=folder, env=environment, pass_fds=(held,), start_new_session=True, limit=CHUNK,
        )  # fmt: skip
    except BaseException as error:
        os.close(lifeline)
        if isinstance(error, OSError):
            raise McpError(f"it cannot be started: {error}", hint="check the server's cwd") from error
        raise
    finally:
        os.close(held)
    return process, lifeline


async def _read(process: asyncio.subprocess.Process, arrived: Any, log: Logbook) -> None:
    """Lines into messages. One that is too long is never held whole; who waits for it gets an error instead."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    assert process.stdout is not None
    buffer, skipping = bytearray(), False
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        while chunk := await process.stdout.read(CHUNK):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                buffer += line
                if buffer.strip() and not skipping:
                    try:
                        message = jsonrpc_message_adapter.validate_json(bytes(buffer), by_name=False)
                    except ValueError:
                        log.note(f"not a message: {bytes(buffer[:200])!r}")
                    else:
                        await arrived.send(SessionMessage(message))
                buffer, skipping = bytearray(), False
            buffer += rest
            if len(buffer) > MAX_MESSAGE and not skipping:
                skipping = True
                await _refuse(arrived, bytes(buffer[:1000]), log)
            if skipping:
                buffer.clear()
    arrived.close()


async def _refuse(arrived: Any, head: bytes, log: Logbook) -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import ErrorData, JSONRPCError

    text = f"the answer is larger than {MAX_MESSAGE // 2**20} MiB"
    log.note(text)
    found = _ID.search(head)
    if found is not None:
        id = int(found[1]) if found[1].isdigit() else found[1][1:-1].decode("utf-8", "replace")
        error = ErrorData(code=TOO_LONG, message=text)
        await arrived.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=error)))


async def _write(process: asyncio.subprocess.Process, leaving: Any, arrived: Any) -> None:
    import anyio

    assert process.stdin is not None
    try:
        async for sent in leaving:
            line = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
    except (OSError, anyio.ClosedResourceError):
        arrived.close()  # it reads no more: whoever waits for an answer is told


async def _drain(process: asyncio.subprocess.Process, log: Logbook) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(CHUNK):
        log.feed(data)
    log.close()


async def _end(process: asyncio.subprocess.Process, lifeline: int, tasks: "list[asyncio.Task[None]]") -> None:
    """First its stdin closes, then the supervisor is told, last it is killed: each step bounded."""
    assert process.stdin is not None
    process.stdin.close()
    swallow = asyncio.ensure_future(_swallow(process, tasks[0]))
    waiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([waiting], timeout=LEAVE)
        os.close(lifeline)
        await asyncio.wait([waiting], timeout=KILL)
        if not waiting.done():
            process.kill()
            await asyncio.wait([waiting], timeout=KILL)
    finally:
        every: list[asyncio.Task[Any]] = [*tasks, swallow, waiting]
        for task in tasks[:2]:
            task.cancel()
        await asyncio.wait(every, timeout=0.2)
        for task in every:
            task.cancel()
        await asyncio.wait(every, timeout=1.0)
        process._transport.close()  # type: ignore[attr-defined] # else what holds a pipe open keeps it for ever


async def _swallow(process: asyncio.subprocess.Process, reader: "asyncio.Task[None]") -> None:
    """A server that still writes would not see its stdin close: take what it writes, unread."""
    await asyncio.wait([reader])
    assert process.stdout is not None
    while await process.stdout.read(CHUNK):
        pass
