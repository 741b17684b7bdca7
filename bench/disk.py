"""W2, the size of the file after 2,000 turns of 400 characters (200 asked, 200 answered), closed and checkpointed.

The floor: the bytes of the records themselves.
"""

import tempfile
from pathlib import Path

from tertulia import Session
from tertulia.store.sqlite import SqliteStore

from .harness import Goal, Result, Scale, pick
from .models import ANSWER, Answers

QUESTION = "q" * len(ANSWER)


async def run(scale: Scale) -> list[Result]:
    turns = pick(scale, 20, 2000)
    with tempfile.TemporaryDirectory(prefix="tertulia-bench-") as folder:
        store = await SqliteStore.at(Path(folder) / "ours.db", durability="normal")
        async with Session.open(store=store, model=Answers()) as session:
            for _ in range(turns):
                await session.prompt(QUESTION)
            path = session.root._log.path()
        rows = await store.read(path, limit=10**9)
        await store.aclose()
        size = _size(Path(folder))
    floor = sum(len(row.data) for row in rows)
    what = f"W2 disk, {turns:,} turns"
    return [Result(what, size / 1024, "kB", floor / 1024, "kB of records", Goal("ratio", 1.5))]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
