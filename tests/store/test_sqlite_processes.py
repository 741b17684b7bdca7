"""Two processes on one SQLite file: both read, one owns a Session, a dead owner is replaced and a frozen one is not."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tertulia.records.errors import SessionHeld, StaleFence
from tertulia.records.ids import ConversationId, SessionId
from tertulia.store import sqlite_care
from tertulia.store.base import Fence
from tertulia.store.sqlite import SqliteStore
from tertulia.testing.store_kit import A, B, S, append, create, item, seqs, settled, writer
from tests.store.sqlite_kit import opened

ROUNDS = 60

OTHER = """
import asyncio, sys
from pathlib import Path
from tests.store.test_sqlite_processes import other
asyncio.run(other(Path(sys.argv[1]), sys.argv[2]))
"""


async def other(path: Path, id: str) -> None:
    """Another process: claims a session of its own, commits when told to, and stays until its input ends."""
    store = await SqliteStore.at(path)
    writing = await writer(store, SessionId(f"session of {id}"))
    await writing.commit(*create(ConversationId(id), session=writing.fence.session))
    sys.stdout.write("claimed\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for seq in range(1, ROUNDS + 1):
        await writing.commit(append(ConversationId(id), seq, seq))
    sys.stdout.write("written\n")
    sys.stdout.flush()
    sys.stdin.readline()
    await store.aclose()


class Other:
    def __init__(self, path: Path, id: str) -> None:
        self.session = SessionId(f"session of {id}")
        command = [sys.executable, "-c", OTHER, str(path), id]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hear("claimed")

    def hear(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def say(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Other]:
    made = Other(tmp_path / "store.db", B)
    yield made
    made.kill()


async def test_both_write_at_the_same_time_and_see_each_other(neighbour: Other, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        neighbour.say()
        for seq in range(1, ROUNDS + 1):
            await asyncio.gather(*(writing.commit(append(A, 3 * seq + n, 3 * seq + n)) for n in (-2, -1, 0)))
        await asyncio.to_thread(neighbour.hear, "written")
        assert await seqs(store, B) == list(range(1, ROUNDS + 1))
        assert await seqs(store, A) == list(range(1, 3 * ROUNDS + 1))
        await store.commit((item(B, "from outside"),))
        assert [row.item for row in (await store.open(B)).inbox] == ["from outside"]
    assert sqlite_care.check(path).ok


async def test_an_owner_is_named_while_it_lives_and_replaced_when_it_was_killed(
    neighbour: Other, tmp_path: Path
) -> None:
    async with opened(tmp_path / "store.db") as store:
        with pytest.raises(SessionHeld) as raised:
            await store.claim(neighbour.session)
        assert f"process {neighbour.process.pid} on " in raised.value.holder
        assert (await store.session(neighbour.session)).holder == raised.value.holder
        os.kill(neighbour.process.pid, signal.SIGSTOP)
        with pytest.raises(SessionHeld):
            await store.claim(neighbour.session)
        neighbour.kill()
        assert (await store.session(neighbour.session)).holder is None
        fence = await store.claim(neighbour.session)
        assert fence.epoch == 2
        await store.commit((append(B, 1, 1),), fence)


async def test_a_frozen_owner_that_was_replaced_writes_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as old, opened(path) as new:
        writing = await writer(old)
        await writing.commit(*create(A), append(A, 1, 1))
        with pytest.raises(SessionHeld):
            await new.claim(S)
        old._claims.close()  # what the kernel does when the process is gone
        fence = await new.claim(S)
        await new.commit((append(A, 2, 2),), fence)
        with pytest.raises(StaleFence):
            await writing.commit(append(A, 3, 3))
        results = await settled([new.commit((append(A, 3, 3),), fence), writing.commit(append(A, 4, 4))])
        assert isinstance(results[1], StaleFence)
        assert await seqs(old, A) == [1, 2, 3]


async def test_a_released_session_is_free(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as first, opened(path) as second:
        fence = await first.claim(S)
        await first.release(fence)
        taken = await second.claim(S)
        await first.release(fence)  # harmless, since someone else is the owner by now
        with pytest.raises(SessionHeld):
            await first.claim(S)
        assert taken == Fence(session=S, epoch=2)


async def test_opened_at_the_same_time_a_new_file_becomes_one_store(tmp_path: Path) -> None:
    for attempt in range(20):  # which step of the one meets which of the other is chance
        stores = await asyncio.gather(*(SqliteStore.at(tmp_path / f"new{attempt}.db") for _ in range(6)))
        for number, store in enumerate(stores):
            writing = await writer(store, SessionId(f"s{number}"))
            await writing.commit(*create(ConversationId(f"c{number}"), session=writing.fence.session))
        assert len((await stores[0].list()).rows) == 6
        for store in stores:
            await store.aclose()
