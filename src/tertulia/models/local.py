"""The embedded model: llama.cpp in this process, with small weights. It needs no key and no network.

It is told of no tools: reading their schemas would take it longer than answering.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from ..records.errors import BadModelRequest, ContextFull
from ..records.parts import describe
from ..records.record import Usage
from ..transcript.context import ModelMessage
from . import local_weights
from .base import Finished, ModelEvent, Request, Said, Thought

SYSTEM = "You are a helpful assistant."
"""Where no other is configured. The shorter, the sooner the first word comes."""

ANSWER = 1024
"""Tokens of an answer, at most: small models may repeat themselves for ever."""

ROOM = 256
"""Tokens that are kept for the answer; a conversation that leaves less does not fit."""

STOPPING = 2.0  # seconds that a request which was stopped may take to end before it is left to itself

STOP_REASONS = {"stop": "end", "length": "max_tokens"}


class _Ended(msgspec.Struct):
    error: Exception | None


class LocalModel:
    """The weights at `path`, else those that are installed. MissingExtra says what is not there."""

    name = "local"

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = local_weights.find(path)

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        from .local_engine import Job

        pieces: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def post(piece: object) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        job = Job(self.path, body(request), post, lambda error: post(_Ended(error)))
        job.start()
        try:
            while not isinstance(piece := await pieces.get(), _Ended):
                for event in events(piece):
                    yield event
        except BaseException:
            job.stop()
            await _last(pieces)
            raise
        if piece.error is not None:
            raise piece.error


async def _last(pieces: "asyncio.Queue[Any]") -> None:
    """Until the thread has ended; it is bounded, as a big batch of big weights may take its time."""
    try:
        async with asyncio.timeout(STOPPING):
            while not isinstance(await pieces.get(), _Ended):
                pass
    except TimeoutError:
        return


def body(request: Request) -> dict[str, Any]:
    """What llama.cpp is asked."""
    return {
        "messages": messages(request),
        "stream": True,
        "return_progress": True,  # else nothing comes, and nothing can be stopped, while the prompt is read
        "max_tokens": ANSWER,
        "temperature": 0,
        "repeat_penalty": 1.1,
    }


def messages(request: Request) -> list[dict[str, str]]:
    """One system message and then user and assistant in turns: all that every chat template knows."""
    found = [{"role": "system", "content": request.system.strip() or SYSTEM}]
    for message in request.messages:
        role = "assistant" if message.role == "assistant" else "user"
        text = _text(message)
        if not text:
            continue
        if found[-1]["role"] == role:
            found[-1]["content"] += f"\n\n{text}"
        else:
            found.append({"role": role, "content": text})
    return found


def _text(message: ModelMessage) -> str:
    """What of a message is text; the calls and results of other models as a note."""
    texts = [describe(message.parts)] if message.parts else []
    texts += [f"[called {call.name}]" for call in message.calls]
    texts += [f"[{result.name} answered: {result.text}]" for result in message.results]
    return "\n".join(texts).strip()


def events(chunk: dict[str, Any]) -> Iterable[ModelEvent]:
    """What a chunk of llama.cpp's stream says. The error types are ours."""
    if "error" in chunk:
        raise _error(chunk["error"])
    progress = chunk.get("prompt_progress")
    if progress is not None:
        _check_room(progress["total"])
    for choice in chunk.get("choices", ()):
        delta = choice["delta"]
        if delta.get("reasoning_content"):
            yield Thought(delta["reasoning_content"])
        if delta.get("content"):
            yield Said(delta["content"])
        if choice["finish_reason"] is not None:
            reason = STOP_REASONS.get(choice["finish_reason"], choice["finish_reason"])
            yield Finished(usage=_usage(chunk.get("timings", {})), stop_reason=reason)


def _check_room(tokens: int) -> None:
    """The first chunk counts the tokens, before any of them is read."""
    from .local_engine import CONTEXT

    if tokens > CONTEXT - ROOM:
        raise _full(tokens, CONTEXT)


def _full(tokens: int, context: int) -> ContextFull:
    return ContextFull(
        f"the conversation has {tokens:,} tokens; the embedded model takes {context - ROOM:,} and its answer",
        hint="compact it, fork from an earlier message, or choose another model",
        tokens=tokens,
    )


def _error(error: dict[str, Any]) -> Exception:
    if error.get("type") == "exceed_context_size_error":
        return _full(error["n_prompt_tokens"], error["n_ctx"])
    return BadModelRequest(f"the embedded model refuses the request: {error.get('message')}")


def _usage(timings: dict[str, Any]) -> Usage:
    cached = timings.get("cache_n", 0)
    return Usage(
        input_tokens=cached + timings.get("prompt_n", 0),
        output_tokens=timings.get("predicted_n", 0),
        cache_read_tokens=cached,
        requests=1,
    )
