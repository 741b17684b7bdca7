"""The providers' clients, as we want them: no retries behind our back, one connection pool each that we close."""

import contextlib
import importlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import cache
from typing import Any

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.profiles.openai import OpenAIModelProfile

from .hosted_spec import Spec

TO_THE_END: ModelProfile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
"""A stream that just ends is a connection that was lost, not an answer."""
_responses: ContextVar[list[httpx2.Response]] = ContextVar("responses")
Opened = tuple[Model, Callable[[], Awaitable[None]]]
TIMEOUT = httpx2.Timeout(900.0, connect=10.0)
"""The last resort: how long a model may be silent is the turn's to say."""


def open_model(given: Spec, key: str) -> Opened:
    """The model, and what closes its connections."""
    hooks = {"response": [_opened]}
    http = httpx2.AsyncClient(
        timeout=TIMEOUT, headers=given.headers, event_hooks=hooks, verify=_certificates()
    )
    return _OPEN[given.provider](given, key, http), http.aclose


@cache
def _certificates() -> ssl.SSLContext:
    """Read once: it takes 20 ms."""
    return httpx2.create_ssl_context()


@contextlib.asynccontextmanager
async def closing_responses() -> AsyncIterator[None]:
    """Closes what was opened inside, at once: after an error some packages leave that to the garbage collector."""
    opened: list[httpx2.Response] = []
    _responses.set(opened)
    try:
        yield
    finally:
        for response in opened:
            await response.aclose()


async def _opened(response: httpx2.Response) -> None:
    _responses.get().append(response)


def _anthropic(given: Spec, key: str, http: httpx2.AsyncClient) -> Model:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(
        api_key=key, base_url=given.base_url, http_client=http, max_retries=0, timeout=TIMEOUT
    )
    return AnthropicModel(given.model, provider=AnthropicProvider(anthropic_client=client))


def _openai_client(given: Spec, key: str, http: httpx2.AsyncClient) -> Any:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(
        api_key=key, base_url=given.base_url, http_client=http, max_retries=0, timeout=TIMEOUT
    )
    _as_they_are(client.responses, "input")
    _as_they_are(client.chat.completions, "messages")
    return client


def _as_they_are(resource: Any, field: str) -> None:
    """Send the messages past the package's translation of argument names, of which they have none: it tries each
    message as each of its types, 250 ms of the loop for a thousand of them."""
    create = resource.create

    async def send(**given: Any) -> Any:
        messages = given[field]
        extra = {**(given.get("extra_body") or {}), field: messages}
        return await create(**{**given, field: type(messages)(), "extra_body": extra})

    resource.create = send


def _openai(given: Spec, key: str, http: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIResponsesModel(
        given.model, provider=OpenAIProvider(openai_client=_openai_client(given, key, http))
    )


def _chat(given: Spec, key: str, http: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = _openai_client(given, key, http)
    if given.base_url is None:
        return OpenAIChatModel(given.model, provider=OpenAIProvider(openai_client=client), profile=TO_THE_END)
    other = OpenAICompatibleProvider("openai-compatible", openai_client=client)
    return OpenAIChatModel(given.model, provider=other, profile=TO_THE_END)


def _ollama(given: Spec, key: str, http: httpx2.AsyncClient) -> Model:
    from pydantic_ai.models.ollama import OllamaModel
    from pydantic_ai.providers.ollama import OllamaProvider

    provider = OllamaProvider(openai_client=_openai_client(given, key, http))
    return OllamaModel(given.model, provider=provider, profile=TO_THE_END)


def _google(given: Spec, key: str, http: httpx2.AsyncClient) -> Model:
    types = importlib.import_module("google.genai.types")
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    once = types.HttpRetryOptions(attempts=1)
    provider = GoogleProvider(api_key=key, base_url=given.base_url, http_client=http, retry_options=once)
    return GoogleModel(given.model, provider=provider)


_OPEN: dict[str, Callable[[Spec, str, httpx2.AsyncClient], Model]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "openai-chat": _chat,
    "google": _google,
    "ollama": _ollama,
}
