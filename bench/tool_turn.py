"""W3, a turn with one tool call and two model requests, durable (SQLite, FULL).

The floor: the very rows of such a turn written by sqlite3, one FULL transaction for each commit that it awaits, which
are four: the question, the call, its result, the answer.
"""

from tertulia import Session

from .bare import Bare
from .harness import Goal, Result, Scale, awaitable, last_turn, pick, rounds, sqlite, timed
from .models import QUESTION, Calls, add

BLOCK = 5


async def run(scale: Scale) -> list[Result]:
    repeats, block, long = pick(scale, 1, 30), pick(scale, 1, BLOCK), pick(scale, 3, 1000)
    async with (
        sqlite() as (store, folder),
        Session.open(store=store, model=Calls(), tools=[add]) as session,
        Session.open(store=store, model=Calls(), tools=[add]) as old,
    ):
        await timed(long, lambda: old.prompt(QUESTION))
        await timed(3, lambda: session.prompt(QUESTION))
        with Bare(folder / "bare.db") as bare:
            commits = await last_turn(session)
            ours, floor, late = await rounds(
                repeats,
                lambda: timed(block, lambda: session.prompt(QUESTION)),
                lambda: timed(block, awaitable(lambda: bare.write_all(commits))),
                lambda: timed(block, lambda: old.prompt(QUESTION)),
            )
    beside = f"sqlite3, {len(commits)} transactions"
    return [
        Result("W3 turn with a tool call", ours, "ms a turn", floor, beside, Goal("ratio", 1.5)),
        Result(f"W3 flat: turn {long:,}", late, "ms a turn", ours, "turns 3 to 153", Goal("ratio", 1.2)),
    ]
