"""Killed at any moment, a SQLite store holds all that it acknowledged, once, and no half of a batch."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tertulia.store import sqlite_care
from tertulia.testing.store_kit import A, B, Writer, writer
from tertulia.testing.store_kit import path as path_of
from tests.store.crash_sqlite import commit
from tests.store.sqlite_kit import opened

PATIENCE = 30.0


class Forge:
    """Lets writers be made, listens to them, and kills them."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.crash_sqlite"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.unread = b""

    def close(self) -> None:
        with self.process:
            self.process.kill()

    def run(self, path: Path, seconds: float) -> int:
        """Kills a writer this long after it was made; the last seq that it acknowledged, 0 for none."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path}\n".encode())
        self.process.stdin.flush()
        pid = self.number(time.monotonic() + PATIENCE)
        assert pid is not None
        deadline = time.monotonic() + seconds
        last = 0
        while (number := self.number(deadline)) is not None:
            last = number
        os.kill(pid, signal.SIGKILL)
        while number := self.number(time.monotonic() + PATIENCE):
            last = number
        assert number == 0
        return last

    def number(self, deadline: float) -> int | None:
        assert self.process.stdout is not None
        while b"\n" not in self.unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            data = os.read(self.process.stdout.fileno(), 65_536)
            assert data, "the forge died"
            self.unread += data
        line, self.unread = self.unread.split(b"\n", 1)
        return int(line)


@pytest.fixture
def forge() -> Iterator[Forge]:
    made = Forge()
    yield made
    made.close()


async def verify(path: Path, acknowledged: int) -> int:
    """The last seq, after a look at the end of the store; written to, so that it is seen to work."""
    async with opened(path) as store:
        if not (await store.list()).rows:
            assert acknowledged == 0
            return 0
        first, second = await store.open(A), await store.open(B)
        last = first.last
        assert last >= acknowledged
        assert second.last == last
        assert [row.item for row in first.inbox] == [f"item-{last}"]
        for opening in (first, second):
            assert opening.branches[0].totals.entries == last
        await commit(Writer(store, (await writer(store)).fence), last + 1)
        return last + 1


async def rounds(forge: Forge, path: Path, count: int) -> None:
    chance = random.Random(count)
    last, most = 0, 0
    for _ in range(count):
        before = last
        acknowledged = forge.run(path, 0.06 * chance.random())
        assert acknowledged == 0 or acknowledged > before
        last = await verify(path, max(before, acknowledged))
        most = max(most, last - before)
    assert most > 10, "the writers were killed before they wrote"
    async with opened(path) as store:
        for id in (A, B):
            way, after = path_of(await store.open(id)), 0
            while page := await store.read(way, after=after, limit=20_000):
                assert [row.seq for row in page] == list(range(after + 1, after + len(page) + 1))
                after = page[-1].seq
            assert after == last
    assert sqlite_care.check(path).ok


async def test_kill_at_any_moment(forge: Forge, tmp_path: Path) -> None:
    await rounds(forge, tmp_path / "store.db", 200)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_kill_at_any_moment_often(forge: Forge, tmp_path: Path) -> None:
    await rounds(forge, tmp_path / "store.db", 2_000)
