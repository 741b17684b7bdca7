"""Check, repair and backup of a SQLite store: the original is never changed, and what can be read is saved."""

import contextlib
import hashlib
import os
import random
from pathlib import Path

import apsw
import pytest

from tertulia.records.errors import InvalidInput, StoreCorrupt, StoreNotFound, TertuliaError
from tertulia.records.ids import ConversationId
from tertulia.store import sqlite_care
from tertulia.store.blobs import ref_of
from tertulia.store.report import Report
from tertulia.store.sqlite_schema import PAGE_SIZE
from tertulia.testing.store_kit import A, B, read, seqs, writer
from tests.store.sqlite_kit import LONG, append, create, fill, opened

COUNT = 300


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    await fill(tmp_path / "store.db", COUNT)
    return tmp_path / "store.db"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def spoil_log(path: Path) -> None:
    Path(f"{path}-wal").write_bytes(random.Random(1).randbytes(50_000))


def flipped(path: Path, chance: random.Random, name: str) -> Path:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 5, 40))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    broken = path.with_name(name)
    broken.write_bytes(data)
    return broken


def pages_of(path: Path, table: str) -> list[int]:
    connection = apsw.Connection(str(path))
    found = connection.execute(
        "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno", (table,)
    ).fetchall()
    connection.close()
    return [int(number) for (number,) in found]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def repaired(path: Path) -> tuple[Report, Path]:
    before = digest(path)
    report = sqlite_care.repair(path)
    assert digest(path) == before
    assert report.written == f"{path}.repaired"
    return report, Path(report.written)


async def test_a_sound_store_has_no_problems_and_is_left_alone(path: Path) -> None:
    before = digest(path)
    report = sqlite_care.check(path)
    assert report == sqlite_care.repair(path)
    assert report.ok
    assert (report.conversations, report.kept, report.lost) == (3, 2 * COUNT + 1, 0)
    assert report.written is None
    assert digest(path) == before
    assert f"{path.name}.repaired" not in os.listdir(path.parent)


async def test_a_zeroed_page_of_records_costs_what_stood_on_it(path: Path) -> None:
    page = pages_of(path, "record")[3]
    overwrite(path, (page - 1) * PAGE_SIZE, bytes(PAGE_SIZE))
    dry = sqlite_care.check(path)
    assert not dry.ok
    report, new = repaired(path)
    assert (dry.kept, dry.lost) == (report.kept, report.lost)
    assert 0 < report.lost < 20
    assert report.kept + report.lost == 2 * COUNT + 1
    async with opened(new) as store:
        assert len(await seqs(store, A)) + len(await seqs(store, B)) == report.kept - 1
        writing = await writer(store)
        await writing.commit(append(A, COUNT + 1, COUNT + 2))
    assert all("there" in problem.what for problem in sqlite_care.check(new).problems)


@pytest.mark.parametrize("table", ["conversation", "branch", "session"])
async def test_records_outlive_the_rows_they_belong_to(path: Path, table: str) -> None:
    for page in pages_of(path, table):
        overwrite(path, (page - 1) * PAGE_SIZE, bytes(PAGE_SIZE))
    report, new = repaired(path)
    assert report.kept == 2 * COUNT + 1
    async with opened(new) as store:
        found = [len(await seqs(store, row.id)) for row in (await store.list()).rows]
        assert sum(found) >= 2 * COUNT


@pytest.mark.parametrize("first", [0, 16, 100])
async def test_a_damaged_header_loses_nothing(path: Path, first: int) -> None:
    overwrite(path, first, b"\xff" * 40)
    report, new = repaired(path)
    assert report.kept == 2 * COUNT + 1
    async with opened(new) as store:
        assert len(await seqs(store, A)) == COUNT
        (*_, long) = await read(store, ConversationId("fork"))
        assert LONG.encode() in long.data
        opening = await store.open(A)
        assert [row.item for row in opening.inbox] == ["waiting"]
        assert await store.client_id(A, "mine") is not None
        assert await store.get_blob(ref_of(b"blob " * 5_000)) == b"blob " * 5_000


async def test_a_damaged_row_is_counted_and_its_neighbours_are_kept(path: Path) -> None:
    page = pages_of(path, "record")[4]
    overwrite(path, page * PAGE_SIZE - 30, b"\xff" * 4)
    overwrite(path, (page - 1) * PAGE_SIZE + 8, b"\xff" * 2)
    report, _ = repaired(path)
    assert any("damaged rows" in problem.what for problem in report.problems)
    assert report.kept < 2 * COUNT + 1 <= report.kept + report.lost


