"""Killed at any moment, a JSONL store holds all that it acknowledged, once, and no half of a batch."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tertulia.records.codec import decode
from tertulia.records.errors import SessionHeld
from tertulia.records.record import Message
from tertulia.store import jsonl_care
from tertulia.store.jsonl import JsonlStore
from tertulia.testing import store_kit as kit
from tertulia.testing.store_kit import A, B
from tests.store.crash_jsonl import REWRITTEN, commit
from tests.store.test_sqlite_crash import Forge


class JsonlForge(Forge):
    def __init__(self) -> None:
        program = [sys.executable, "-m", "tests.store.crash_jsonl"]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.unread = b""


@pytest.fixture
def forge() -> Iterator[JsonlForge]:
    made = JsonlForge()
    yield made
    made.close()


async def verify(path: Path, acknowledged: int) -> int:
    """The last seq, after a look at the store; written to, so that it is seen to work."""
    async with kit.opened(lambda: JsonlStore.at(path)) as store:
        if not (await store.list()).rows:
            assert acknowledged == 0
            return 0
        first, second = await store.open(A), await store.open(B)
        last = first.last
        assert last >= acknowledged
        assert second.last == last
        assert [row.item for row in first.inbox] == [f"item-{last}"]
        for id in (A, B):
            assert await kit.seqs(store, id) == list(range(1, last + 1))
        if last >= REWRITTEN:
            record = decode((await kit.read(store, B))[0].data)
            assert isinstance(record, Message)
            assert record.text == f"written {last - last % REWRITTEN}"
        await commit(await kit.writer(store), last + 1)
        return last + 1


async def rounds(forge: JsonlForge, path: Path, count: int) -> None:
    chance = random.Random(count)
    last, most = 0, 0
    for _ in range(count):
        before = last
        acknowledged = forge.run(path, 0.06 * chance.random())
        assert acknowledged == 0 or acknowledged > before
        last = await verify(path, max(before, acknowledged))
        most = max(most, last - before)
        if last > 300:  # a rewrite takes as long as its file
            last, path = 0, path.with_name(f"store-{chance.random()}")
    assert most > 10, "the writers were killed before they wrote"
    assert last == 0 or jsonl_care.check(path).ok


async def test_kill_at_any_moment(forge: JsonlForge, tmp_path: Path) -> None:
    await rounds(forge, tmp_path / "store", 60)


@pytest.mark.torture
@pytest.mark.timeout(900)
async def test_kill_at_any_moment_often(forge: JsonlForge, tmp_path: Path) -> None:
    await rounds(forge, tmp_path / "store", 1_000)


# ── two processes ──

HOLD = """
import asyncio, sys
from pathlib import Path
from tertulia.store.jsonl import JsonlStore
from tertulia.testing import store_kit as kit

async def main():
    store = await JsonlStore.at(Path(sys.argv[1]))
    w = await kit.writer(store)
    await w.filled(kit.A, 2)
    for line in iter(lambda: (print("ready", flush=True), sys.stdin.readline())[1], ""):
        (result,) = await kit.settled([w.commit(kit.append(kit.A, int(line), int(line)))])
        print(type(result).__name__, flush=True)

asyncio.run(main())
"""


class Holder:
    """A process that has claimed the session and appends what it is told to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 20)).decode().strip()

    async def append(self, seq: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seq}\n".encode())
        said = await self.says()
        assert await self.says() == "ready"
        return said


@asynccontextmanager
async def holding(path: Path) -> AsyncIterator[Holder]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, os.fspath(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        holder = Holder(process)
        assert await holder.says() == "ready"
        yield holder
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store, holding(tmp_path) as holder:
        error = await kit.refused(SessionHeld, store.claim(kit.S), "a claim of what another process holds")
        assert str(holder.process.pid) in str(error.details["holder"])
        assert (await store.session(kit.S)).holder == error.details["holder"]
        assert await kit.seqs(store, A) == [1, 2]
        await store.commit((kit.item(A, "from outside"),))
        other = await kit.writer(store, kit.SessionId("other"))
        for seq in range(3, 13):
            mine = other.filled(kit.ConversationId(f"mine {seq}"), 3)
            said, _ = await asyncio.gather(holder.append(seq), mine)
            assert said == "int"
        assert await kit.seqs(store, A) == list(range(1, 13))
        assert len(await kit.listed(store)) == 11
        await kit.refused(SessionHeld, store.claim(kit.S), "another claim")
        holder.process.kill()
        await asyncio.wait_for(holder.process.wait(), 20)
        w = await kit.writer(store)
        await w.commit(kit.append(A, 13, 13))
        assert [row.item for row in (await store.open(A)).inbox] == ["from outside"]


async def test_a_stopped_process_holds_and_a_robbed_one_cannot_write(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store, holding(tmp_path) as holder:
        os.kill(holder.process.pid, signal.SIGSTOP)
        await kit.refused(SessionHeld, store.claim(kit.S), "a claim of what a stopped process holds")
        os.kill(holder.process.pid, signal.SIGCONT)
        (tmp_path / "owners.lock").unlink()  # as on a file system whose locks were lost
        async with kit.opened(lambda: JsonlStore.at(tmp_path)) as thief:
            w = await kit.writer(thief)
            assert await holder.append(3) == "StaleFence"
            await w.commit(kit.append(A, 3, 3))
            assert await kit.seqs(thief, A) == [1, 2, 3]
