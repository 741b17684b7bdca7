"""A SQLite store on media that fail, among files that are no stores, and among batches that are wrong."""

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertulia.records.errors import (
    ConfigError,
    SequenceConflict,
    StoreClosed,
    StoreFull,
    StoreNotFound,
    TertuliaError,
    VersionTooNew,
)
from tertulia.store.sqlite import SqliteStore
from tertulia.store.sqlite_schema import APPLICATION, VERSION
from tertulia.store.sqlite_tx import Tx
from tertulia.testing.store_kit import A, B, append, create, kinds, seqs, settled, writer
from tests.store.sqlite_kit import opened


def can_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.skipif(not can_mount(), reason="file systems cannot be mounted here")
@pytest.mark.parametrize("medium", ["full", "readonly"])
def test_on_a_medium_that_fails(medium: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.store.crash_media", medium, str(tmp_path)]
    done = subprocess.run(
        ["unshare", "-m", *program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr


async def limit(store: SqliteStore, more: int | None) -> None:
    """Lets the file grow by so many pages and no more; None: as much as it likes."""

    def job(tx: Tx) -> None:
        pages = tx.connection.pragma("page_count") + more if more is not None else 2**31
        tx.connection.pragma("max_page_count", pages)

    await store._submit(job)


async def test_a_full_disk_refuses_the_batch_that_does_not_fit_and_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        await writing.commit(*create(B))
        await limit(store, 20)
        big = append(A, 1, 1, text="x" * 100_000)
        results = await settled(
            [writing.commit(append(B, 1, 1)), writing.commit(big), writing.commit(append(B, 2, 2))]
        )
        assert kinds(results) == ["int", "StoreFull", "int"]
        assert isinstance(results[1], StoreFull)
        assert results[1].hint
        await limit(store, None)
        await writing.commit(big)
        assert await seqs(store, A) == [1]
        assert await seqs(store, B) == [1, 2]


async def test_a_failed_batch_fails_alone_and_in_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        batches = [append(A, 1, 3), append(A, 3, 4), append(A, 5, 5), append(A, 4, 4)]
        results = await settled([writing.commit(batch) for batch in batches])
        assert kinds(results) == ["int", "SequenceConflict", "SequenceConflict", "int"]
        assert isinstance(results[1], SequenceConflict)
        assert await seqs(store, A) == [1, 2, 3, 4]


async def test_a_defect_in_a_batch_harms_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        wrong: Any = "this is no operation"
        results = await settled(
            [writing.commit(append(A, 1, 1)), writing.commit(wrong), writing.commit(append(A, 2, 2))]
        )
        assert kinds(results) == ["int", "InternalError", "int"]


async def test_a_cancelled_waiter_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        future = writing.commit(append(A, 1, 1))
        future.cancel()
        await writing.commit(append(A, 2, 2))
        assert await seqs(store, A) == [1, 2]


async def test_a_closed_store_refuses_and_wrote_what_it_was_handed(tmp_path: Path) -> None:
    store = await SqliteStore.at(tmp_path / "store.db")
    writing = await writer(store)
    futures = [writing.commit(*create(A)), *(writing.commit(append(A, seq, seq)) for seq in range(1, 50))]
    await asyncio.gather(store.aclose(), store.aclose())
    assert all(isinstance(result, int) for result in await settled(futures))
    for attempt in (writing.commit(append(A, 50, 50)), store.open(A), store.claim(writing.fence.session)):
        with pytest.raises(StoreClosed):
            await attempt
    async with opened(tmp_path / "store.db") as store:
        assert len(await seqs(store, A)) == 49


# ── files ─────────────────────────────────────────────────────────────────────


async def refuses(path: Path, error: type[TertuliaError], hint: str = "") -> None:
    with pytest.raises(error) as raised:
        await SqliteStore.at(path, create=False)
    assert raised.value.hint
    assert hint in raised.value.hint


async def test_what_is_not_there_is_made_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "store.db"
    await refuses(path, StoreNotFound)
    async with opened(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(f"{path}-wal").st_mode) == 0o600
    async with opened(path, create=False):
        pass
    assert sorted(os.listdir(path.parent)) == ["store.db"]


async def test_a_folder_is_named_as_what_it_is(tmp_path: Path) -> None:
    await refuses(tmp_path, StoreNotFound, hint=f"jsonl:{tmp_path}")


async def test_a_device_is_no_store() -> None:
    await refuses(Path("/dev/null"), StoreNotFound)


def other_database(path: Path, *pragmas: str) -> Path:
    connection = apsw.Connection(str(path))
    for pragma in (*pragmas, "CREATE TABLE theirs (x)"):
        connection.execute(pragma)
    connection.close()
    return path


async def test_another_program_s_database_is_left_alone(tmp_path: Path) -> None:
    await refuses(other_database(tmp_path / "a"), StoreNotFound)
    await refuses(other_database(tmp_path / "b", "PRAGMA application_id = 7"), StoreNotFound)


async def test_a_store_from_the_future_is_refused_by_its_version(tmp_path: Path) -> None:
    path = other_database(
        tmp_path / "store.db",
        f"PRAGMA application_id = {APPLICATION}",
        f"PRAGMA user_version = {VERSION + 1}",
    )
    await refuses(path, VersionTooNew)


async def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    mode: Any = "eventually"
    with pytest.raises(ConfigError):
        await SqliteStore.at(tmp_path / "store.db", durability=mode)


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=3_000), ours=st.booleans())
async def test_any_bytes_give_a_typed_error_or_a_store(
    data: bytes, ours: bool, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "store.db"
    write(path, b"SQLite format 3\0" * ours + data)
    with contextlib.suppress(TertuliaError):
        async with opened(path, create=False) as store:
            await store.list()
