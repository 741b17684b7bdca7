"""The Model protocol: one method that streams the answer to one frozen request."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from ..records.ids import CallId
from ..records.parts import AnyPart
from ..records.record import Usage
from ..transcript.context import ModelMessage


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model is told of it."""

    name: str
    description: str
    parameters: dict[str, Any]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """`messages` is a view over shared history: iterate it, keep it, never change it."""

    messages: Sequence[ModelMessage]
    tools: tuple[ToolSpec, ...] = ()
    system: str = ""


class Said(msgspec.Struct, frozen=True):
    """A piece of the answer's text."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """A piece of reasoning that may be shown."""

    text: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as the model gave it. `invalid` keeps arguments that were no JSON object, as text."""

    name: str
    args: dict[str, Any] = {}
    id: CallId | None = None
    invalid: str | None = None


class ReasoningPart(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    blob: str = ""
    text: str = ""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer ends. Its text is what was `Said`; `parts` are what is not text."""

    calls: tuple[Call, ...] = ()
    parts: tuple[AnyPart, ...] = ()
    reasoning: tuple[ReasoningPart, ...] = ()
    usage: Usage = Usage()
    cost: float | None = None
    stop_reason: str = "end"


ModelEvent = Said | Thought | Finished


class Model(Protocol):
    """Errors are raised as `ModelError`; anything else reaches the caller as UnknownModelError."""

    @property
    def name(self) -> str: ...

    def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        """Closing the iterator (or cancelling who reads it) stops the request."""
        ...
