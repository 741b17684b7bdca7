"""A server asks the model of the turn that its call serves: allowed by a person, without our history, and counted."""

from typing import Any

from ..models.base import Finished, Request, Said
from ..records.errors import McpError
from ..records.parts import Text
from ..records.record import ModelUsage, ToolCall, Usage
from ..tools.base import Tool
from ..tools.mcp.asking import Sampled, Sampling
from ..transcript.context import ModelMessage
from .calls import CallContext
from .engine import Turn
from .journal import Put

CHARACTERS = 4  # of a token, about


async def sample(asked: Sampling) -> Sampled:
    assert isinstance(asked.context, CallContext)
    turn = asked.context.turn
    if turn.model is None or turn.gate is None:
        raise McpError("this conversation has no model of its own")
    refused = await turn.gate(turn, _as_call(turn, asked), _as_tool(asked))
    if refused is not None:
        raise McpError(f"a person did not allow it: {refused}")
    messages = tuple(ModelMessage(role, (part,)) for role, part in asked.messages)
    texts: list[str] = []
    finished = Finished(usage=Usage(requests=1))  # what is known of one that is cut off
    left = asked.max_tokens * CHARACTERS
    stream = turn.model.stream(Request(messages=messages, system=asked.system))
    try:
        async for event in stream:
            if isinstance(event, Said):
                texts.append(event.text[:left])
                left -= len(event.text)
            elif isinstance(event, Finished):
                finished = event
            if left <= 0:
                break
    finally:
        await _close(stream)
    _count(turn, finished)
    return Sampled(text="".join(texts), model=turn.model_name, stop="endTurn" if left > 0 else "maxTokens")


def _as_call(turn: Turn, asked: Sampling) -> ToolCall:
    """What a person is shown, and decides on."""
    text = "\n".join(part.text if isinstance(part, Text) else "[file]" for _, part in asked.messages)
    args = {"asks the model": text, "system": asked.system, "max_tokens": asked.max_tokens}
    return ToolCall(seq=0, ts=0, turn=turn.id, call_id=asked.context.call_id, name=_name(asked), args=args)


def _as_tool(asked: Sampling) -> Tool:
    return Tool(name=_name(asked), fn=sample, source="mcp", server=asked.server, ask=True)


def _name(asked: Sampling) -> str:
    return f"{asked.server}: sampling"


def _count(turn: Turn, finished: Finished) -> None:
    turn.usage += finished.usage
    if finished.cost is not None:
        turn.cost = (turn.cost or 0.0) + finished.cost
    usage = ModelUsage(
        seq=0, ts=0, turn=turn.id, model=turn.model_name, usage=finished.usage, cost=finished.cost
    )
    turn.journal.put(Put([usage], turn=turn.id))


async def _close(stream: Any) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
