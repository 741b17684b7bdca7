"""The default store: one SQLite file, in WAL mode, that several processes may share.

One thread writes, in groups; another reads, one state of the file for each question. Neither ever waits for the
other, and the loop's own thread never touches the file.
"""

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import apsw
import msgspec

from ..records.clock import SYSTEM_CLOCK, Clock
from ..records.errors import StoreClosed, StoreCorrupt
from ..records.ids import ConversationId, SessionId, check_id
from ..transcript.path import Segment
from . import blobs, order, sqlite_erase, sqlite_ops, sqlite_reads
from .base import Batch, Change, ClientIdRow, Fence, GrantRow, Listed, Opened, Row, SessionRow
from .sqlite_claims import Claims
from .sqlite_schema import Durability, connect, locate, translate
from .sqlite_writer import Writer, settle

T = TypeVar("T")


class SqliteStore:
    """See the protocol in `base`. `await SqliteStore.at(path)` makes one."""

    durable = True

    def __init__(self, name: str, reader: ThreadPoolExecutor, durability: Durability, clock: Clock) -> None:
        """Opens the file: `at` calls this in the reader's thread."""
        self._name = name
        self._clock = clock
        self._reader = reader
        writing = connect(name, durability=durability)
        try:
            self._reading = connect(name, readonly=True)
        except BaseException:
            writing.close()
            raise
        self._reading.create_scalar_function("mentions", _mentions, 3, deterministic=True)
        self._writer = Writer(writing, name)
        self._claims = Claims(name, clock)
        self._closing: asyncio.Future[None] | None = None
        self._forgotten = weakref.finalize(self, _let_go, self._writer, self._claims)

    @classmethod
    async def at(
        cls,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        create: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> "SqliteStore":
        """`full`: a commit is on the disk when it is done. `normal`: it outlives the process, not every power cut."""
        reader = ThreadPoolExecutor(1, "tertulia-sqlite-reader")
        try:
            return await asyncio.get_running_loop().run_in_executor(
                reader, lambda: cls(locate(path, create=create), reader, durability, clock)
            )
        except BaseException:
            reader.shutdown(wait=False)
            raise

    # ── writing ──

    def commit(self, batch: Batch, fence: Fence | None = None) -> asyncio.Future[int]:
        return self._submit(sqlite_ops.apply, batch, fence)

    async def claim(self, session: SessionId) -> Fence:
        check_id(session, "session id")
        return await self._submit(self._claims.claim, session)

    async def release(self, fence: Fence) -> None:
        await self._submit(self._claims.release, fence)

    async def put_blob(self, data: bytes) -> str:
        ref = blobs.ref_of(data)
        await self._submit(sqlite_erase.put_blob, ref, data, self._clock.now())
        return ref

    async def collect(self, older_than: float = 3600.0) -> int:
        put_before = self._clock.now() - int(older_than * 1e6)
        return await self._submit(sqlite_erase.collect, put_before)

    def _submit(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._closing is None:
            self._writer.submit((future, function, args))
        else:
            settle([(future, _closed())])
        return future

    # ── reading ──

    async def session(self, session: SessionId) -> SessionRow:
        return await self._ask(sqlite_reads.session, session, self._claims.alive)

    async def open(self, conversation: ConversationId) -> Opened:
        return await self._ask(sqlite_reads.open_conversation, conversation)

    async def read(
        self, path: Sequence[Segment], *, after: int = 0, limit: int = 500, reverse: bool = False
    ) -> list[Row]:
        return await self._ask(sqlite_reads.read, path, after, limit, reverse)

    async def client_id(self, conversation: ConversationId, client_id: str) -> ClientIdRow | None:
        return await self._ask(sqlite_reads.client_id, conversation, client_id)

    async def list(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        search: str | None = None,
        archived: bool | None = False,
        session: SessionId | None = None,
    ) -> Listed:
        return await self._ask(sqlite_reads.conversations, cursor, limit, search, archived, session)

    async def grants(self, session: SessionId) -> Sequence[GrantRow]:
        return await self._ask(sqlite_reads.grants, session)

    async def changes(self, session: SessionId, after: int, limit: int = 500) -> Sequence[Change]:
        return await self._ask(sqlite_reads.changes, session, after, limit)

    async def get_blob(self, ref: str) -> bytes:
        return await self._ask(sqlite_reads.blob, ref)

    async def _ask(self, function: Callable[..., T], *args: Any) -> T:
        if self._closing is not None:
            raise _closed()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._read, function, args)

    def _read(self, function: Callable[..., T], args: tuple[Any, ...]) -> T:
        connection = self._reading
        try:
            connection.execute("BEGIN")
            try:
                return function(connection, *args)
            finally:
                connection.execute("COMMIT")
        except apsw.Error as error:
            raise translate(error, self._name) from error
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
            hint = "run `tertulia store check`, then `tertulia store repair`"
            raise StoreCorrupt(
                f"{self._name}: what stands there cannot be read: {error}", hint=hint
            ) from error

    # ── the end ──

    async def aclose(self) -> None:
        if self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.run_in_executor(self._reader, self._end)
            self._reader.shutdown(wait=False)
        await asyncio.shield(self._closing)
        self._reader.shutdown()

    def _end(self) -> None:
        """In the reader's thread. The writer's connection goes last: it puts the log into the file."""
        self._forgotten.detach()
        try:
            self._reading.close()
        finally:
            self._writer.stop()
            self._writer.join()
            self._claims.close()


def _mentions(*values: Any) -> bool:
    """For queries: what SQLite itself folds is ASCII."""
    return order.mentions(*values)


def _let_go(writer: Writer, claims: Claims) -> None:
    """Of a store that was forgotten and never closed. It may run in any thread, so it waits for none."""
    writer.stop()
    claims.close()


def _closed() -> StoreClosed:
    return StoreClosed("this store was closed", hint="open it again")
