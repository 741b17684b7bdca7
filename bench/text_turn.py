"""W1, a text turn: a question of 50 characters, an answer of 200 at once; durable (SQLite, FULL), and in memory.

The floor: the very rows of such a turn written by sqlite3, one FULL transaction for each commit that a turn awaits,
which are two. Flat: a turn of a long conversation beside one of a short conversation, in turns.
"""

import statistics
from functools import partial

from tertulia import Session

from .bare import Bare
from .harness import Goal, Result, Scale, awaitable, last_turn, pick, progress, rounds, sqlite, timed
from .models import QUESTION, Answers

BLOCK = 10
SHORT, LATE = 10, 100


async def run(scale: Scale) -> list[Result]:
    repeats, block = pick(scale, 1, 30), pick(scale, 1, BLOCK)
    async with (
        sqlite() as (store, folder),
        Session.open(store=store, model=Answers()) as session,
        Session.open(model=Answers()) as in_memory,
    ):
        await timed(3, lambda: session.prompt(QUESTION))
        with Bare(folder / "bare.db") as bare:
            commits = await last_turn(session)
            ours, floor, memory = await rounds(
                repeats,
                lambda: timed(block, lambda: session.prompt(QUESTION)),
                lambda: timed(block, awaitable(lambda: bare.write_all(commits))),
                lambda: timed(block, lambda: in_memory.prompt(QUESTION)),
            )
    beside = f"sqlite3, {len(commits)} transactions"
    return [
        Result("W1 text turn, SQLite FULL", ours, "ms a turn", floor, beside, Goal("ratio", 1.5)),
        Result("W1 text turn, memory", memory, "ms a turn", floor, beside),
        *[await flat(turns) for turns in _lengths(scale)],
    ]


def _lengths(scale: Scale) -> tuple[int, ...]:
    return {"quick": (6,), "usual": (2000,), "full": (2000, 10000)}[scale]


async def flat(turns: int) -> Result:
    """The last turns of a conversation of that many, beside turns 10 to 110 of another."""
    late, short = min(LATE, turns // 2), min(SHORT, turns // 2)
    async with (
        sqlite() as (store, _),
        Session.open(store=store, model=Answers()) as long,
        Session.open(store=store, model=Answers()) as young,
    ):
        progress(f"a conversation of {turns} turns …")
        for _ in range(turns - late):
            await long.prompt(QUESTION)
        for _ in range(short):
            await young.prompt(QUESTION)
        took: dict[Session, list[float]] = {long: [], young: []}
        for n in range(late):
            for session in (long, young) if n % 2 else (young, long):
                took[session].append(await timed(1, partial(session.prompt, QUESTION)))
    ours, floor = (statistics.median(each) for each in took.values())
    beside = f"turns {short} to {short + late}"
    return Result(f"W1 flat: turn {turns:,}", ours, "ms a turn", floor, beside, Goal("ratio", 1.2))
