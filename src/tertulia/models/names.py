"""From a model's name to the model."""

from ..records.errors import ConfigError
from . import choice
from .base import Model
from .demo import DemoModel
from .hosted import HostedModel
from .hosted_spec import PROVIDERS
from .local import LocalModel


def resolve(name: str) -> Model:
    """ConfigError, with what is usable here, for a name that means nothing."""
    if name == "auto":
        return choice.make(choice.choose())
    if name == "demo":
        return DemoModel()
    if name == "local":
        return LocalModel()
    provider, _, model = name.partition(":")
    if provider in PROVIDERS:
        return HostedModel(provider, model)
    raise ConfigError(f"no model is named {name!r}", hint=missing_hint())


def missing_hint() -> str:
    usable = ", ".join(option.name for option in choice.without_servers() if option.usable)
    hosted = ", ".join(f"{provider}:NAME" for provider in PROVIDERS)
    return f'usable here: {usable}; or {hosted}, "auto", or an object with stream(request)'
