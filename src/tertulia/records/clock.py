"""The one source of time. Everything that asks what time it is, or waits, is handed one of these."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since the epoch; may step back, as wall clocks do."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def next_ts(clock: Clock, previous: int) -> int:
    """A timestamp for what follows something at `previous`: later, even when the clock stepped back."""
    return max(clock.now(), previous + 1)
