"""How many calls run at a time, and how fast they follow each other. What is beyond that waits its turn."""

import asyncio
from collections import Counter, deque
from collections.abc import Hashable

from ...records.clock import Clock

MINUTE = 60.0


class Slots:
    """First come, first served, as far as each key's own number allows."""

    def __init__(self, total: int, each: int) -> None:
        self._total = total
        self._each = each
        self._held: Counter[Hashable] = Counter()
        self._waiting: deque[tuple[Hashable, asyncio.Future[None]]] = deque()

    async def enter(self, key: Hashable) -> None:
        """Returns with a slot taken, which `leave` gives back."""
        if not self._waiting and self._free(key):
            self._held[key] += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (key, future)
        self._waiting.append(place)
        self._pump()
        try:
            await future
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            elif not future.cancelled():
                self.leave(key)  # it had been given its slot already
            raise

    def leave(self, key: Hashable) -> None:
        self._held[key] -= 1
        if self._held[key] <= 0:
            del self._held[key]
        self._pump()

    def _free(self, key: Hashable) -> bool:
        return self._held[key] < self._each and self._held.total() < self._total

    def _pump(self) -> None:
        for place in list(self._waiting):
            key, future = place
            if self._held.total() >= self._total:
                return
            if future.done() or not self._free(key):
                continue
            self._waiting.remove(place)
            self._held[key] += 1
            future.set_result(None)


class Rate:
    """At most so many starts in any minute; each start is given its time when it is asked for."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._starts: deque[float] = deque(maxlen=per_minute)
        self._clock = clock

    async def wait(self) -> None:
        now = self._clock.monotonic()
        full = len(self._starts) == self._starts.maxlen
        start = max(now, self._starts[0] + MINUTE) if full else now
        self._starts.append(start)
        if start > now:
            await self._clock.sleep(start - now)
