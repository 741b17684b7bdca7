"""One call under way, and what a server asks back while it runs."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from ...records.clock import Clock
from ...records.errors import McpError
from ...records.ids import CallId, ConversationId
from ...records.parts import AnyPart, Text
from ..context import ToolContext
from .content import clean, part_of

MAX_ASKED = 4_000
SAMPLINGS, SAMPLED_TOKENS, MAX_SAMPLED = (
    5,
    2_000,
    50_000,
)  # how often, how long an answer, how long a question


class Elicitation(msgspec.Struct, frozen=True, kw_only=True):
    """What a server wants to know from a person. `schema` says what the answer has to look like; or open `url`."""

    server: str
    conversation_id: ConversationId
    call_id: CallId
    message: str
    schema: dict[str, Any] = {}
    url: str | None = None


Answerer = Callable[[Elicitation], Awaitable[Mapping[str, Any] | None]]
"""Answers an Elicitation with what was asked for, or None, which declines."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """What a server wants a model to answer: its own words only, nothing of the conversation."""

    server: str
    context: ToolContext
    messages: tuple[tuple[Literal["user", "assistant"], AnyPart], ...]
    system: str = ""
    max_tokens: int = 0


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    model: str
    stop: str


Sampler = Callable[[Sampling], Awaitable[Sampled]]
"""Answers a Sampling, after a person allowed it; raises McpError when it is not allowed."""


class McpCall:
    """A call that a server works on. Its time does not run while the server waits for an answer of ours."""

    def __init__(self, context: ToolContext, clock: Clock, timeout: float) -> None:
        self.context = context
        self.conversation = context.conversation_id
        self.asked: set[asyncio.Task[Any]] = set()
        self.samplings = 0
        self._clock = clock
        self._deadline = clock.monotonic() + timeout
        self._goes_on = asyncio.Event()
        self._goes_on.set()

    async def expire(self) -> None:
        """Returns when its time is up."""
        while True:
            await self._goes_on.wait()
            left = self._deadline - self._clock.monotonic()
            if left <= 0:
                return
            await self._clock.sleep(left)

    async def answered(self, answer: Awaitable[Any]) -> Any:
        """Await an answer to the server; the call's end dismisses the question."""
        task = asyncio.ensure_future(answer)
        self.asked.add(task)
        self._goes_on.clear()
        since = self._clock.monotonic()
        try:
            return await task
        finally:
            self.asked.discard(task)
            self._deadline += self._clock.monotonic() - since
            if not self.asked:
                self._goes_on.set()

    def over(self) -> None:
        for task in self.asked:
            task.cancel()


serving: contextvars.ContextVar[McpCall | None] = contextvars.ContextVar("tertulia_mcp_call", default=None)
"""The call that the present code sends; what a modern server asks back arrives there too."""


async def sample(server: str, call: McpCall, params: Any, sampler: Sampler) -> Sampled:
    """One of the few answers of a model that a server gets during one call."""
    call.samplings += 1
    if call.samplings > SAMPLINGS:
        raise McpError(f"one call may ask a model {SAMPLINGS} times")
    messages = tuple(
        (each.role, part_of(piece)) for each in params.messages for piece in each.content_as_list
    )
    asked = Sampling(
        server=server,
        context=call.context,
        messages=messages,
        system=clean(params.system_prompt or "", MAX_SAMPLED),
        max_tokens=max(1, min(int(params.max_tokens), SAMPLED_TOKENS)),
    )
    if sum(len(part.text) for _, part in messages if isinstance(part, Text)) > MAX_SAMPLED:
        raise McpError(f"a question to a model may have {MAX_SAMPLED} characters")
    answer: Sampled = await call.answered(sampler(asked))
    return answer


async def elicit(
    server: str, call: McpCall, params: Any, answerer: Answerer
) -> tuple[Literal["accept", "decline"], dict[str, Any] | None]:
    """The action of the answer, and its content."""
    schema = getattr(params, "requested_schema", None)
    asked = Elicitation(
        server=server,
        conversation_id=call.conversation,
        call_id=call.context.call_id,
        message=clean(str(params.message), MAX_ASKED),
        schema=schema if isinstance(schema, dict) else {},
        url=getattr(params, "url", None),
    )
    answer = await call.answered(answerer(asked))
    return ("decline", None) if answer is None else ("accept", dict(answer))
