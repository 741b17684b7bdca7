"""A hosted model's answer through our layer, beside the provider's own package, both asking the same fake server.

The server runs in the same process, so what it takes is part of both figures: the difference is what the layer adds.
A request is one with an answer of one piece; a chunk is one of many in a long answer.
"""

import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tertulia.models.base import Request, Said
from tertulia.models.hosted import HostedModel
from tertulia.records.parts import Text
from tertulia.testing.providers import FakeProvider, Reply, Seen
from tertulia.transcript.context import ModelMessage

from .harness import Result, Scale, pick, rounds
from .models import QUESTION

KEY, PIECE = "none", "four "
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
REQUEST = Request(messages=(ModelMessage("user", (Text(text=QUESTION),)),))

Ask = Callable[[], Awaitable[int]]
"""Reads one answer to its end; how many pieces of text it had."""


async def run(scale: Scale) -> list[Result]:
    pieces, repeats = pick(scale, 5, 1000), pick(scale, 1, 9)
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    results: list[Result] = []
    for provider, raw in RAW.items():
        async with _server() as server, _ours(provider, server.url) as ours, raw(server.url) as theirs:
            short = await rounds(repeats, *(_way(server, ask, 1, 10) for ask in (ours, theirs)))
            long = await rounds(repeats, *(_way(server, ask, pieces, 1) for ask in (ours, theirs)))
        chunk = [took * 1e3 / pieces for took in long]
        beside = f"the package {'anthropic' if provider == 'anthropic' else 'openai'}"
        results += [
            Result(f"{provider}: a chunk", chunk[0], "µs", chunk[1], beside),
            Result(f"{provider}: a request", short[0], "ms", short[1], beside),
        ]
    return results


def _way(server: "_Server", ask: Ask, pieces: int, times: int) -> Callable[[], Awaitable[float]]:
    async def way() -> float:
        """Milliseconds an answer."""
        server.pieces = pieces
        await ask()  # the connection is open now
        start = time.perf_counter()
        for _ in range(times):
            seen = await ask()
        took = (time.perf_counter() - start) * 1e3 / times
        if seen != pieces:
            raise AssertionError(f"of {pieces} pieces {seen} came")
        return took

    return way


class _Server:
    """Answers every request with as many pieces of text as it is set to."""

    def __init__(self) -> None:
        self.pieces = 1
        self.url = ""

    def answer(self, seen: Seen) -> Reply:
        return Reply(*_pieces(seen.path, self.pieces))


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[_Server]:
    server = _Server()
    async with FakeProvider(default=server.answer) as fake:
        server.url = fake.url
        yield server


def _pieces(path: str, count: int) -> list[bytes]:
    """One block or item of text in so many deltas, as providers send it, encoded once for all."""
    if path.endswith("/messages"):
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        delta = _event("content_block_delta", index=0, delta={"type": "text_delta", "text": PIECE})
        ends = _event("content_block_start", **block), _event("content_block_stop", index=0)
    elif path.endswith("/responses"):
        of = {"item_id": "msg_0", "output_index": 0, "sequence_number": 1}
        text = {"type": "output_text", "text": "", "annotations": []}
        item = {"type": "message", "id": "msg_0", "role": "assistant", "status": "in_progress", "content": []}
        added = _event("response.output_item.added", item=item, output_index=0, sequence_number=1)
        part = _event("response.content_part.added", content_index=0, part=text, **of)
        delta = _event("response.output_text.delta", content_index=0, delta=PIECE, logprobs=[], **of)
        whole = {**item, "status": "completed", "content": [{**text, "text": PIECE * count}]}
        ends = (
            added + part,
            _event("response.output_item.done", item=whole, output_index=0, sequence_number=2),
        )
    else:
        chunk = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}
        choice = {"index": 0, "delta": {"content": PIECE}, "finish_reason": None}
        return [f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode()] * count
    return [ends[0], *[delta] * count, ends[1]]


def _event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


@contextlib.asynccontextmanager
async def _ours(provider: str, url: str) -> AsyncIterator[Ask]:
    model = HostedModel(provider, "bench", base_url=url, api_key=KEY)

    async def ask() -> int:
        return sum([isinstance(event, Said) and event.text != "" async for event in model.stream(REQUEST)])

    try:
        yield ask
    finally:
        await model.aclose()


@contextlib.asynccontextmanager
async def _anthropic(url: str) -> AsyncIterator[Ask]:
    from anthropic import AsyncAnthropic

    async with AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:

        async def ask() -> int:
            stream: Any = await client.messages.create(
                model="bench", max_tokens=4096, messages=MESSAGES, stream=True
            )
            return sum([event.type == "content_block_delta" async for event in stream])

        yield ask


@contextlib.asynccontextmanager
async def _responses(url: str) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0) as client:

        async def ask() -> int:
            stream: Any = await client.responses.create(model="bench", input=MESSAGES, stream=True)
            return sum([event.type == "response.output_text.delta" async for event in stream])

        yield ask


@contextlib.asynccontextmanager
async def _chat(url: str) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0) as client:

        async def ask() -> int:
            stream: Any = await client.chat.completions.create(
                model="bench", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            return sum([bool(chunk.choices and chunk.choices[0].delta.content) async for chunk in stream])

        yield ask


RAW = {"anthropic": _anthropic, "openai": _responses, "openai-chat": _chat}
