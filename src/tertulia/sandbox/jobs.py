"""Commands that go on in the background: their output since the last look, and their end."""

import asyncio

from ..records.errors import NotFound
from .output import Output
from .process import Exit, Process

KEPT = 50
"""Ended jobs that can still be read."""


class Job:
    def __init__(self, id: str, command: str, process: Process) -> None:
        self.id = id
        self.command = command
        self.output = Output()
        self._process = process
        process.on_output = self._add
        self.task: asyncio.Task[Exit] = asyncio.create_task(process.wait(), name=f"tertulia-job-{id}")

    def _add(self, data: bytes) -> None:
        self.output.add(data)

    @property
    def exit(self) -> Exit | None:
        return self.task.result() if self.task.done() and not self.task.cancelled() else None

    async def stop(self) -> None:
        self._process.stop("it was stopped")
        await asyncio.wait([self.task])


class Jobs:
    """Of one Session."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._last = 0

    def add(self, command: str, process: Process) -> Job:
        self._last += 1
        job = self._jobs[str(self._last)] = Job(str(self._last), command, process)
        for id, old in list(self._jobs.items())[:-KEPT]:
            if old.exit is not None:
                del self._jobs[id]
        return job

    def get(self, id: str) -> Job:
        if id not in self._jobs:
            raise NotFound(f"there is no job {id}", hint=f"jobs are {', '.join(self._jobs) or 'none'}")
        return self._jobs[id]

    def list(self) -> list[Job]:
        return list(self._jobs.values())

    async def ended(self) -> None:
        if self._jobs:
            await asyncio.wait([job.task for job in self._jobs.values()])
