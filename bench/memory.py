"""Resident memory of a conversation of 5,000 turns, durable, whose history is kept loaded: bytes a turn.

Beside: the bytes of its records as they stand in the file.
"""

import gc
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tertulia import Session
from tertulia.models.base import ModelEvent, Request, Said

from . import built
from .harness import Goal, Result, Scale, fresh, pick, progress, sqlite
from .models import ANSWER, END, QUESTION, Answers

FILL = 4
PAGE = os.sysconf("SC_PAGE_SIZE")


class Fresh(Answers):
    """Each answer a text of its own, as they are in life: one that is shared takes no memory."""

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        yield Said(fresh_text(ANSWER))
        yield END


def fresh_text(text: str) -> str:
    return text.encode().decode()


async def run(scale: Scale) -> list[Result]:
    turns = pick(scale, 60, 5000)
    progress(f"a conversation of {turns} turns in an interpreter of its own …")
    found = max(1.0, await fresh("bench.memory:grown", turns))  # pages are counted: few turns may need none
    floor = await _stored()
    what = f"memory of {turns:,} turns"
    return [Result(what, found, "bytes a turn", floor, "of records", Goal("ours", 2048))]


async def grown(turns: int) -> float:
    """Bytes a turn, not counting what the first tenth of them brought along once and for all."""
    from tertulia.store.sqlite import SqliteStore

    with tempfile.TemporaryDirectory(prefix="tertulia-bench-") as folder:
        store = await SqliteStore.at(Path(folder) / "ours.db", durability="normal")
        async with Session.open(store=store, model=Fresh()) as session:
            # SQLite keeps the pages it used last, up to a limit: that is filled before anything is counted.
            await built.conversation(store, FILL * turns)
            first = turns // 10
            for _ in range(first):
                await session.prompt(fresh_text(QUESTION))
            before = resident()
            for _ in range(turns - first):
                await session.prompt(fresh_text(QUESTION))
            after = resident()
        await store.aclose()
    return (after - before) / (turns - first)


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def _stored() -> float:
    async with sqlite() as (store, _), Session.open(store=store, model=Fresh()) as session:
        for _ in range(10):
            await session.prompt(QUESTION)
        rows = await store.read(session.root._log.path(), limit=1000)
    return sum(len(row.data) for row in rows) / 10
