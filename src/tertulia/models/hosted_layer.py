"""The one place where requests go out, through pydantic-ai. Retries and timeouts are its callers' business."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec.structs import replace
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    InstructionPart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model as Provided
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.tools import ToolDefinition

from ..records.record import Usage
from .base import ModelEvent, Request, Said, Thought
from .hosted_clients import closing_responses, open_model
from .hosted_errors import FAILURES, cause, typed
from .hosted_messages import Converter
from .hosted_reply import finish
from .hosted_spec import Spec
from .prices import cost

CACHING: dict[str, dict[str, Any]] = {
    "anthropic": {
        "anthropic_cache_instructions": True,
        "anthropic_cache_tool_definitions": True,
        "anthropic_cache_messages": True,
    },
    "openai": {"cache": True, "openai_store": False},  # what is kept, and how long, is our retention's to say
    "openai-chat": {"cache": True},
}
"""Prompt caching, where it has to be asked for."""


class Layer:
    """One model with an open client, in one event loop."""

    failures = FAILURES
    typed = staticmethod(typed)
    cause = staticmethod(cause)

    def __init__(self, given: Spec, provided: Provided) -> None:
        self._given = given
        self._provided = provided
        self._settings = {**CACHING.get(given.provider, {}), **given.settings}
        self._takes_tools = provided.profile.get("supports_tools", True)
        self._converter = Converter(given.origin, provided)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        """Raises `failures`, which its caller makes `typed`."""
        async with closing_responses(), self._opened(request) as stream:
            async for event in stream:
                shown = _shown(event)
                if shown is not None:
                    yield shown
            response = stream.get()
        finished = finish(response, self._converter.origin)
        yield replace(finished, cost=self._cost(finished.usage))

    def _opened(self, request: Request) -> AbstractAsyncContextManager[StreamedResponse]:
        return model_request_stream(
            self._provided,
            self._converter.messages(request.messages),
            model_settings=self._settings,  # type: ignore[arg-type] # one dict for all providers' keys
            model_request_parameters=self._parameters(request),
            instrument=False,
        )

    def _cost(self, usage: Usage) -> float | None:
        """At another address than the provider's own the list says nothing."""
        given = self._given
        listed = given.base_url is None or given.name in given.prices
        return cost(given.name, usage, given.prices) if listed else None

    def _parameters(self, request: Request) -> ModelRequestParameters:
        tools = request.tools if self._takes_tools else ()
        return ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name, description=tool.description, parameters_json_schema=tool.parameters
                )
                for tool in tools
            ],
            instruction_parts=[InstructionPart(content=request.system)] if request.system else [],
        )


def _shown(event: ModelResponseStreamEvent) -> Said | Thought | None:
    """A long tool call is no silence: a piece of one is shown as empty text."""
    if isinstance(event, PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, TextPartDelta):
            return Said(delta.content_delta)
        if isinstance(delta, ThinkingPartDelta):
            return Thought(delta.content_delta) if delta.content_delta else None
        return Said("")
    if (
        isinstance(event, PartStartEvent)
        and isinstance(event.part, TextPart | ThinkingPart)
        and event.part.content
    ):
        return (Said if isinstance(event.part, TextPart) else Thought)(event.part.content)
    return None


async def keep(given: Spec, secret: str) -> AsyncGenerator[Layer]:
    """The layer, then the end of its client. A loop that ends closes its generators, and so the connections."""
    provided, close = open_model(given, secret)
    try:
        yield Layer(given, provided)
    finally:
        await close()
