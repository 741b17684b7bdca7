"""From a path or URL to a store, and one store for all who open the same path."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tertulia.records.errors import (
    ConfigError,
    InvalidInput,
    StaleFence,
    StoreClosed,
    StoreNotFound,
    TertuliaError,
)
from tertulia.store import shared
from tertulia.store.base import Store
from tertulia.store.jsonl import JsonlStore
from tertulia.store.memory import MemoryStore
from tertulia.store.open import open_store
from tertulia.store.shared import Handle
from tertulia.store.sqlite import SqliteStore
from tertulia.testing.store_kit import A, S, append, create, item, seqs, writer


@pytest.mark.parametrize("target", [None, "memory:", ":memory:"])
async def test_memory(target: str | None) -> None:
    assert isinstance(await open_store(target), MemoryStore)


async def test_a_store_is_itself() -> None:
    store = MemoryStore()
    assert await open_store(store) is store


@pytest.mark.parametrize("form", ["{}/s.db", "sqlite:{}/s.db", "SQLite:{}/s.db", "{}/sub/with space/a:b.db"])
async def test_a_path_is_sqlite(form: str, tmp_path: Path) -> None:
    path = form.format(tmp_path)
    store = await open_store(path)
    assert isinstance(store, Handle)
    assert store.durable
    await store.aclose()
    assert any(file.name.endswith(path[-4:]) for file in _files(tmp_path))


async def test_a_path_object_is_a_path_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await (await open_store(Path("jsonl:x"))).aclose()
    assert (tmp_path / "jsonl:x").is_file()


async def test_jsonl_is_a_folder(tmp_path: Path) -> None:
    store = await open_store(f"jsonl:{tmp_path}/logs")
    assert isinstance(store, JsonlStore)
    await store.aclose()
    assert (tmp_path / "logs").is_dir()


@pytest.mark.parametrize(
    ("target", "error", "hint"),
    [
        ("postgres://host/db", ConfigError, "not built in yet"),
        ("postgresql://host/db", ConfigError, "not built in yet"),
        ("redis://host", ConfigError, "jsonl:FOLDER"),
        ("sqlite:///relative.db", ConfigError, "sqlite:PATH"),
        ("sqlite:", ConfigError, "sqlite:PATH"),
        ("jsonl:", ConfigError, "jsonl:FOLDER"),
        ("", InvalidInput, "a path"),
        ("a\0b", InvalidInput, "a path"),
        ("jsonl:a\0b", InvalidInput, "a path"),
        (17, InvalidInput, "no store"),
    ],
)
async def test_what_cannot_be_opened_says_what_can(
    target: str, error: type[TertuliaError], hint: str
) -> None:
    with pytest.raises(error, match=hint):
        await open_store(target)


async def test_a_folder_is_no_sqlite_file(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match=f"jsonl:{tmp_path}"):
        await open_store(tmp_path)


@pytest.mark.parametrize("form", ["{}/none.db", "jsonl:{}/none"])
async def test_nothing_is_made_where_nothing_may(form: str, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        await open_store(form.format(tmp_path), create=False)
    assert not _files(tmp_path)
    assert shared._entries == {}


async def test_an_unknown_durability() -> None:
    with pytest.raises(ConfigError, match="full or normal"):
        await open_store(None, durability="none")  # type: ignore[arg-type]


async def test_two_openings_share_one_store(tmp_path: Path) -> None:
    one = await open_store(tmp_path / "s.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "s.db")
    two = await open_store(f"sqlite:{tmp_path}/./link.db")
    w = await writer(one)
    await w.commit(*create(A), append(A, 1, 1))
    assert await seqs(two, A) == [1]
    assert len(shared._entries) == 1
    last = w.commit(append(A, 2, 2))
    await one.aclose()
    assert last.done()
    assert (await two.session(S)).holder is None
    assert await seqs(two, A) == [1, 2]
    with pytest.raises(StoreClosed):
        await one.open(A)
    with pytest.raises(StoreClosed):
        await w.commit(append(A, 3, 3))
    await one.aclose()
    again = await writer(two)
    with pytest.raises(StaleFence):
        await two.commit((append(A, 3, 3),), w.fence)
    await again.commit(append(A, 3, 3))
    await two.aclose()
    assert shared._entries == {}


async def test_a_handle_releases_its_own_claims_only(tmp_path: Path) -> None:
    one, two = [await open_store(tmp_path / "s.db") for _ in range(2)]
    first = await writer(one)
    await first.commit(*create(A))
    second = await writer(two)  # one process: it takes over
    await one.aclose()
    assert (await two.session(S)).holder is not None
    await second.commit(append(A, 1, 1))
    await two.aclose()


async def test_closing_a_handle_waits_for_what_came_through_it(tmp_path: Path) -> None:
    one, two = [await open_store(tmp_path / "s.db") for _ in range(2)]
    await (await writer(one)).commit(*create(A))
    waiting = two.commit((item(A, "i"),))
    await two.aclose()
    assert waiting.done()
    await one.aclose()


async def test_openings_at_the_same_time_open_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = _count(monkeypatch, SqliteStore.at)
    stores = await asyncio.gather(*(open_store(tmp_path / "s.db") for _ in range(5)))
    assert len(opened) == 1
    await asyncio.gather(*(store.aclose() for store in stores[:4]))
    closing = asyncio.ensure_future(stores[4].aclose())
    await asyncio.sleep(0)
    after = await open_store(tmp_path / "s.db")  # waits until the other has closed
    assert closing.done()
    assert len(opened) == 2
    await after.aclose()


async def test_an_opening_that_was_cancelled_is_done_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()
    original = SqliteStore.at
    calls = 0

    async def at(path: str, **options: object) -> Store:
        nonlocal calls
        calls += 1
        if calls == 1:
            begun.set()
            await asyncio.Event().wait()
        return await original(path)

    monkeypatch.setattr(SqliteStore, "at", at)
    first = asyncio.ensure_future(open_store(tmp_path / "s.db"))
    async with asyncio.timeout(10):
        await begun.wait()
    impatient = asyncio.ensure_future(open_store(tmp_path / "s.db"))
    second = asyncio.ensure_future(open_store(tmp_path / "s.db"))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    first.cancel()
    store = await second
    assert calls == 2
    await store.aclose()
    for cancelled in (first, impatient):
        with pytest.raises(asyncio.CancelledError):
            await cancelled


def _files(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


def _count(monkeypatch: pytest.MonkeyPatch, original: Callable[..., Awaitable[Store]]) -> list[object]:
    calls: list[object] = []

    async def at(path: str, **options: object) -> Store:
        calls.append(path)
        return await original(path, **options)

    monkeypatch.setattr(SqliteStore, "at", at)
    return calls


async def test_another_durability_on_the_same_path_is_refused(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s.db", durability="normal")
    with pytest.raises(ConfigError, match="same durability"):
        await open_store(tmp_path / "s.db")
    await store.aclose()
    await (await open_store(tmp_path / "s.db")).aclose()


def test_no_database_is_loaded_before_it_is_needed() -> None:
    code = "import sys, tertulia.store.open; print(sorted({'apsw', 'sqlite3'} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert ran.stdout.strip() == "[]"
