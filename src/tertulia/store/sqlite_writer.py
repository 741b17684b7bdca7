"""The writer thread: all writes and checkpoints of a store, grouped into one transaction and one fsync."""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from ..records.errors import InternalError, StorageError, StoreClosed, TertuliaError
from .sqlite_schema import BUSY_MS, translate
from .sqlite_tx import Tx

Job = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]
"""What waits to be written: `function(tx, *args)` gives the future's result."""

MAX_GROUP = 1_000
MAX_LOG_PAGES = 4_000  # 8 MB
SHORT_LOG_PAGES = 1_000
MANY_COMMITS = 250
IDLE_SECONDS = 1.0
ERASE_SECONDS = 2.0

_HOPELESS = (apsw.BusyError, apsw.LockedError, apsw.ReadOnlyError)
"""Errors that every batch of a group would get, so that trying them one by one is a waste."""


class Writer:
    """Owns a connection. Knows nothing of the store, so that a forgotten store can be collected and this end."""

    def __init__(self, connection: apsw.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._tx = Tx(connection)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._log_pages = 0  # in the write-ahead log
        self._put_away = 0  # of these, when they were last copied into the file
        self._commits = 0  # since then
        self._erase = False  # something erased still stands in the log
        self._ended = False
        connection.set_wal_hook(self._committed)
        # A daemon: a program that forgot to close its store must end all the same, and loses nothing that it was told.
        self._thread = threading.Thread(target=self._run, name="tertulia-sqlite-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)
        if self._ended:
            self._refuse()

    def stop(self) -> None:
        """Ends the thread after what was submitted; closes the connection."""
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()

    # ── in the thread ──

    def _run(self) -> None:
        try:
            while (group := self._next()) is not None:
                if group:
                    self._write(group)
                if not group or self._log_is_long():
                    self._checkpoint()
        finally:
            self._ended = True
            self._connection.close()
            self._refuse()

    def _refuse(self) -> None:
        """What came too late: nobody may wait for ever."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    _complete([job], [StoreClosed("this store was closed", hint="open it again")])

    def _next(self) -> list[Job] | None:
        """What waits, at least one; nothing when idle with a log to put away; None at the end."""
        pending = self._log_pages != self._put_away or self._erase
        try:
            job = self._jobs.get(timeout=IDLE_SECONDS if pending else None)
        except queue.Empty:
            return []
        group: list[Job] = []
        while job is not None:
            group.append(job)
            if len(group) >= MAX_GROUP or self._jobs.empty():
                return group
            job = self._jobs.get()
        if group:
            self._jobs.put(None)  # the end, for the next round: nothing comes behind it
            return group
        return None

    def _write(self, group: list[Job]) -> None:
        outcomes = self._attempt(group)
        if outcomes is None:  # the database refused something in it: find out what
            outcomes = []
            for job in group:
                outcomes.extend(self._attempt([job]) or ())
        if self._tx.erased:
            self._tx.erased = False
            self._erase = True
            self._truncate(ERASE_SECONDS)
        _complete(group, outcomes)

    def _attempt(self, group: Sequence[Job]) -> list[Any] | None:
        """One transaction. The outcome of each job, or None when the database failed a group of several."""
        execute = self._connection.execute
        outcomes: list[Any] = []
        try:
            execute("BEGIN IMMEDIATE")
            self._tx.begin()
            for _, function, args in group:
                outcomes.append(self._one(function, args))
            self._tx.end()
            execute("COMMIT")
        except apsw.Error as error:
            refused = translate(error, self._name, self._connection.system_errno)
            refused.__cause__ = error
            self._roll_back()
            if len(group) > 1 and not isinstance(error, _HOPELESS):
                return None
            return [refused] * len(group)
        return outcomes

    def _one(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        execute = self._connection.execute
        execute("SAVEPOINT batch")
        try:
            outcome = function(self._tx, *args)
        except apsw.Error:
            raise
        except Exception as error:  # noqa: BLE001 - handed to whoever waits; the writer serves others too
            execute("ROLLBACK TO batch")
            self._tx.forget()
            outcome = error if isinstance(error, TertuliaError) else _defect(error)
        execute("RELEASE batch")
        return outcome

    def _roll_back(self) -> None:
        self._tx.forget()
        if self._connection.in_transaction:
            with contextlib.suppress(apsw.Error):  # then the next BEGIN says what is wrong
                self._connection.execute("ROLLBACK")

    # ── the write-ahead log ──

    def _committed(self, _: apsw.Connection, __: str, pages: int) -> int:
        if pages < self._log_pages:  # the log began anew
            self._put_away = 0
        self._log_pages = pages
        self._commits += 1
        return apsw.SQLITE_OK

    def _log_is_long(self) -> bool:
        """A log that is written over costs a small commit a quarter less than one that grows, so it is kept short
        while commits are small; copying it into the file after every few large ones would cost more."""
        pages = self._log_pages - self._put_away
        return pages > MAX_LOG_PAGES or (pages > SHORT_LOG_PAGES and self._commits > MANY_COMMITS)

    def _checkpoint(self) -> None:
        """A failing one loses nothing: the log keeps what it has, and the next one tries again."""
        if self._erase or self._tx.wiped:
            self._tx.wiped = False
            self._erase = True
            self._truncate(0.0)
            return
        self._put_away = self._log_pages
        self._commits = 0
        with contextlib.suppress(apsw.Error):
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _truncate(self, patience: float) -> None:
        """Puts the log into the file and empties it. Readers may stand in the way: then again when idle."""
        deadline = time.monotonic() + patience
        self._connection.set_busy_timeout(100)
        try:
            while self._erase:
                try:
                    self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                    self._erase = False
                    self._log_pages = self._put_away = 0
                except apsw.Error:
                    if time.monotonic() >= deadline:
                        return
        finally:
            self._connection.set_busy_timeout(BUSY_MS)


def _defect(error: Exception) -> StorageError | InternalError:
    wrapped = InternalError(f"a batch could not be written: {error!r}", hint="please report this")
    wrapped.__cause__ = error
    return wrapped


def _complete(group: Sequence[Job], outcomes: Sequence[Any]) -> None:
    """Hands the outcomes over, with one wake-up for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for (future, _, _), outcome in zip(group, outcomes, strict=True):
        loops.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, settled in loops.items():
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(settle, settled)


def settle(settled: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    """In the loop's own thread. A future that its waiter cancelled stays as it is."""
    for future, outcome in settled:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
            future.exception()  # counts as retrieved: nobody has to await a commit
        else:
            future.set_result(outcome)
