"""A model that needs nothing: fixed answers to fixed words, and it says so. Its tools show what tools can do."""

import asyncio
from collections.abc import AsyncIterator, Callable

from ..records.errors import Overloaded, RequestRefused
from ..records.record import Usage
from .base import Call, Finished, ModelEvent, Request, Said, Thought

ABOUT = "I am the demo model: my answers are fixed, no model runs behind me."
WORDS = {
    "tool now": "calls a tool",
    "parallel": "calls two tools at once",
    "chart": "draws a chart",
    "search": "searches three sentences, and shows what it found",
    "approval": "calls a tool that asks first",
    "think": "shows its reasoning",
    "slow": "answers word by word",
    "long": "gives a long answer",
    "retry": "fails once, and answers when it is asked again",
    "error": "fails",
    "wait": "never ends",
}
"""What can be said to it, and what it then does."""

HELP = "Say one of these: " + ", ".join(f"'{word}' ({what})" for word, what in WORDS.items()) + "."
CALLS = {
    "parallel": (Call(name="now"), Call(name="roll", args={"dice": 2})),
    "chart": (Call(name="chart"),),
    "search": (Call(name="search", args={"query": "log of a fork"}),),
    "approval": (Call(name="publish", args={"text": "Hello, world."}),),
}
PAUSE = 0.15  # seconds between two words of a slow answer

Answer = AsyncIterator[ModelEvent]


class DemoModel:
    name = "demo"

    def __init__(self) -> None:
        self._fail = True  # the next 'retry'

    def stream(self, request: Request) -> Answer:
        last = request.messages[-1] if len(request.messages) else None
        text = last.text.strip() if last is not None else ""
        if last is not None and last.role == "tool":
            return _say(f"{'The tools' if len(last.results) > 1 else 'The tool'} answered: {text}", request)
        word, _, rest = text.partition(" ")
        if word == "tool" and rest in _known(request):
            return _call((Call(name=rest),), request)
        if word in CALLS:
            return _call(CALLS[word], request)
        if word == "retry":
            return self._flaky(request)
        if word in ACTS:
            return ACTS[word](request)
        return _say(f"{ABOUT} You said: {text!r}. {HELP}", request)

    async def _flaky(self, request: Request) -> Answer:
        self._fail = not self._fail
        if not self._fail:
            yield Said("This attempt fails ")
            raise Overloaded("you asked the demo model to fail once")
        async for event in _say("The first attempt failed, this one did not.", request):
            yield event


async def _say(text: str, request: Request, pause: float | None = None) -> Answer:
    words = text.split(" ")
    for n, word in enumerate(words):
        if pause is not None:
            await asyncio.sleep(pause)
        yield Said(word if n == 0 else " " + word)
    yield Finished(usage=_usage(request, len(words)))


async def _call(calls: tuple[Call, ...], request: Request) -> Answer:
    missing = sorted({call.name for call in calls} - _known(request))
    if missing:
        text = f"I would call {' and '.join(missing)}, but was given no such tool. The demo tools have them."
        async for event in _say(text, request):
            yield event
        return
    yield Said(f"I call {' and '.join(call.name for call in calls)}.")
    yield Finished(calls=calls, usage=_usage(request, 1), stop_reason="tool_use")


async def _error(request: Request) -> Answer:
    raise RequestRefused("you asked the demo model for an error")
    yield  # what makes it a generator


async def _wait(request: Request) -> Answer:
    yield Said("I wait until you cancel me. ")
    await asyncio.Event().wait()


async def _think(request: Request) -> Answer:
    for thought in ("They want to see reasoning. ", "I have none, so I show this."):
        yield Thought(thought)
    async for event in _say("That was what reasoning looks like.", request):
        yield event


def _slow(request: Request) -> Answer:
    return _say(
        "This answer comes slowly, one word after the other, so that you can watch it.", request, PAUSE
    )


def _long(request: Request) -> Answer:
    return _say(" ".join(f"This is sentence {n} of a long answer." for n in range(1, 41)), request)


ACTS: dict[str, Callable[[Request], Answer]] = {
    "error": _error, "wait": _wait, "think": _think, "slow": _slow, "long": _long,
}  # fmt: skip


def _known(request: Request) -> set[str]:
    return {tool.name for tool in request.tools}


def _usage(request: Request, words: int) -> Usage:
    """Words, as this model knows no tokens."""
    said = sum(len(message.text.split()) for message in request.messages)
    return Usage(input_tokens=said, output_tokens=words, requests=1)
