"""SqliteStore: what only this store promises; what every store promises is in the conformance suite."""

import asyncio
import gc
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from tertulia.records.clock import SystemClock
from tertulia.records.ids import ConversationId
from tertulia.store import sqlite_schema, sqlite_writer
from tertulia.store.base import AddBlobs, DeleteConversation, DropRange, Fence, Rewrite
from tertulia.store.sqlite import SqliteStore
from tertulia.store.sqlite_schema import PAGE_SIZE, SLACK
from tertulia.store.sqlite_writer import Writer
from tertulia.testing.store_conformance import CASES, Case
from tertulia.testing.store_kit import (
    A,
    B,
    C,
    S,
    append,
    create,
    fork,
    kinds,
    rows,
    seqs,
    settled,
    tombstone,
    writer,
)
from tertulia.testing.store_kit import path as path_of
from tests.store.sqlite_kit import opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_conformance(case: Case, tmp_path: Path) -> None:
    await case.run(lambda: SqliteStore.at(tmp_path / "store.db"))


# ── what only this store promises ─────────────────────────────────────────────


def files(path: Path) -> bytes:
    return b"".join((path.parent / name).read_bytes() for name in os.listdir(path.parent))


def size(path: Path) -> int:
    return os.stat(path).st_size


SECRET = "the quick brown fox "
ERASE = {
    "rewrite": lambda: Rewrite(conversation=A, branch=0, rows=rows(3, 40, "placeholder")),
    "drop": lambda: DropRange(conversation=A, branch=0, first=3, through=40, tombstone=tombstone(3, 40)),
    "delete": lambda: DeleteConversation(conversation=A),
}


@pytest.mark.req("S2-12a")
@pytest.mark.parametrize("how", ERASE)
async def test_an_erased_body_is_gone_from_every_file_when_that_is_reported(how: str, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        writing = await writer(store)
        await writing.commit(*create(A), *create(B), append(B, 1, 200, text="kept"))
        for seq in range(1, 61):
            text = SECRET * (1 + seq * 3) if 3 <= seq <= 40 else "kept"
            await writing.commit(append(A, seq, seq, text=text))
        ref = await store.put_blob(SECRET.encode() * 500)
        await writing.commit(AddBlobs(conversation=A, branch=0, seq=5, refs=(ref,)))
        assert SECRET.encode() in files(path)
        await writing.commit(ERASE[how]())
        assert SECRET.encode() not in files(path)
        assert await seqs(store, B) == list(range(1, 201))


async def test_a_reader_in_the_way_delays_erasing_and_does_not_fail_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "ERASE_SECONDS", 0.0)
    monkeypatch.setattr(sqlite_writer, "IDLE_SECONDS", 0.05)
    erased = threading.Event()
    truncate = Writer._truncate

    def watched(self: Writer, patience: float) -> None:
        truncate(self, patience)
        if not self._erase:
            erased.set()

    monkeypatch.setattr(Writer, "_truncate", watched)
    path = tmp_path / "store.db"
    async with opened(path) as store:
        writing = await writer(store)
        await writing.commit(*create(A), append(A, 1, 60, text=SECRET))
        reader = apsw.Connection(str(path))
        reader.execute("BEGIN; SELECT count(*) FROM record").fetchall()
        await writing.commit(ERASE["rewrite"]())
        assert SECRET.encode() in files(path)
        reader.close()
        assert await asyncio.to_thread(erased.wait, 20.0)
        assert files(path).count(SECRET.encode()) == 22  # records 1, 2 and 41 to 60


async def test_what_waits_together_is_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    attempt = Writer._attempt

    def counted(self: Writer, group: Sequence[sqlite_writer.Job]) -> list[Any] | None:
        groups.append(len(group))
        return attempt(self, group)

    async with opened(tmp_path / "store.db") as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        monkeypatch.setattr(Writer, "_attempt", counted)
        futures = [writing.commit(append(A, seq, seq)) for seq in range(1, 2_001)]
        numbers = [await future for future in futures]
    assert numbers == sorted(set(numbers))
    assert sum(groups) == 2_000
    assert max(groups) <= sqlite_writer.MAX_GROUP
    assert len(groups) < 200


