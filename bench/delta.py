"""W6, one streamed delta on its way from the model to a consumer of the conversation's events.

The floor: reading the bare asynchronous generator that the model is.
"""

import asyncio
import time

from tertulia import Session
from tertulia.models.base import Request
from tertulia.session.reader import EventStream

from .harness import Goal, Result, Scale, Way, pick, rounds
from .models import QUESTION, Answers


async def run(scale: Scale) -> list[Result]:
    count, repeats = pick(scale, 100, 10_000), pick(scale, 1, 7)
    model = Answers(["four "] * count)
    async with Session.open(model=model) as session:
        floor, none, one, two = await rounds(
            repeats,
            lambda: _bare(model, count),
            _through(session, count, 0),
            _through(session, count, 1),
            _through(session, count, 2),
        )
    beside = "µs, a bare generator"
    return [
        Result("W6 delta, one consumer", one, "µs", floor, beside, Goal("over", 5)),
        Result("W6 delta, two consumers", two, "µs", floor, beside),
        Result("W6 delta, nobody listens", none, "µs", floor, beside),
    ]


async def _bare(model: Answers, count: int) -> float:
    """Microseconds a delta."""
    start = time.perf_counter()
    async for _ in model.stream(Request(messages=())):
        pass
    return (time.perf_counter() - start) * 1e6 / count


def _through(session: Session, count: int, consumers: int) -> Way:
    async def way() -> float:
        streams = [session.root.events().start() for _ in range(consumers)]
        reading = [asyncio.create_task(_read(stream)) for stream in streams]
        start = time.perf_counter()
        await session.prompt(QUESTION)
        seen = await asyncio.gather(*reading)
        took = (time.perf_counter() - start) * 1e6 / count
        if seen != [count] * consumers:
            raise AssertionError(f"of {count} deltas the consumers saw {seen}")
        return took

    return way


async def _read(stream: EventStream) -> int:
    seen = 0
    async with stream:
        async for event in stream:
            if event.type == "text":
                seen += 1
            elif event.type == "done":
                break
    return seen
