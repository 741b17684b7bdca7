"""shell, and job for what it left running in the background."""

import asyncio
import os

import msgspec

from ...records.errors import InvalidInput, SandboxError
from ...sandbox.jobs import Job
from ...sandbox.output import Output
from ...sandbox.process import Exit
from ..base import tool
from ..context import ToolContext

SECONDS = 120.0
EVERY = 0.1
"""Seconds between two pieces of progress: what comes meanwhile goes out together."""

SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")


async def shell(
    command: str, context: ToolContext, timeout: float = SECONDS, background: bool = False
) -> str:
    """Run a shell command in the working folder. Answers with its output, both streams in one.

    `timeout` is in seconds. With `background` it goes on while you do other things; `job` shows its output.
    """
    if not command.strip() or "\0" in command:
        raise InvalidInput("there is no command")
    if not timeout > 0:
        raise InvalidInput("timeout is a number of seconds above 0")
    line = [_shell(), "-c", command]
    if background:
        job = context.sandbox.jobs.add(command, context.sandbox.start(line))
        return f"started as job {job.id}"
    process = context.sandbox.start(line, seconds=timeout)
    output, progress = Output(), Progress(context)

    def came(data: bytes) -> None:
        progress.add(output.add(data))

    process.on_output = came
    try:
        ended = await process.wait()
    finally:
        progress.end()
    return _told(output.text, ended)


async def job(context: ToolContext, id: str = "", wait: float = 0.0, stop: bool = False) -> str:
    """Look after background commands: what one has printed since the last time. Without an id, a list of them.

    `wait` gives it that many seconds to end; `stop` ends it with all that it started.
    """
    jobs = context.sandbox.jobs
    if not id:
        return (
            "\n".join(f"{each.id}: {_state(each)}: {each.command[:200]}" for each in jobs.list()) or "no jobs"
        )
    found = jobs.get(id)
    if stop:
        await found.stop()
    elif wait > 0:
        await asyncio.wait([found.task], timeout=wait)
    return f"{found.output.new()}\n[{_state(found)}]".lstrip("\n")


class Progress:
    """Sends output on as it comes, in pieces that a subscriber can follow."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._waiting = ""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        self._waiting += text
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text, self._waiting = self._waiting[-LARGEST:], ""
        if text:
            self._context.progress({"output": text})


LARGEST = 16_384
"""Characters of one piece of progress; the result has the rest."""


def _told(text: str, ended: Exit) -> str:
    if ended.refused:
        refused = f"[not on the list of hosts that commands may reach: {', '.join(ended.refused)}]"
        text = f"{text.rstrip()}\n{refused}".lstrip("\n")
    if ended.stopped:
        raise SandboxError(f"{text.rstrip()}\n[stopped: {ended.stopped}]".lstrip("\n"))
    if ended.status:
        return f"{text.rstrip()}\n[{_status(ended.status)}]".lstrip("\n")
    return text or "[no output]"


def _state(job: Job) -> str:
    ended = job.exit
    if ended is None:
        return "running"
    return f"stopped: {ended.stopped}" if ended.stopped else _status(ended.status)


def _status(status: int) -> str:
    return f"ended by signal {-status}" if status < 0 else f"exit status {status}"


def _shell() -> str:
    return next((path for path in SHELLS if os.path.exists(path)), SHELLS[-1])


SHELL = msgspec.structs.replace(tool(ask=True)(shell), command="command")
JOB = tool(job)
