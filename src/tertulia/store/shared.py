"""One store object for all who open the same path in this process, so that one writer serves them all.

Each opener gets a handle of its own. Closing it releases what was claimed through it; the last one closes the store.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

import msgspec

from ..records.errors import ConfigError, StorageError, StoreClosed
from ..records.ids import ConversationId, SessionId
from ..transcript.path import Segment
from .base import Batch, Change, ClientIdRow, Fence, GrantRow, Listed, Opened, Row, SessionRow, Store

Key = tuple[int, str, str]


def _unsettled() -> Future[None]:
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()  # one waiter's cancellation is not that of the others
    return future


class _Entry(msgspec.Struct, eq=False):
    """`settled` is done when the opening or closing that is under way has ended, however it ended."""

    durability: str
    store: Store | None = None
    handles: int = 0
    settled: Future[None] = msgspec.field(default_factory=_unsettled)


_entries: dict[Key, _Entry] = {}
_lock = threading.Lock()  # loops of several threads may open the same path


async def share(kind: str, path: str, durability: str, opening: Callable[[], Awaitable[Store]]) -> Store:
    """A handle on the store of this path, which `opening` opens when nobody has."""
    key = _key(kind, path)
    while True:
        with _lock:
            entry = _entries.get(key)
            if entry is None:
                entry = _entries[key] = _Entry(durability)
                break
            if entry.store is not None:
                _require_same(entry, durability, path)
                return _handle(key, entry, entry.store)
            settled = entry.settled
        await asyncio.wrap_future(settled)
    try:
        store = await opening()
    except BaseException:
        _forget(key, entry)
        raise
    with _lock:
        entry.store = store
        handle = _handle(key, entry, store)
    entry.settled.set_result(None)
    return handle


def _key(kind: str, path: str) -> Key:
    return (os.getpid(), kind, os.path.realpath(path))  # a forked child shares no threads, so no store


def _require_same(entry: _Entry, durability: str, path: str) -> None:
    if entry.durability != durability:
        raise ConfigError(
            f"{path} is open in this process with durability={entry.durability!r}",
            hint="open it with the same durability, or close the other one first",
        )


def _handle(key: Key, entry: _Entry, store: Store) -> Store:
    entry.handles += 1
    return Handle(store, lambda: _leave(key, entry))


def _leave(key: Key, entry: _Entry) -> Callable[[], None] | None:
    """One handle less; for the last one, what to call when the store is closed."""
    with _lock:
        entry.handles -= 1
        if entry.handles:
            return None
        entry.store = None
        entry.settled = _unsettled()
    return lambda: _forget(key, entry)


def _forget(key: Key, entry: _Entry) -> None:
    with _lock:
        del _entries[key]
    entry.settled.set_result(None)


class Handle:
    """A Store that others of this process use as well."""

    def __init__(self, store: Store, leave: Callable[[], Callable[[], None] | None]) -> None:
        self.durable = store.durable
        self._inner: Store | None = store
        self._leave = leave
        self._fences: dict[SessionId, Fence] = {}

    @property
    def _store(self) -> Store:
        if self._inner is None:
            raise StoreClosed("this store was closed", hint="open it again")
        return self._inner

    def commit(self, batch: Batch, fence: Fence | None = None) -> asyncio.Future[int]:
        if self._inner is not None:
            return self._inner.commit(batch, fence)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(StoreClosed("this store was closed", hint="open it again"))
        future.exception()  # counts as retrieved: nobody has to await a commit
        return future

    async def claim(self, session: SessionId) -> Fence:
        fence = await self._store.claim(session)
        self._fences[session] = fence
        return fence

    async def release(self, fence: Fence) -> None:
        await self._store.release(fence)
        if self._fences.get(fence.session) == fence:
            del self._fences[fence.session]

    async def session(self, session: SessionId) -> SessionRow:
        return await self._store.session(session)

    async def open(self, conversation: ConversationId) -> Opened:
        return await self._store.open(conversation)

    async def read(
        self, path: Sequence[Segment], *, after: int = 0, limit: int = 500, reverse: bool = False
    ) -> list[Row]:
        return await self._store.read(path, after=after, limit=limit, reverse=reverse)

    async def client_id(self, conversation: ConversationId, client_id: str) -> ClientIdRow | None:
        return await self._store.client_id(conversation, client_id)

    async def list(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        search: str | None = None,
        archived: bool | None = False,
        session: SessionId | None = None,
    ) -> Listed:
        return await self._store.list(
            cursor=cursor, limit=limit, search=search, archived=archived, session=session
        )

    async def grants(self, session: SessionId) -> Sequence[GrantRow]:
        return await self._store.grants(session)

    async def changes(self, session: SessionId, after: int, limit: int = 500) -> Sequence[Change]:
        return await self._store.changes(session, after, limit)

    async def put_blob(self, data: bytes) -> str:
        return await self._store.put_blob(data)

    async def get_blob(self, ref: str) -> bytes:
        return await self._store.get_blob(ref)

    async def collect(self, older_than: float = 3600.0) -> int:
        return await self._store.collect(older_than)

    async def aclose(self) -> None:
        if self._inner is None:
            return
        store, self._inner = self._inner, None
        closed = self._leave()
        if closed is None:
            await _settle(store, list(self._fences.values()))
            return
        try:
            await store.aclose()
        finally:
            closed()


def identity(store: Store) -> object:
    """What is the same for all who use one store."""
    return store._inner if isinstance(store, Handle) else store


async def _settle(store: Store, fences: Sequence[Fence]) -> None:
    """Wait for what was handed over through one handle, and release its claims; the store itself goes on.

    What is wrong with the store is no reason not to close a handle: each commit has told its own caller.
    """
    barrier = store.commit(())  # commits end in order, so this one ends after them
    await asyncio.wait([barrier])
    for fence in fences:
        with contextlib.suppress(StorageError):
            await store.release(fence)
