"""One answer of a model: asked for, tried again where that may help, and never written twice."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from ..models.base import Finished, ModelEvent, Request, Said, Thought, ToolSpec
from ..records.errors import (
    AuthenticationFailed,
    BadModelRequest,
    ConfigError,
    ContextFull,
    EmptyReply,
    InternalError,
    ModelError,
    OutputInvalid,
    RateLimited,
    RequestRefused,
    StorageError,
    UnknownModelError,
)
from ..records.event import Retry, State
from .compaction import compact
from .engine import Turn
from .speech import announce, begin, said, spend, started, thought

FINAL = (BadModelRequest, RequestRefused, OutputInvalid)
"""What another model would be told as well."""

YIELD_EVERY = 64
"""Deltas after which the loop gets a turn: a model that never waits must not keep others from running."""

PERMANENT = (*FINAL, AuthenticationFailed, ContextFull)
"""What asking the same model again cannot change."""


async def ask(turn: Turn) -> Finished:
    """One answer: of the model, else of those that stand in for it, in order."""
    while True:
        try:
            return await _attempts(turn)
        except ModelError as error:
            if not turn.fallbacks or isinstance(error, FINAL):
                raise
            turn.model, *others = turn.fallbacks
            turn.fallbacks = tuple(others)
            await _announce_retry(turn, 0, 0.0, error)
            turn.emit(State(state="running", **turn.common()))


async def _attempts(turn: Turn) -> Finished:
    """One answer of the model, tried again as often as the limits say. Nothing of a failed attempt is recorded.

    A context that is full is compacted once, which is no attempt.
    """
    attempt = 1
    while True:
        begin(turn)
        try:
            return await _attended(turn)
        except ContextFull as full:
            if turn.compacted or await _compacted(turn) is None:
                raise full
            continue
        except (ModelError, StorageError, ConfigError) as raised:
            error: Exception = raised
        except Exception as raised:  # noqa: BLE001 - whatever a model raises becomes a typed error, its cause kept
            error = UnknownModelError(f"the model raised {type(raised).__name__}: {raised}")
            error.__cause__ = raised
        if attempt > turn.limits.max_retries or not retryable(error):
            raise error
        delay = _delay(turn, attempt, error)
        await _announce_retry(turn, attempt, delay, error)
        await turn.clock.sleep(delay)
        turn.emit(State(state="running", **turn.common()))
        attempt += 1


async def _compacted(turn: Turn) -> object:
    turn.compacted = True
    await started(turn)
    turn.texts, turn.journal.log.live = [], None
    return await compact(turn.journal, turn.id)


def retryable(error: Exception) -> bool:
    return isinstance(error, ModelError) and not isinstance(error, PERMANENT)


async def _attended(turn: Turn) -> Finished:
    """What a model does after a cancel counts for nothing; a cancel that nobody asked for is its own failure."""
    try:
        return await _stream(turn)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if turn.cancelled is not None or (task is not None and task.cancelling()):
            raise
        raise UnknownModelError("the model was cancelled from within") from error
    except Exception:
        if turn.cancelled is not None:
            raise asyncio.CancelledError from None
        raise


async def _stream(turn: Turn) -> Finished:
    system = _system(turn)
    if turn.output is not None:
        system = f"{system}\n\n{turn.output.instruction}".strip()
    if turn.model is None:
        raise InternalError(
            "a turn without a model asks one", hint='an engine that asks it says "model" in capabilities'
        )
    if turn.tools_ready is not None:
        await turn.tools_ready()
    stream = turn.model.stream(Request(messages=turn.view(), tools=specs(turn), system=system))
    finished: Finished | None = None
    async with _watched(turn), contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(_close, stream)
        count = 0
        async for event in stream:
            turn.heard = turn.clock.monotonic()  # also an empty piece is a sign of life
            count += 1
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            finished = await _take(turn, event)
            if finished is not None:
                break
    if finished is None:
        finished = Finished()
    else:
        spend(turn, finished)
    used = finished.usage
    turn.journal.log.learn(used.input_tokens + used.cache_read_tokens + used.cache_write_tokens)
    if not finished.calls and not finished.parts and not "".join(turn.texts).strip():
        raise EmptyReply("the model answered with nothing", hint="ask again, or ask something else")
    await announce(turn)
    return finished


def _system(turn: Turn) -> str:
    try:
        return turn.system()
    except Exception as error:
        raise ConfigError(f"the system prompt cannot be made: {type(error).__name__}: {error}") from error


async def _take(turn: Turn, event: ModelEvent) -> Finished | None:
    if turn.cancelled is not None:
        raise asyncio.CancelledError
    if isinstance(event, Said):
        if event.text:
            await said(turn, event.text)
    elif isinstance(event, Thought):
        await thought(turn, event.text)
    return event if isinstance(event, Finished) else None


@contextlib.asynccontextmanager
async def _watched(turn: Turn) -> AsyncIterator[None]:
    """End the turn when its model falls silent, where a limit for that is set."""
    idle = turn.limits.idle_timeout
    if idle is None:
        idle = getattr(turn.model, "idle_timeout", None)
    if idle is None:
        yield
        return
    turn.heard = turn.clock.monotonic()
    watch = asyncio.create_task(_watch(turn, idle), name="tertulia-idle")
    try:
        yield
    finally:
        watch.cancel()


async def _watch(turn: Turn, idle: float) -> None:
    while (left := turn.heard + idle - turn.clock.monotonic()) > 0:
        await turn.clock.sleep(left)
    turn.timeout = f"the model {turn.model_name} sent nothing for {idle:g} seconds"
    turn.cancel("timeout")


async def _close(stream: AsyncIterator[ModelEvent]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


def specs(turn: Turn) -> tuple[ToolSpec, ...]:
    tools = turn.toolbox().enabled()
    return tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in tools)


def _delay(turn: Turn, attempt: int, error: Exception) -> float:
    """The pause before the next attempt. The first is the base delay; later ones double, with jitter."""
    delay: float = turn.limits.retry_base_delay * 2.0 ** (attempt - 1)
    if attempt > 1:
        delay *= 1 + random.random() / 10
    if isinstance(error, RateLimited) and error.retry_after is not None:
        delay = max(delay, error.retry_after)
    return delay


async def _announce_retry(turn: Turn, attempt: int, delay: float, error: Exception) -> None:
    assert isinstance(error, ModelError)
    await started(turn)
    discarded = bool(turn.texts)
    turn.texts, turn.journal.log.live = [], None
    turn.emit(
        Retry(
            attempt=attempt,
            delay=delay,
            code=error.code,
            error=error.message,
            discarded=discarded,
            **turn.common(),
        )
    )
    turn.emit(State(state="retrying", **turn.common()))
