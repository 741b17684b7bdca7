"""W4, forks of conversations of 1,000, 10,000 and 100,000 records; a cold load of 1,000 turns; 500 nested forks.

The floors: three rows (conversation, branch, note) in one FULL transaction of sqlite3; sqlite3 opening a file and
reading the rows of 1,000 turns; our own store reading as many records from one branch.
"""

import sqlite3
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

from tertulia import Session
from tertulia.models.base import ModelEvent, Request
from tertulia.records.ids import ConversationId
from tertulia.store.base import Row
from tertulia.store.sqlite import SqliteStore
from tertulia.transcript.path import segments

from . import built
from .bare import Bare
from .harness import Goal, Result, Scale, awaitable, pick, progress, rounds, sqlite, timed
from .models import QUESTION, Answers

FRAME = 24 + 2048  # in the write-ahead log: a head, and a page of our stores
ROWS = (b"c" * 200, b"b" * 150, b"n" * 120)


async def run(scale: Scale) -> list[Result]:
    results: list[Result] = []
    for records in (10, 50) if scale == "quick" else (1_000, 10_000, 100_000):
        results += await forks(records, pick(scale, 2, 40))
    return [*results, await cold(pick(scale, 3, 1000), pick(scale, 1, 9)), *await nested(scale)]


@asynccontextmanager
async def reopened(turns: int) -> AsyncIterator[tuple[Path, ConversationId]]:
    """The file of a store that was closed, so that its log is empty, with one conversation."""
    progress(f"a conversation of {turns:,} turns …")
    async with sqlite() as (store, folder):
        id = await built.conversation(store, turns)
        await store.aclose()
        yield folder / "ours.db", id


async def forks(records: int, repeats: int) -> list[Result]:
    written: list[int] = []
    async with reopened(records // built.A_TURN) as (path, id):
        log = path.with_name(f"{path.name}-wal")
        store = await SqliteStore.at(path)
        async with Session.open(store=store, id=id, model=Answers()) as session:
            await session.rename("the first write claims")

            async def fork() -> float:
                before = log.stat().st_size
                took = await timed(1, session.fork)
                written.append(log.stat().st_size - before)
                return took

            with Bare(path.with_name("bare.db")) as bare:
                ours, floor = await rounds(
                    repeats, fork, lambda: timed(1, awaitable(lambda: bare.write(ROWS)))
                )
        await store.aclose()
    pages = statistics.median(written) / FRAME
    return [
        Result(f"W4 fork at {records:,} records", ours, "ms", floor, "sqlite3, 3 rows", Goal("ours", 1.0)),
        Result(f"W4 fork at {records:,} records: log", pages, "pages", goal=Goal("ours", 16)),
    ]


class Asked(Answers):
    """Notes when it is asked."""

    at = 0.0

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        self.at = time.perf_counter()
        async for event in super().stream(request):
            yield event


async def cold(turns: int, repeats: int) -> Result:
    """From nothing open to the first model request of the next prompt, history and all."""
    async with reopened(turns) as (path, id):
        with Bare(path.with_name("bare.db")) as bare:
            bare.write([row.data for row in await _rows(path, id)])

        async def ours() -> float:
            model = Asked()
            start = time.perf_counter()
            store = await SqliteStore.at(path)
            async with Session.open(store=store, id=id, model=model) as session:
                await session.prompt(QUESTION)
            await store.aclose()
            return (model.at - start) * 1e3

        def floor() -> None:
            with closing(sqlite3.connect(path.with_name("bare.db"))) as connection:
                connection.execute("SELECT key, data FROM record ORDER BY key").fetchall()

        took, bare_took = await rounds(repeats, ours, lambda: timed(1, awaitable(floor)))
    what = f"W4 cold load of {turns:,} turns"
    return Result(what, took, "ms", bare_took, "sqlite3, rows read", Goal("ours", 20))


async def _rows(path: Path, id: ConversationId) -> Sequence[Row]:
    store = await SqliteStore.at(path)
    try:
        return await read(store, id)
    finally:
        await store.aclose()


async def read(store: SqliteStore, id: ConversationId) -> Sequence[Row]:
    opened = await store.open(id)
    return await store.read(segments(opened.branches, id, 0), limit=10**9)


async def nested(scale: Scale) -> list[Result]:
    depth, repeats = pick(scale, 5, 500), pick(scale, 1, 9)
    progress(f"{depth} nested forks …")
    async with sqlite() as (store, _):
        last = await built.chain(store, depth)
        flat = await built.conversation(store, depth + 1)
        row = (await store.open(last)).conversation

        async def ready() -> None:
            async with Session.open(store=store, id=row.session) as session:
                await session.conversation(last).transcript()

        path, plain, opening = await rounds(
            repeats,
            lambda: timed(1, lambda: read(store, last)),
            lambda: timed(1, lambda: read(store, flat)),
            lambda: timed(1, ready),
        )
    records = (depth + 1) * built.A_TURN
    beside = f"{records:,} records in one branch"
    return [
        Result(f"W4 path through {depth} forks", path, "ms", plain, beside),
        Result(f"W4 its Session of {depth + 1} conversations", opening, "ms", plain, beside),
    ]
