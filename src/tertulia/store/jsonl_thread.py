"""The one thread that owns a JSONL store's files: commits in groups, everything else in its turn between them."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from ..records.errors import InternalError, StoreClosed, TertuliaError
from .base import Batch, Fence
from .jsonl_writer import Answer, Asked

T = TypeVar("T")

_GROUP = 256


class _Job:
    """A commit (`asked`) or any other work (`run`), and the future that waits for it."""

    __slots__ = ("asked", "future", "loop", "run")

    def __init__(self, asked: Asked | None, run: Callable[[], object] | None) -> None:
        self.asked = asked
        self.run = run
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


class Worker:
    """Started by the first job. A daemon, so that a store nobody closed does not keep the process alive: what was
    acknowledged is on disk by then. It knows nothing of the store, so that a forgotten one can be collected."""

    def __init__(self, commit: Callable[[Sequence[Asked]], list[Answer]]) -> None:
        self._commit = commit
        self._jobs: deque[_Job | None] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def commit(self, batch: Batch, fence: Fence | None) -> asyncio.Future[int]:
        return cast("asyncio.Future[int]", self._put(_Job((batch, fence), None)))

    async def run(self, work: Callable[[], T]) -> T:
        return cast(T, await self._put(_Job(None, work)))

    def _put(self, job: _Job) -> "asyncio.Future[Any]":
        with self._wake:
            if self._closed:
                job.future.set_exception(StoreClosed("this store was closed", hint="open it again"))
                job.future.exception()  # counts as retrieved: nobody has to await a commit
                return job.future
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="tertulia-jsonl", daemon=True)
                self._thread.start()
            self._jobs.append(job)
            self._wake.notify()
        return job.future

    async def aclose(self, last: Callable[[], None]) -> None:
        """Waits for what was handed over, then for `last`, then for the thread."""
        if self._closed:
            return
        job = _Job(None, last)
        with self._wake:
            self._closed = True
            started = self._thread is not None
            if started:
                self._jobs.extend((job, None))
                self._wake.notify()
        if not started:
            last()
            return
        await asyncio.shield(job.future)
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        """Ends the thread after what was handed over; nobody is left to wait for it."""
        with self._wake:
            if not self._closed:
                self._closed = True
                self._jobs.append(None)
                self._wake.notify()

    # ── in the thread ──

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._jobs:
                    self._wake.wait()
                group = self._next()
            if not group:
                return
            _settle(self._do(group))

    def _next(self) -> list[_Job]:
        """One job, or as many commits as stand together at the head."""
        job = self._jobs.popleft()
        if job is None:
            return []
        group = [job]
        while job.asked is not None and len(group) < _GROUP and self._jobs:
            following = self._jobs[0]
            if following is None or following.asked is None:
                break
            group.append(following)
            self._jobs.popleft()
        return group

    def _do(self, group: list[_Job]) -> list[tuple[_Job, object, BaseException | None]]:
        asked = [job.asked for job in group if job.asked is not None]
        try:
            if not asked:
                run = group[0].run
                return [(group[0], run() if run is not None else None, None)]
            answers = self._commit(asked)
        except TertuliaError as error:
            return [(job, None, error) for job in group]
        except Exception as error:  # noqa: BLE001 - handed to whoever waits; the thread serves others too
            defect = InternalError(f"a defect of the store: {error!r}", hint="please report it")
            defect.__cause__ = error
            return [(job, None, defect) for job in group]
        return [
            (job, None, answer) if isinstance(answer, BaseException) else (job, answer, None)
            for job, answer in zip(group, answers, strict=True)
        ]


def _settle(done: list[tuple[_Job, object, BaseException | None]]) -> None:
    """One call to each loop, with all that it waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, object, BaseException | None]]] = {}
    for each in done:
        by_loop.setdefault(each[0].loop, []).append(each)
    for loop, jobs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer, jobs)
        except RuntimeError:
            continue  # the loop is closed: nobody waits there any more


def _answer(jobs: list[tuple[_Job, object, BaseException | None]]) -> None:
    for job, result, error in jobs:
        if job.future.done():
            continue
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
            job.future.exception()  # counts as retrieved: nobody has to await a commit
