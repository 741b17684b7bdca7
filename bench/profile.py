"""Where the time of a text turn goes: functions by the time of their own, in memory and durable. Prints a text."""

import cProfile
import pstats
import sys

from tertulia import Session
from tertulia.store.base import Store

from .harness import Result, Scale, pick, sqlite, timed
from .models import QUESTION, Answers

TOP = 25


async def run(scale: Scale) -> list[Result]:
    turns = pick(scale, 5, 2000)
    await _profile("in memory", None, turns)
    async with sqlite() as (store, _):
        await _profile("SQLite FULL: the loop's thread", store, turns)
    return []


async def _profile(title: str, store: Store | None, turns: int) -> None:
    async with Session.open(store=store, model=Answers()) as session:
        await timed(3, lambda: session.prompt(QUESTION))
        profiler = cProfile.Profile()
        profiler.enable()
        took = await timed(turns, lambda: session.prompt(QUESTION))
        profiler.disable()
    print(f"\n{title}: {turns} turns, {took:.3f} ms each with the profiler running")
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(TOP)
