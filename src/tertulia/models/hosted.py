"""Models of hosted providers, and of servers that speak as they do. Their packages are imported on first use."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..records.errors import ConfigError, InvalidInput, MissingExtra
from .base import ModelEvent, Request
from .hosted_spec import PROVIDERS, Provider, Spec
from .prices import Price

if TYPE_CHECKING:
    from .hosted_layer import Layer

__all__ = ["PROVIDERS", "HostedModel"]

NO_KEY = "none"  # the client packages insist on one


class HostedModel:
    """A model of `provider`, one of PROVIDERS, asked by streaming requests that are never repeated.

    A key of the environment is only taken for the provider's own address: with `base_url` give `api_key` too, where
    one is needed. `settings` are those of pydantic-ai (`max_tokens`, `temperature`, `thinking`, …); `prices` are your
    own, by model name. One instance serves many conversations at once. Its connections are closed by `aclose()`, at
    the latest when the event loop ends.
    """

    idle_timeout: float | None = 600.0  # some think for minutes and show nothing of it

    def __init__(
        self,
        provider: str,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        if provider not in PROVIDERS:
            raise InvalidInput(
                f"no provider is named {provider!r}", hint="choose one of " + ", ".join(PROVIDERS)
            )
        if not model:
            raise InvalidInput(
                "the model has no name", hint=f"give it behind the colon, as in {provider}:NAME"
            )
        _check_installed(PROVIDERS[provider])
        self._spec = Spec(
            provider=provider,
            model=model,
            base_url=base_url or PROVIDERS[provider].base_url,
            headers=dict(headers or {}),
            settings=dict(settings or {}),
            prices=dict(prices or {}),
        )
        self.name = self._spec.name
        self._key = api_key or _key(provider, foreign=base_url is not None)
        self._layers: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Layer, AsyncGenerator[Layer]]]
        self._layers = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<HostedModel {self.name}>"  # never the key

    async def stream(self, request: Request) -> AsyncIterator[ModelEvent]:
        layer = await self._layer()
        try:
            async with aclosing(layer.stream(request)) as events:
                async for event in events:
                    yield event
        except layer.failures as error:  # here, where no frame of it holds what has to be freed
            raise layer.typed(error, self._key) from layer.cause(error, self._key)

    async def aclose(self) -> None:
        """Close the connections of the running loop. A later request opens new ones."""
        _, keeper = self._layers.pop(asyncio.get_running_loop(), (None, None))
        if keeper is not None:
            await keeper.aclose()

    async def _layer(self) -> "Layer":
        """The client of the running loop: connections cannot move to another."""
        loop = asyncio.get_running_loop()
        if loop not in self._layers:
            module = await asyncio.to_thread(_load)  # it takes a second the first time
            if loop not in self._layers:
                keeper = module.keep(self._spec, self._key)
                self._layers[loop] = (await anext(keeper), keeper)
        return self._layers[loop][0]


def _load() -> Any:
    from . import hosted_layer

    return hosted_layer


def _key(provider: str, *, foreign: bool) -> str:
    names = PROVIDERS[provider].keys
    if foreign or not names:
        return NO_KEY
    found = next((value for name in names if (value := os.environ.get(name))), None)
    if found is None:
        raise ConfigError(
            f"{provider} needs an API key",
            hint=f"set {' or '.join(names)}, or give api_key=",
            variables=list(names),
        )
    return found


def _check_installed(provider: Provider) -> None:
    try:
        missing = find_spec("pydantic_ai") is None or find_spec(provider.package) is None
    except ModuleNotFoundError:  # not even the parent package
        missing = True
    if missing:
        raise MissingExtra(
            f"{provider.package} is not installed",
            hint=f"pip install 'tertulia[{provider.extra}]'",
            extra=provider.extra,
        )
