"""The store that keeps everything in memory: the plainest form of the protocol, and its reference."""

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import ClassVar

import msgspec

from ..records.clock import SYSTEM_CLOCK, Clock
from ..records.errors import SessionNotFound, StoreClosed, TertuliaError
from ..records.ids import ConversationId, SessionId, check_id
from ..transcript.path import BranchRow, Segment
from . import blobs
from .base import (
    Batch,
    Change,
    ClientIdRow,
    Fence,
    GrantRow,
    Listed,
    Opened,
    Row,
    SessionRow,
)
from .memory_state import Blob, Branch, Session, State, Transaction
from .order import mentions, page, place, place_of, rank
from .rules import check_batch, stale


class MemoryStore:
    """Lives and dies with its process. Belongs to one thread, as its callers do."""

    durable: ClassVar[bool] = False

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._state: State | None = State()

    @property
    def _open(self) -> State:
        if self._state is None:
            raise StoreClosed("this store was closed", hint="open it again")
        return self._state

    def commit(self, batch: Batch, fence: Fence | None = None) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._commit(batch, fence))
        except TertuliaError as error:
            future.set_exception(error)
            future.exception()  # counts as retrieved: nobody has to await a commit
        return future

    def _commit(self, batch: Batch, fence: Fence | None) -> int:
        state = self._open
        check_batch(batch, fence)
        if fence is not None:
            _check_fence(state, fence)
        transaction = Transaction(state, fence)
        transaction.apply(batch)
        return transaction.commit

    async def claim(self, session: SessionId) -> Fence:
        check_id(session, "session id")
        found = self._open.sessions.setdefault(session, Session())
        found.epoch += 1
        found.held = True
        return Fence(session=session, epoch=found.epoch)

    async def release(self, fence: Fence) -> None:
        found = self._open.sessions.get(fence.session)
        if found is not None and found.epoch == fence.epoch:
            found.held = False

    async def session(self, session: SessionId) -> SessionRow:
        found = self._open.sessions.get(session)
        if found is None or found.row is None:
            raise SessionNotFound(f"no session {session}", session=session)
        holder = "this process" if found.held else None
        return msgspec.structs.replace(found.row, epoch=found.epoch, holder=holder)

    async def open(self, conversation: ConversationId) -> Opened:
        state = self._open
        found = state.living(conversation)
        own = [branch.row for _, branch in sorted(found.branches.items())]
        return Opened(
            conversation=found.row,
            branches=(*own, *_ancestors(state, own)),
            inbox=tuple(sorted(found.inbox.values(), key=rank)),
            last=found.last,
        )

    async def read(
        self, path: Sequence[Segment], *, after: int = 0, limit: int = 500, reverse: bool = False
    ) -> list[Row]:
        rows: list[Row] = []
        for segment in reversed(path) if reverse else path:
            branch = self._branch(segment)
            if branch is None or len(rows) >= limit:
                continue
            low, high = segment.after, segment.until
            if reverse and after:
                high = min(high, after - 1)
            elif not reverse:
                low = max(low, after)
            start = bisect_right(branch.rows, low, key=_seq)
            stop = bisect_right(branch.rows, high, key=_seq)
            room = limit - len(rows)
            if reverse:
                rows.extend(reversed(branch.rows[max(start, stop - room) : stop]))
            else:
                rows.extend(branch.rows[start : min(stop, start + room)])
        return rows

    def _branch(self, segment: Segment) -> Branch | None:
        found = self._open.conversations.get(segment.conversation)
        return None if found is None else found.branches.get(segment.branch)

    async def client_id(self, conversation: ConversationId, client_id: str) -> ClientIdRow | None:
        found = self._open.conversations.get(conversation)
        return None if found is None else found.client_ids.get(client_id)

    async def list(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        search: str | None = None,
        archived: bool | None = False,
        session: SessionId | None = None,
    ) -> Listed:
        state = self._open
        after = place_of(cursor)
        wanted = (search or "").casefold()
        found = (
            each.row
            for each in state.conversations.values()
            if not each.deleted
            and (archived is None or each.row.archived is archived)
            and (session is None or each.row.session == session)
            and (after is None or place(each.row) > after)
            and mentions(wanted, each.row.id, each.row.title)
        )
        return page(heapq.nsmallest(limit + 1, found, key=place), limit)

    async def grants(self, session: SessionId) -> Sequence[GrantRow]:
        return [row for row in self._open.grants.values() if row.session in (None, session)]

    async def changes(self, session: SessionId, after: int, limit: int = 500) -> Sequence[Change]:
        found = self._open.sessions.get(session)
        if found is None:
            return []
        changes = found.changes
        start = bisect_right(changes, after, key=_commit)
        stop = min(start + limit, len(changes))
        if start < stop:  # a commit is never split over two pages
            stop = bisect_right(changes, changes[stop - 1].commit, key=_commit)
        return changes[start:stop]

    async def put_blob(self, data: bytes) -> str:
        ref = blobs.ref_of(data)
        now = self._clock.monotonic()
        blob = self._open.blobs.setdefault(ref, Blob(data=bytes(data), put=now))
        blob.put = now
        blob.waiting += 1
        return ref

    async def get_blob(self, ref: str) -> bytes:
        blob = self._open.blobs.get(ref)
        if blob is None:
            raise blobs.missing(ref)
        return blobs.check(ref, blob.data)

    async def collect(self, older_than: float = 3600.0) -> int:
        state = self._open
        limit = self._clock.monotonic() - older_than
        gone = []
        for ref, blob in state.blobs.items():
            if blob.waiting and blob.put <= limit:
                blob.waiting = 0
                if blob.owners == 0:
                    gone.append(ref)
        for ref in gone:
            del state.blobs[ref]
        return len(gone)

    async def aclose(self) -> None:
        self._state = None


def _check_fence(state: State, fence: Fence) -> None:
    found = state.sessions.get(fence.session)
    if found is None or fence.epoch != found.epoch:
        raise stale(fence, 0 if found is None else found.epoch)


def _ancestors(state: State, own: Sequence[BranchRow]) -> Iterator[BranchRow]:
    """The branches of other conversations that these stand on, nearest first."""
    seen = {(row.conversation, row.n) for row in own}
    parents = [row.parent for row in own if row.parent is not None]
    for parent in parents:  # grows as it goes
        found = state.conversations.get(parent[0])
        if parent in seen or found is None or parent[1] not in found.branches:
            continue
        seen.add(parent)
        row = found.branches[parent[1]].row
        yield row
        if row.parent is not None:
            parents.append(row.parent)


def _seq(row: Row) -> int:
    return row.seq


def _commit(change: Change) -> int:
    return change.commit
