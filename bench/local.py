"""The embedded model: the time to its first token, and per token after that.

Beside: llama.cpp itself, called in a thread, with the same weights in memory, threads and request. Each prompt is new
to both. Without xllamacpp or its weights there is nothing to measure.
"""

import asyncio
import itertools
import statistics
import time
from contextlib import aclosing
from typing import Any

from tertulia.models import local_engine
from tertulia.models.base import Request, Said
from tertulia.models.local import LocalModel, body
from tertulia.records.errors import TertuliaError
from tertulia.records.parts import Text
from tertulia.transcript.context import ModelMessage

from .harness import Result, Scale, pick, progress, rounds

Times = list[float]
"""When each token came, in seconds from the request."""


async def run(scale: Scale) -> list[Result]:
    tokens = pick(scale, 3, 24)
    try:
        model = LocalModel()
        server = (await asyncio.to_thread(local_engine.load, model.path)).server
    except TertuliaError as error:
        progress(f"local: not measured, {error}")
        return []
    ours: list[Times] = []
    bare: list[Times] = []
    numbers = itertools.count(100_000)
    try:
        await _ours(model, _request(next(numbers)), tokens)  # reads what all prompts begin with

        async def through() -> float:
            ours.append(await _ours(model, _request(next(numbers)), tokens))
            return ours[-1][0] * 1e3

        async def beside() -> float:
            bare.append(await asyncio.to_thread(_bare, server, _request(next(numbers)), tokens))
            return bare[-1][0] * 1e3

        first, bare_first = await rounds(pick(scale, 1, 9), through, beside)
    finally:
        local_engine.unload()
    each, bare_each = (statistics.median(map(_each, runs)) for runs in (ours, bare))
    floor = "llama.cpp by itself"
    return [
        Result("local: the first token", first, "ms", bare_first, floor),
        Result("local: a token", each, "ms", bare_each, floor),
    ]


def _request(number: int) -> Request:
    text = f"{number}: tell me a long story about a ship, its crew and the sea."
    return Request(messages=(ModelMessage("user", (Text(text=text),)),))


def _each(times: Times) -> float:
    """Milliseconds a token, behind the first."""
    return (times[-1] - times[0]) * 1e3 / (len(times) - 1)


async def _ours(model: LocalModel, request: Request, tokens: int) -> Times:
    times: Times = []
    start = time.perf_counter()
    async with aclosing(model.stream(request)) as events:  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Said):
                times.append(time.perf_counter() - start)
            if len(times) == tokens:
                return times
    raise AssertionError(f"the answer ended after {len(times)} tokens")


def _bare(server: Any, request: Request, tokens: int) -> Times:
    times: Times = []
    start = time.perf_counter()

    def take(chunk: dict[str, Any]) -> bool:
        """Whether to stop."""
        if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
            times.append(time.perf_counter() - start)
        return len(times) == tokens

    server.handle_chat_completions(body(request), take)
    if len(times) != tokens:
        raise AssertionError(f"the answer ended after {len(times)} tokens")
    return times
