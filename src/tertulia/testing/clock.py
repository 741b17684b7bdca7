"""A clock that stands still until a test moves it."""

import asyncio
import heapq
import itertools

START = 1_700_000_000_000_000


class FakeClock:
    """`advance` moves time on and wakes whoever slept until then, in order; `asleep` waits for sleepers to be there."""

    def __init__(self, start: int = START) -> None:
        self._now = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []
        self.slept: list[float] = []

    def now(self) -> int:
        return self._now + int(self._elapsed * 1e6)

    def monotonic(self) -> float:
        return self._elapsed

    def step_back(self, seconds: float) -> None:
        """As a wall clock does; the monotonic time goes on."""
        self._now -= int(seconds * 1e6)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._numbers), future))
        self._tell()
        await future

    async def asleep(self, count: int = 1) -> None:
        """Until that many are sleeping."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append((count, future))
        self._tell()
        await future

    async def advance(self, seconds: float) -> None:
        until = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            self._elapsed, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
            for _ in range(10):  # let who woke up go on, and perhaps sleep again
                await asyncio.sleep(0)
        self._elapsed = until

    def _tell(self) -> None:
        sleeping = sum(not future.done() for _, _, future in self._sleepers)
        for count, future in self._watchers:
            if sleeping >= count and not future.done():
                future.set_result(None)
        self._watchers = [(count, future) for count, future in self._watchers if not future.done()]
