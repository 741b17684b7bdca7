"""The gate to writing: one opener at a time over all processes, and nothing left undone by one that died.

Behind it the side log is as the disk has it, and commit numbers go on beyond all that were ever given.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..records.errors import StoreReadOnly
from . import jsonl_disk as disk
from .jsonl_books import Books
from .jsonl_sidecar import Note, Side, encode

_RESERVED = 1000


class Gate:
    def __init__(self, books: Books, side: Side) -> None:
        self.books = books
        self.side = side
        self.folder = books.folder
        self.superseded = False
        self.intent = self.folder.side / "store.intent"
        self._turn = disk.Turn(self.folder.side / "store.lock")
        self._ready = False
        self._void = False
        self._seen = -1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the folder's lock, with everything as the disk has it and nothing left to recover."""
        if self.superseded:
            raise StoreReadOnly(
                f"{self.folder.side} was opened again in this process, which took it over",
                hint="use the newer store; this one still reads",
            )
        if not self._ready:
            disk.make_folder(self.folder.side)
        with self._turn.held():
            if self._turn.counter() != self._seen:
                self.books.unlist()
            self.side.refresh()
            self._recover()
            if not self._ready:
                self._begin()
            yield

    def recover(self) -> None:
        """Before a read: completes what a process that died had begun, if there is such a thing."""
        if disk.pending(self.intent):
            try:
                with self._turn.held():
                    self.side.refresh()
                    self._recover()
            except OSError as error:
                self.books.report(self.intent, f"cannot be carried out: {error.strerror}", "make it writable")

    def _recover(self) -> None:
        if not disk.pending(self.intent):
            return
        # Of a batch that was reported as failed, nothing may come back.
        for step in () if self._void else disk.read_intent(self.intent):
            path = Path(step.path)
            reached = self.side.commit if path == self.side.path else self.books.reached(path)
            if reached < step.commit:
                disk.do(step)
        disk.clear_intent(self.intent)
        self._void = False
        self.side.refresh()

    def _begin(self) -> None:
        """Once for each opener: commit numbers go on beyond all that were ever reserved."""
        for left in self.folder.leftovers():
            left.unlink(missing_ok=True)
        if self._turn.counter() < self.side.mark:
            self._turn.count(self.side.mark)
        self._ready = True

    def reserve(self, number: int) -> None:
        """So that a power failure, which may forget the counter, never makes a number come twice."""
        if number > self.side.mark or not self.side.mark:
            self.note(Note(mark=number + _RESERVED))

    def note(self, note: Note) -> None:
        try:
            new = not self.side.path.exists()
            disk.append(self.side.path, self.side.end, encode(self.side.commit, [note]))
            if new:
                disk.sync_folder(self.side.path.parent)
        except OSError as error:
            self._cut_side()
            raise disk.failed(error, self.side.path) from error
        self.side.refresh()

    def _cut_side(self) -> None:
        try:
            os.truncate(self.side.path, self.side.end)
        except OSError as error:
            self.books.report(
                self.side.path, f"cannot be cut back: {error.strerror}", "cut at the next write"
            )

    @contextmanager
    def typed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk.failed(error, error.filename or self.folder.side) from error

    def counter(self) -> int:
        return self._turn.counter()

    def count(self, number: int) -> None:
        """From now on this number is given; before a power failure can forget it, it is reserved."""
        self.reserve(number)
        self._turn.count(number)
        self._seen = number

    def void(self) -> None:
        """The intent counts no more; where it cannot be emptied now, the next one through the gate does it."""
        self._void = True
        try:
            disk.clear_intent(self.intent)
            self._void = False
        except OSError as error:
            self.books.report(
                self.intent, f"cannot be emptied: {error.strerror}", "emptied at the next write"
            )

    def close(self) -> None:
        self._turn.close()
