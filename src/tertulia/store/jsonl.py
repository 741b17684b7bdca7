"""The store that is a folder of readable files: `jsonl:DIR`, one `.jsonl` for each conversation.

Each file stands alone: a header, then batches of JSON lines, each closed by a `~commit` line (see jsonl_lines). A fork
therefore copies what it inherits. Beside the files stand `store.log` (sessions, inbox, client ids, grants),
`store.lock`, `store.intent`, `owners.lock` and `blobs/`.

Limits, which SQLite does not have: a conversation is read through once when it is first used, and its index (24 bytes
a record) kept for the last 256 used; a fork costs as much as its prefix is long; erasing rewrites the file, and those
of its forks; a list looks at both ends of every file; reads and writes share one thread. A reader sees whole batches
of each file, but for a moment may see one file of a batch before another.
"""

import asyncio
import heapq
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from ..records.clock import SYSTEM_CLOCK, Clock
from ..records.errors import (
    ConversationNotFound,
    InvalidInput,
    SessionNotFound,
    StoreNotFound,
)
from ..records.ids import ConversationId, SessionId, check_id
from ..transcript.path import Segment
from .base import (
    Batch,
    Change,
    ClientIdRow,
    ConversationRow,
    Fence,
    GrantRow,
    Listed,
    Opened,
    Row,
    SessionRow,
)
from .jsonl_blobs import Blobs
from .jsonl_books import Books, foreign
from .jsonl_claims import Claims
from .jsonl_disk import Folder, OneFile, make_folder
from .jsonl_file import Appended, Log, not_ours, scan
from .jsonl_gate import Gate
from .jsonl_sidecar import SessionNote, Side
from .jsonl_thread import Worker
from .jsonl_writer import Writer
from .order import mentions, page, place, place_of
from .report import Problem

T = TypeVar("T")

_open: "weakref.WeakValueDictionary[str, JsonlStore]" = weakref.WeakValueDictionary()


