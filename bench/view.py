"""W9, the prompt view of 10,000 records: what it takes to make one, and to read it once as a model client does.

Beside: a copy of the list of its messages.
"""

import tracemalloc

from tertulia.records.record import Totals
from tertulia.transcript.context import Context

from . import built
from .harness import Goal, Result, Scale, awaitable, pick, rounds, timed


async def run(scale: Scale) -> list[Result]:
    records, times = pick(scale, 100, 10_000), pick(scale, 2, 20)
    context, totals = Context(), Totals()
    for seq in range(1, records + 1, built.A_TURN):
        made, totals = built.turn(seq, totals)
        for record in made:
            context.add(record)
    messages = list(context.view())
    view, read, copy = await rounds(
        pick(scale, 1, 15),
        lambda: timed(times, awaitable(context.view)),
        lambda: timed(times, awaitable(lambda: sum(len(message.parts) for message in context.view()))),
        lambda: timed(times, awaitable(messages.copy)),
    )
    tracemalloc.start()
    try:
        kept = context.view()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(kept) == len(messages)
    beside = f"list.copy() of {len(messages):,} messages"
    return [
        Result(f"W9 view of {records:,} records", view * 1e3, "µs", copy * 1e3, beside, Goal("ours", 1000)),
        Result("W9 the same, read once", read * 1e3, "µs", copy * 1e3, beside),
        Result("W9 memory of a view", peak, "bytes", 8 * len(messages), "a copied list", Goal("ours", 4096)),
    ]
