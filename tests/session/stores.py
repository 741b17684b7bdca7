"""A store whose commits a test holds back, lets go and makes fail."""

import asyncio
from collections import deque
from typing import Any

from tertulia.records.codec import decode_lenient
from tertulia.records.record import AnyRecord
from tertulia.store.base import Append, Batch, Fence, Store


class GatedStore:
    """Everything but `commit` is the inner store's. Commits keep their order, held or not."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.durable = inner.durable
        self.commits: list[Batch] = []  # those handed to the inner store
        self._closed = False
        self._held: deque[tuple[Batch, Fence | None, asyncio.Future[int]]] = deque()
        self._failing: deque[BaseException | None] = deque()
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def hold(self) -> None:
        """From now on commits wait for `let_go`."""
        self._closed = True

    def let_go(self) -> None:
        self._closed = False
        while self._held:
            self._forward(*self._held.popleft())

    def let_one(self) -> None:
        self._forward(*self._held.popleft())

    def refuse_one(self, error: BaseException) -> None:
        """The oldest held commit fails; nothing of it is applied."""
        _, _, future = self._held.popleft()
        _fail(future, error)

    def fail(self, error: BaseException, after: int = 0, count: int = 1) -> None:
        """Let `after` commits through, then refuse `count` of them."""
        self._failing.extend([None] * after + [error] * count)

    def heal(self) -> None:
        self._failing.clear()

    @property
    def held(self) -> int:
        return len(self._held)

    async def waiting(self, count: int = 1) -> None:
        """Until that many commits are held."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append((count, future))
        self._tell()
        async with asyncio.timeout(10):
            await future

    def commit(self, batch: Batch, fence: Fence | None = None) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._closed:
            self._held.append((batch, fence, future))
            self._tell()
        else:
            self._forward(batch, fence, future)
        return future

    def _forward(self, batch: Batch, fence: Fence | None, future: asyncio.Future[int]) -> None:
        error = self._failing.popleft() if self._failing else None
        if error is not None:
            _fail(future, error)
            return
        self.commits.append(batch)
        self.inner.commit(batch, fence).add_done_callback(lambda done: _pass_on(done, future))

    def _tell(self) -> None:
        for count, future in self._watchers:
            if len(self._held) >= count and not future.done():
                future.set_result(None)
        self._watchers = [(count, future) for count, future in self._watchers if not future.done()]


def committed(batch: Batch) -> list[AnyRecord]:
    """The records of a batch."""
    return [decode_lenient(row.data, row.seq) for op in batch if isinstance(op, Append) for row in op.rows]


def _pass_on(done: "asyncio.Future[int]", future: "asyncio.Future[int]") -> None:
    if future.done():
        return
    error = done.exception()
    if error is not None:
        _fail(future, error)
    else:
        future.set_result(done.result())


def _fail(future: "asyncio.Future[int]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # nobody has to await a commit