class JsonlStore:
    """`incidents` lists what was found damaged on the way, and what was done about it."""

    durable: ClassVar[bool] = True

    def __init__(self, folder: Folder, clock: Clock) -> None:
        self.incidents: list[Problem] = []
        self._folder = folder
        self._clock = clock
        self._books = Books(folder, self.incidents)
        self._side = Side(folder.side, folder.only)
        self._blobs = Blobs(folder.side, clock)
        self._gate = Gate(self._books, self._side)
        self._claims = Claims(self._gate)
        self._writer = Writer(self._gate, self._blobs, self._claims)
        self._worker = Worker(self._writer.commit)
        weakref.finalize(self, self._worker.abandon).atexit = False
        real = os.path.realpath(folder.side)
        before = _open.get(real)
        if before is not None:
            before._gate.superseded = True
        _open[real] = self

    @classmethod
    async def at(
        cls, path: str | os.PathLike[str], *, create: bool = True, clock: Clock = SYSTEM_CLOCK
    ) -> "JsonlStore":
        """The folder at `path`. A second opening in one process takes over: the first one only reads from then on."""
        return cls(_folder(Path(path), create), clock)

    @classmethod
    async def at_file(
        cls, path: str | os.PathLike[str], conversation: ConversationId, *, clock: Clock = SYSTEM_CLOCK
    ) -> "JsonlStore":
        """One file as the store of one conversation, whatever its header calls it; parents are created."""
        check_id(conversation, "conversation id")
        file = Path(path)
        store = cls(OneFile(file, conversation), clock)
        try:
            await store._worker.run(lambda: _look(store._books, conversation, file))
        except BaseException:
            await store.aclose()
            raise
        return store

    def commit(self, batch: Batch, fence: Fence | None = None) -> asyncio.Future[int]:
        return self._worker.commit(batch, fence)

    async def _run(self, work: Callable[[], T]) -> T:
        def read() -> T:
            with self._gate.typed():
                self._gate.recover()
                self._side.refresh()
                return work()

        return await self._worker.run(read)

    async def claim(self, session: SessionId) -> Fence:
        check_id(session, "session id")
        return await self._worker.run(lambda: self._claims.claim(session))

    async def release(self, fence: Fence) -> None:
        await self._worker.run(lambda: self._claims.release(fence))

    async def session(self, session: SessionId) -> SessionRow:
        return await self._run(lambda: self._session(session))

    def _session(self, session: SessionId) -> SessionRow:
        found: SessionNote | None = self._side.find("sessions", session)
        root = None if found is None else found.root
        if (
            root is None and found is None
        ):  # the files may have been brought here without what stood beside them
            rows = [peek.row for peek in self._books.peeks() if peek.row.session == session]
            root = min(rows, key=lambda row: (row.created, row.id)).id if rows else None
        if root is None:
            raise SessionNotFound(f"no session {session}", session=session)
        if found is None:
            return SessionRow(id=session, root=root)
        return SessionRow(
            id=session,
            root=root,
            epoch=found.epoch,
            holder=self._claims.holder(found),
            settings=found.settings,
        )

    async def open(self, conversation: ConversationId) -> Opened:
        return await self._run(lambda: self._opened(conversation))

    def _opened(self, conversation: ConversationId) -> Opened:
        log = self._books.log(conversation)
        if log is None:
            raise ConversationNotFound(f"no conversation {conversation}", conversation=conversation)
        own = [row for _, row in sorted(log.branches.items())]
        return Opened(
            conversation=log.current,
            branches=(*own, *log.ancestors.values()),
            inbox=tuple(self._side.items(conversation)),
            last=log.last,
        )

    async def read(
        self, path: Sequence[Segment], *, after: int = 0, limit: int = 500, reverse: bool = False
    ) -> list[Row]:
        segments = list(path)
        return await self._run(lambda: self._books.read(segments, after, limit, reverse))

    async def client_id(self, conversation: ConversationId, client_id: str) -> ClientIdRow | None:
        def find() -> ClientIdRow | None:
            found: ClientIdRow | None = self._side.find("clients", (conversation, client_id))
            return found

        return await self._run(find)

    async def list(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        search: str | None = None,
        archived: bool | None = False,
        session: SessionId | None = None,
    ) -> Listed:
        after = place_of(cursor)
        wanted = (search or "").casefold()

        def fits(row: ConversationRow) -> bool:
            return (
                (archived is None or row.archived is archived)
                and (session is None or row.session == session)
                and (after is None or place(row) > after)
                and mentions(wanted, row.id, row.title)
            )

        def find() -> list[ConversationRow]:
            rows = (peek.row for peek in self._books.peeks() if fits(peek.row))
            return heapq.nsmallest(limit + 1, rows, key=place)

        return page(await self._run(find), limit)

    async def grants(self, session: SessionId) -> Sequence[GrantRow]:
        return await self._run(
            lambda: [row for row in self._side.all_grants().values() if row.session in (None, session)]
        )

    async def changes(self, session: SessionId, after: int, limit: int = 500) -> Sequence[Change]:
        return await self._run(lambda: self._changes(session, after, limit))

    def _changes(self, session: SessionId, after: int, limit: int) -> Sequence[Change]:
        found: list[tuple[Appended, ConversationId]] = []
        for peek in self._books.peeks():
            if peek.row.session == session and peek.commit > after:
                log = self._books.log(peek.row.id)
                appends = () if log is None else log.appends
                found += [(each, peek.row.id) for each in appends if each.commit > after]
        found.sort()
        stop = min(limit, len(found))
        while 0 < stop < len(found) and found[stop][0].commit == found[stop - 1][0].commit:
            stop += 1  # a commit is never split over two pages
        return [
            Change(each.commit, Segment(conversation, each.branch, each.first - 1, each.last))
            for each, conversation in found[:stop]
        ]

    async def put_blob(self, data: bytes) -> str:
        return await self._worker.run(lambda: self._writer.put_blob(data))

    async def get_blob(self, ref: str) -> bytes:
        return await self._run(lambda: self._blobs.get(ref))

    async def collect(self, older_than: float = 3600.0) -> int:
        return await self._worker.run(lambda: self._writer.collect(older_than))

    async def aclose(self) -> None:
        await self._worker.aclose(self._claims.close)


def _folder(path: Path, create: bool) -> Folder:
    if path.exists() and not path.is_dir():
        raise StoreNotFound(f"{path} is no folder", hint="a JSONL store is a folder; a plain path is SQLite")
    if not path.exists():
        if not create:
            raise StoreNotFound(f"nothing is at {path}", hint="check the path, or let it be created")
        make_folder(path)
    return Folder(path)


def _look(books: Books, conversation: ConversationId, file: Path) -> None:
    """That a file can be the store of a conversation."""
    if file.is_dir():
        raise InvalidInput(f"{file} is a folder", hint="give the path of a file")
    log = books.scanned(conversation)
    if foreign(log, file):
        raise not_ours(file, log)
    make_folder(file.parent)


def is_empty(path: str | os.PathLike[str]) -> bool:
    """Whether a conversation's file holds no records, or is not there."""
    file = Path(path)
    log = Log(ConversationId(""))
    scan(log, file)
    return log.records == 0 and not foreign(log, file)
