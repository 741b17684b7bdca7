"""A model that answers by a script, for tests: it does what real ones do, at once, and remembers what it was asked."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from ..models.base import Call, Finished, ModelEvent, Request, Said, Thought
from ..records.ids import CallId
from ..records.record import Usage


class ScriptExhausted(AssertionError):
    """The model was asked more often than its script has answers."""


class Stream:
    """An answer in pieces: text, `Thought`, calls, `Finished`, a hold to wait at, an exception to fail with.

    `delay` seconds lie before each piece, told by asyncio's clock.
    """

    def __init__(self, pieces: Iterable[Any], delay: float = 0.0) -> None:
        self.pieces = tuple(pieces)
        self.delay = delay


class Hold:
    """Stands in a script where the model is to wait until `release()`. `reached` is set when it is waiting."""

    def __init__(self, then: Any = "ok") -> None:
        self.then = then
        self.reached = asyncio.Event()
        self._released = asyncio.Event()

    async def until_reached(self, timeout: float = 10.0) -> None:
        """Until the model waits here; TimeoutError when it does not."""
        async with asyncio.timeout(timeout):
            await self.reached.wait()

    def release(self) -> None:
        self._released.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._released.wait()


def hold(then: Any = "ok") -> Hold:
    """An answer that is given when `.release()` is called."""
    return Hold(then)


def call(name: str, /, **args: Any) -> Call:
    """A tool call, for a script: `[call("add", a=1, b=2)]`. `call_id=` gives it that id."""
    id = args.pop("call_id", None)
    return Call(name=name, args=args, id=CallId(id) if id is not None else None)


class ScriptedModel:
    """Each item of the script answers one request: text, a list of calls (and text before them), an exception to
    raise, a Stream, a hold, or a function of the request (plain or async) that returns one of these. `default`
    answers once the script is used up.
    """

    name = "scripted"

    def __init__(
        self, script: Iterable[Any] = (), default: Any = None, *, usage: Usage | None = None
    ) -> None:
        self._script = list(script)
        self._default = default
        self._usage = usage or Usage(input_tokens=1, output_tokens=1, requests=1)
        self.requests: list[Request] = []

    def add(self, *answers: Any) -> None:
        """More answers, behind those that are left."""
        self._script.extend(answers)

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        self.requests.append(request)
        if self._script:
            answer = self._script.pop(0)
        elif self._default is not None:
            answer = self._default
        else:
            raise ScriptExhausted(f"request {len(self.requests)}: the script has no answer for it")
        async for event in self._play(answer, request):
            yield event

    async def _play(self, answer: Any, request: Request) -> AsyncIterator[ModelEvent]:
        while callable(answer) and not isinstance(answer, type):
            answer = answer(request)
            if inspect.isawaitable(answer):
                answer = await answer
        if isinstance(answer, Hold):
            await answer.wait()
            answer = answer.then
        pieces, delay = (
            (answer.pieces, answer.delay) if isinstance(answer, Stream) else (_pieces(answer), 0.0)
        )
        calls: list[Call] = []
        for piece in pieces:
            if delay:
                await asyncio.sleep(delay)
            if isinstance(piece, Finished):
                yield piece
                return
            if isinstance(piece, Call):
                calls.append(piece)
            elif isinstance(piece, Hold):
                await piece.wait()
            else:
                yield _event(piece)
        yield Finished(calls=tuple(calls), usage=self._usage, stop_reason="tool_use" if calls else "end")


def _pieces(answer: Any) -> Sequence[Any]:
    if isinstance(answer, list | tuple):
        return answer
    return (answer,)


def _event(piece: Any) -> ModelEvent:
    if isinstance(piece, str):
        return Said(piece)
    if isinstance(piece, Said | Thought):
        return piece
    if isinstance(piece, BaseException) or (isinstance(piece, type) and issubclass(piece, BaseException)):
        raise piece
    raise TypeError(f"a script cannot hold {piece!r}")


def texts(request: Request) -> list[tuple[str, str]]:
    """The (role, text) of a request's messages: what tests compare."""
    return [(message.role, message.text) for message in request.messages]
