"""What the tests of hosted models share: one model per wire format, asked at a fake server."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tertulia.models.base import Finished, ModelEvent, Request, Said, Thought, ToolSpec
from tertulia.models.hosted import HostedModel
from tertulia.records.ids import CallId
from tertulia.records.parts import AnyPart, Text
from tertulia.records.record import ToolCall, ToolResult
from tertulia.testing.model import Hold
from tertulia.testing.providers import FakeProvider, Seen
from tertulia.transcript.context import ModelMessage

KEY = "sk-very-secret"
MODELS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-sol",
    "openai-chat": "gpt-6.1-sol",
    "google": "gemini-3.8-flash",
    "ollama": "qwen3",
}
ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)


def load_all() -> None:
    for module in ("models.anthropic", "models.openai", "models.google", "models.ollama"):
        importlib.import_module(f"pydantic_ai.{module}")
        importlib.import_module(f"pydantic_ai.{module.replace('models', 'providers')}")
    importlib.import_module("tertulia.models.hosted_layer")


class Asked:
    """A model and the server it asks."""

    def __init__(self, provider: str, fake: FakeProvider, **options: Any) -> None:
        self.provider = provider
        self.fake = fake
        self.model = HostedModel(
            provider, MODELS[provider], **{"base_url": fake.url, "api_key": KEY, **options}
        )

    async def ask(self, *messages: ModelMessage, **fields: Any) -> "Answer":
        answer = Answer()
        request = Request(messages=messages or (user("Hi."),), **fields)
        async with contextlib.aclosing(self.model.stream(request)) as events:  # type: ignore[type-var]
            async for event in events:
                answer.add(event)
        return answer

    @property
    def body(self) -> Any:
        return self.fake.requests[-1].json


class Answer:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.thought: list[str] = []
        self.finished: list[Finished] = []

    def add(self, event: ModelEvent) -> None:
        assert not self.finished, "something came behind the end"
        match event:
            case Said(text):
                self.said += [text] if text else []
            case Thought(text):
                self.thought.append(text)
            case Finished():
                self.finished.append(event)

    @property
    def end(self) -> Finished:
        (finished,) = self.finished
        return finished


@contextlib.asynccontextmanager
async def asked(provider: str, script: Sequence[Any] = (), **options: Any) -> AsyncIterator[Asked]:
    fake_options = {name: options.pop(name) for name in ("default", "usage") if name in options}
    async with FakeProvider(script, **fake_options) as fake, asyncio.timeout(50):
        made = Asked(provider, fake, **options)
        try:
            yield made
        finally:
            await made.model.aclose()
            for _ in range(50):
                await asyncio.sleep(
                    0
                )  # a client package may leave a chain of generators to the loop, one in another


async def reached(held: Hold) -> None:
    """Until the server waits there."""
    async with asyncio.timeout(10):
        await held.reached.wait()


async def closed(seen: Seen) -> None:
    """Until the client has closed the connection."""
    async with asyncio.timeout(10):
        await seen.closed.wait()


def user(*parts: str | AnyPart) -> ModelMessage:
    return ModelMessage("user", tuple(Text(text=part) if isinstance(part, str) else part for part in parts))


def said(text: str = "", *calls: ToolCall, **fields: Any) -> ModelMessage:
    return ModelMessage("assistant", (Text(text=text),) if text else (), calls=calls, **fields)


def tool_call(id: str, **args: Any) -> ToolCall:
    return ToolCall(seq=1, ts=1, call_id=CallId(id), name="add", args=args)


def tool_result(id: str, *parts: str | AnyPart, status: Any = "ok") -> ToolResult:
    content = tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
    return ToolResult(seq=2, ts=2, call_id=CallId(id), name="add", status=status, parts=content)


def results(*given: ToolResult) -> ModelMessage:
    return ModelMessage("tool", results=given)
