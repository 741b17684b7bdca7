"""Models that answer at once and remember nothing, so that what is measured is not theirs."""

from collections.abc import AsyncIterator, Sequence

from tertulia.models.base import Call, Finished, ModelEvent, Request, Said
from tertulia.records.record import Usage

USAGE = Usage(input_tokens=1, output_tokens=1, requests=1)
END = Finished(usage=USAGE)
CALLS = Finished(calls=(Call(name="add", args={"a": 2, "b": 3}),), usage=USAGE, stop_reason="tool_use")

QUESTION = "q" * 50
ANSWER = "a" * 200


class Answers:
    """These pieces of text, each time."""

    name = "bench"

    def __init__(self, pieces: Sequence[str] = (ANSWER,)) -> None:
        self._said = [Said(piece) for piece in pieces]

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        for said in self._said:
            yield said
        yield END


class Calls:
    """A question gets one call of the tool `add`, its result an answer."""

    name = "bench"

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        if request.messages[-1].role != "tool":
            yield CALLS
            return
        yield Said(ANSWER)
        yield END


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b