def log_pages(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size // (PAGE_SIZE + 24)


@pytest.mark.parametrize("count", [1_000, 10_000])
async def test_a_fork_writes_a_few_pages_whatever_the_length(count: int, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        writing = await writer(store)
        await writing.filled(A, count)
    async with opened(path) as store:
        writing = await writer(store)
        before = log_pages(path)
        await writing.commit(*fork(A, C, count // 2))
        assert log_pages(path) - before <= 10
        assert len(await seqs(store, C)) == count // 2


async def test_a_path_through_500_nested_forks(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        writing = await writer(store)
        await writing.filled(A, 2)
        above = A
        for n in range(500):
            id = ConversationId(f"fork-{n}")
            made = writing.commit(*fork(above, id, n + 2), append(id, n + 3, n + 3))
            above = id
        await made
        found = await store.open(above)
        assert len(found.branches) == 501
        assert found.last == 502
        assert await seqs(store, above) == list(range(1, 503))
        last = await store.read(path_of(found), limit=50, reverse=True)
        assert [row.seq for row in last] == list(range(502, 452, -1))


async def test_2_000_turns_take_at_most_half_more_than_their_records(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    total = 0
    async with opened(path) as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        for seq in range(1, 4_001, 2):
            both = append(A, seq, seq + 1, text="x" * 200, ts=seq)
            total += sum(len(row.data) for row in both.rows)
            last = writing.commit(both)
        await last
    assert size(path) <= 1.5 * total


async def test_lists_are_exact_though_their_order_is_kept_lazily(tmp_path: Path) -> None:
    chance = random.Random(5)
    async with opened(tmp_path / "store.db") as store:
        writing = await writer(store)
        updated: dict[str, int] = {}
        for n in range(60):
            id = ConversationId(f"c{n:02}")
            await writing.commit(*create(id, updated=n))
            updated[id] = n
        for seq in range(1, 8):
            for id in list(updated):
                ts = chance.randrange(5 * SLACK)
                await writing.commit(append(ConversationId(id), seq, seq, ts=ts))
                updated[id] = max(updated[id], ts)
        expected = sorted(updated, key=lambda id: (-updated[id], id))
        found: list[str] = []
        cursor = None
        while cursor is not None or not found:
            page = await store.list(cursor=cursor, limit=7)
            found += [row.id for row in page.rows]
            assert [row.updated for row in page.rows] == [updated[row.id] for row in page.rows]
            cursor = page.cursor
        assert found == expected


async def test_a_forgotten_store_ends_by_itself(tmp_path: Path) -> None:
    store = await SqliteStore.at(tmp_path / "store.db")
    await writer(store)
    thread = store._writer._thread
    del store
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    async with opened(tmp_path / "store.db") as again:
        assert (await again.claim(S)).epoch == 2


async def test_normal_durability_writes_as_well(tmp_path: Path) -> None:
    store = await SqliteStore.at(tmp_path / "store.db", durability="normal")
    writing = await writer(store)
    await writing.filled(A, 3)
    await store.aclose()
    async with opened(tmp_path / "store.db") as again:
        assert await seqs(again, A) == [1, 2, 3]


async def test_a_clock_that_steps_back_changes_nothing(tmp_path: Path) -> None:
    class Backwards(SystemClock):
        time = 10**15

        def now(self) -> int:
            self.time -= 10**9
            return self.time

    store = await SqliteStore.at(tmp_path / "store.db", clock=Backwards())
    writing = await writer(store)
    await writing.commit(*create(A), append(A, 1, 1, ts=50))
    await writing.commit(append(A, 2, 2, ts=20))
    ref = await store.put_blob(b"blob")
    assert await store.collect() == 0
    assert await store.get_blob(ref) == b"blob"
    assert await store.claim(S) == Fence(session=S, epoch=2)
    assert (await store.open(A)).conversation.updated == 50
    await store.aclose()


async def test_a_reader_never_waits_for_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        writing = await writer(store)
        await writing.filled(A, 5)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        stuck = writing.commit(append(A, 6, 6))
        assert await seqs(store, A) == [1, 2, 3, 4, 5]
        assert not stuck.done()
        other.execute("ROLLBACK")
        other.close()
        await stuck


async def test_a_file_that_stays_busy_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_schema, "BUSY_MS", 50)
    path = tmp_path / "store.db"
    async with opened(path) as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        results = await settled([writing.commit(append(A, 1, 1)), writing.commit(append(A, 2, 2))])
        assert kinds(results) == ["StorageError", "StorageError"]
        assert "another process" in str(results[0])
        other.close()
        await writing.commit(append(A, 1, 1))


async def test_an_older_file_is_migrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "store.db") as store:
        await (await writer(store)).filled(A, 3)
    monkeypatch.setattr(sqlite_schema, "VERSION", 2)
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", {1: "CREATE TABLE extra (x)"})
    for _ in range(2):
        async with opened(tmp_path / "store.db") as store:
            assert await seqs(store, A) == [1, 2, 3]
    connection = apsw.Connection(str(tmp_path / "store.db"))
    assert connection.pragma("user_version") == 2
    connection.close()
