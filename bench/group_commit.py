"""The store alone, durable (FULL): one small record a batch, by 1 writer and by 50 at once.

Beside: one transaction for each record by the standard library's sqlite3, by apsw, and by aiosqlite (50 tasks on one
connection, which is what applications do).
"""

import asyncio
import time
from contextlib import closing
from pathlib import Path

import aiosqlite
import apsw

from tertulia.records.ids import ConversationId, new_conversation_id, new_session_id
from tertulia.records.record import Totals
from tertulia.store.base import Append, Fence, Row, Store

from . import built
from .bare import Bare
from .harness import Goal, Result, Scale, awaitable, pick, rounds, sqlite, timed

DATA = b'{"type":"custom","seq":1,"ts":1700000000000000,"kind":"bench","data":"' + b"x" * 60 + b'"}'


class Ours:
    """Writers of a conversation each."""

    def __init__(self, store: Store, writers: list[tuple[ConversationId, Fence]]) -> None:
        self._store = store
        self._writers = writers
        self._seqs = dict.fromkeys((id for id, _ in writers), 0)

    async def write(self, id: ConversationId, fence: Fence, times: int) -> None:
        for _ in range(times):
            self._seqs[id] += 1
            seq = self._seqs[id]
            op = Append(
                conversation=id,
                branch=0,
                first=seq,
                last=seq,
                rows=(Row(seq, DATA),),
                totals=Totals(),
                ts=seq,
            )
            await self._store.commit((op,), fence)

    async def each(self, writers: int, times: int) -> float:
        """Milliseconds a record."""
        start = time.perf_counter()
        await asyncio.gather(*(self.write(*writer, times) for writer in self._writers[:writers]))
        return (time.perf_counter() - start) * 1e3 / (writers * times)


async def run(scale: Scale) -> list[Result]:
    count, times, repeats = pick(scale, 3, 50), pick(scale, 2, 40), pick(scale, 1, 9)
    async with sqlite() as (store, folder):
        writers = []
        for _ in range(count):
            id = new_conversation_id()
            writers.append((id, await built.create(store, new_session_id(), id)))
        ours = Ours(store, writers)
        async with aiosqlite.connect(folder / "aio.db", isolation_level=None) as aio:
            await _prepare(aio)
            with Bare(folder / "bare.db") as bare, closing(_apsw(folder / "apsw.db")) as other:

                def by_apsw() -> None:
                    with other:
                        other.execute("INSERT INTO record (data) VALUES (?)", (DATA,))

                found = await rounds(
                    repeats,
                    lambda: ours.each(1, times),
                    lambda: timed(times, awaitable(lambda: bare.write([DATA]))),
                    lambda: timed(times, awaitable(by_apsw)),
                    lambda: ours.each(count, times),
                    lambda: _aiosqlite(aio, count, times),
                )
    one, by_sqlite3, by_apsw_ms, many, by_aiosqlite = found
    return [
        Result("store: 1 writer, FULL", one, "ms a commit", by_sqlite3, "sqlite3"),
        Result("store: 1 writer, FULL", one, "ms a commit", by_apsw_ms, "apsw"),
        _rate(f"store: {count} writers, FULL", many, by_sqlite3, "sqlite3, one after the other"),
        _rate(f"store: {count} writers, FULL", many, by_aiosqlite, "aiosqlite, one transaction each"),
    ]


def _rate(what: str, ours: float, floor: float, beside: str) -> Result:
    return Result(what, 1e3 / ours, "rows/s", 1e3 / floor, beside, Goal("ratio", 1.0, least=True))


def _apsw(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE record (key INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    return connection


async def _prepare(aio: aiosqlite.Connection) -> None:
    for statement in (
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        "CREATE TABLE record (key INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    ):
        await aio.execute(statement)


async def _aiosqlite(aio: aiosqlite.Connection, writers: int, times: int) -> float:
    """Outside of an explicit transaction each statement is one."""

    async def write() -> None:
        for _ in range(times):
            await aio.execute("INSERT INTO record (data) VALUES (?)", (DATA,))

    start = time.perf_counter()
    await asyncio.gather(*(write() for _ in range(writers)))
    return (time.perf_counter() - start) * 1e3 / (writers * times)