async def test_a_truncated_file_keeps_its_first_pages(path: Path) -> None:
    truncate(path)
    report, _ = repaired(path)
    assert 0 < report.kept < 2 * COUNT + 1


async def test_a_record_that_cannot_be_decoded_goes_to_quarantine(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE record SET data = x'ff' WHERE key = (SELECT min(key) + 4 FROM record)")
    connection.close()
    dry = sqlite_care.check(path)
    assert [problem.where for problem in dry.problems] == ["a branch 0 seq 5"]
    report, new = repaired(path)
    assert report.kept == 2 * COUNT
    connection = apsw.Connection(str(new))
    assert connection.execute("SELECT data FROM quarantine").fetchall() == [(b"\xff",)]
    connection.close()


async def test_a_record_under_another_s_number_is_seen(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(
        "UPDATE record SET data = (SELECT data FROM record ORDER BY key LIMIT 1)"
        " WHERE key = (SELECT min(key) + 4 FROM record)"
    )
    connection.close()
    assert [problem.where for problem in sqlite_care.check(path).problems] == ["a branch 0 seq 5"]


async def test_records_of_every_length_are_salvaged_whole(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with opened(path) as store:
        writing = await writer(store)
        await writing.commit(*create(A))
        for seq in range(1, 300):
            await writing.commit(append(A, seq, seq, text="x" * (seq * 23)))
        written = await read(store, A)
    overwrite(path, 0, bytes(40))
    _, new = repaired(path)
    async with opened(new) as store:
        assert await read(store, A) == written


async def test_a_blob_with_other_bytes_is_never_given_out(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE blob_data SET data = x'00'")
    connection.close()
    ref = ref_of(b"blob " * 5_000)
    async with opened(path) as store:
        with pytest.raises(StoreCorrupt):
            await store.get_blob(ref)
    assert [problem.where for problem in sqlite_care.check(path).problems] == [f"blob {ref}"]


async def test_garbage_in_place_of_the_log_is_reported_and_left_out(path: Path) -> None:
    spoil_log(path)
    report = sqlite_care.check(path)
    assert [problem.where for problem in report.problems] == ["write-ahead log"]
    _, new = repaired(path)
    async with opened(new) as store:
        assert len(await seqs(store, A)) == COUNT


async def test_flipped_bytes_anywhere_never_crash_anything(path: Path) -> None:
    chance = random.Random(7)
    for turn in range(12):
        broken = flipped(path, chance, f"broken-{turn}.db")
        with contextlib.suppress(TertuliaError):  # typed, or it works
            async with opened(broken) as store:
                for row in (await store.list()).rows:
                    await read(store, row.id)
        report = sqlite_care.check(broken)
        kept = report.kept if report.ok else sqlite_care.repair(broken).kept
        assert kept > COUNT


async def test_a_backup_is_one_state_while_others_write(path: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    async with opened(path) as store:
        writing = await writer(store)
        futures = [
            writing.commit(append(A, seq, seq), append(B, seq, seq)) for seq in range(COUNT + 1, COUNT + 400)
        ]
        report = sqlite_care.backup(path, tmp_path / "deep" / "copy.db", lambda *step: steps.append(step))
        for future in futures:
            await future
    assert steps
    assert steps[-1][0] == steps[-1][1]
    async with opened(tmp_path / "deep" / "copy.db", create=False) as copy:
        assert await seqs(copy, A) == await seqs(copy, B)
        await writer(copy)
    assert sqlite_care.check(tmp_path / "deep" / "copy.db").ok
    assert report.conversations == 3


async def test_nothing_is_ever_overwritten(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.write_text("mine")
    for attempt in (sqlite_care.repair, sqlite_care.backup):
        with pytest.raises(InvalidInput):
            attempt(path, target)
    assert target.read_text() == "mine"


async def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database at all, " * 400)
    for attempt in (sqlite_care.check, sqlite_care.repair):
        with pytest.raises(StoreNotFound):
            attempt(tmp_path / "notes.txt")
        with pytest.raises(StoreNotFound):
            attempt(tmp_path / "missing")
