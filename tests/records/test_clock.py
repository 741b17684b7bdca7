"""Time."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from tertulia.records.clock import SYSTEM_CLOCK, next_ts


class Stopped:
    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=30))
def test_timestamps_only_rise_however_the_clock_jumps(readings: list[int]) -> None:
    previous = 0
    for reading in readings:
        stamp = next_ts(Stopped(reading), previous)
        assert stamp > previous
        assert stamp >= reading
        assert stamp in (reading, previous + 1)
        previous = stamp


async def test_the_system_clock_tells_microseconds() -> None:
    before = time.time_ns() // 1_000
    assert before <= SYSTEM_CLOCK.now() <= time.time_ns() // 1_000
    started = SYSTEM_CLOCK.monotonic()
    await SYSTEM_CLOCK.sleep(0.001)
    assert SYSTEM_CLOCK.monotonic() - started >= 0.001
