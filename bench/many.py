"""W5, 1,000 conversations (each a Session of its own on one store) of 5 text turns, 100 in flight at a time.

The floor: their rows written by sqlite3, as many commits in one FULL transaction as there are turns in flight.
"""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import AsyncExitStack

from tertulia import Session
from tertulia.store.base import Store

from .bare import Bare
from .harness import Goal, Result, Scale, fresh, last_turn, pick, progress, rounds, sqlite
from .models import QUESTION, Answers

TURNS = 5


async def run(scale: Scale) -> list[Result]:
    count, flight, repeats = pick(scale, 4, 1000), pick(scale, 2, 100), pick(scale, 1, 3)
    progress(f"{count} conversations x {TURNS} turns, {repeats} times …")
    async with sqlite() as (store, folder):
        async with Session.open(store=store, model=Answers()) as session:
            await session.prompt(QUESTION)
            commits = await last_turn(session)
        cpu: list[float] = []
        with Bare(folder / "bare.db") as bare:
            ours, floor = await rounds(
                repeats,
                lambda: _talk(store, count, flight, cpu),
                lambda: _bare(bare, commits, count * TURNS, flight),
            )
    kept = await fresh("bench.many:kept", pick(scale, 3, 300))
    beside = f"sqlite3, {flight} commits a transaction"
    return [
        Result(f"W5 {count:,} conversations", ours, "turns/s", floor, beside, Goal("ours", 1500, least=True)),
        Result("W5 processor time, all threads", min(cpu), "ms a turn"),
        Result("W5 memory of an open conversation", kept / 1024, "kB", goal=Goal("ours", 15)),
    ]


async def _talk(store: Store, count: int, flight: int, cpu: list[float]) -> float:
    """Turns a second, from the first opening to the last reply."""
    waiting = iter(range(count))
    async with AsyncExitStack() as stack:

        async def worker() -> None:
            for _ in waiting:
                session = await stack.enter_async_context(Session.open(store=store, model=Answers()))
                for _ in range(TURNS):
                    await session.prompt(QUESTION)

        start, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(worker() for _ in range(flight)))
        took = time.perf_counter() - start
        cpu.append((time.process_time() - spent) * 1e3 / (count * TURNS))
    return count * TURNS / took


async def _bare(bare: Bare, commits: Sequence[Sequence[bytes]], turns: int, group: int) -> float:
    start = time.perf_counter()
    for _ in range(0, turns, group):
        for rows in commits:
            bare.write([data for _ in range(group) for data in rows])
    return turns / (time.perf_counter() - start)


async def kept(count: int) -> float:
    """Bytes that an open conversation of 5 turns holds in memory, by Python's own count."""
    async with sqlite() as (store, _), AsyncExitStack() as stack:

        async def more(sessions: int) -> int:
            for _ in range(sessions):
                session = await stack.enter_async_context(Session.open(store=store, model=Answers()))
                for _ in range(TURNS):
                    await session.prompt(QUESTION)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        before = await more(max(1, count // 10))
        after = await more(count)
        tracemalloc.stop()
    return (after - before) / count
