"""Commits of one turn, counted: what each of them costs is the disk's business, how many there are is ours."""

from collections.abc import Sequence
from typing import Any

from tertulia import Session

from .harness import Goal, Result, Scale
from .models import QUESTION, Answers, Calls, add

TURNS = 5


async def run(scale: Scale) -> list[Result]:
    text = await _commits(Answers(), ())
    call = await _commits(Calls(), (add,))
    return [
        Result("commits of a text turn", text, "", 2, "awaited", Goal("ours", 2)),
        Result("commits of a turn with a tool call", call, "", 4, "awaited", Goal("ours", 4)),
    ]


async def _commits(model: Any, tools: Sequence[Any]) -> float:
    async with Session.open(model=model, tools=tools) as session:
        await session.prompt(QUESTION)
        before = session.root._journal.commits
        for _ in range(TURNS):
            await session.prompt(QUESTION)
        return (session.root._journal.commits - before) / TURNS
