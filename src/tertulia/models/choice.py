"""Which model answers when none is named, and which could: what `auto` means, and what `tertulia models` lists.

In this order: a provider whose key is in the environment, a server on its usual port of this machine that speaks
as OpenAI does, the embedded model, the demo model.
"""

import os

import msgspec

from ..records.errors import ConfigError
from . import local_weights
from .base import Model
from .demo import DemoModel
from .hosted import HostedModel
from .hosted_spec import PROVIDERS
from .local import LocalModel

DEFAULTS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-sol",
    "google": "gemini-3.8-flash",
}
"""The model of each provider that is taken when only its key is known, in the order in which they are taken."""

PORTS = (11434, 1234, 8080)  # Ollama, LM Studio, llama.cpp
PROBE = 0.2  # seconds that a server may take to say which models it has
LOCAL_SERVER = "openai-chat"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is usable here, and by what; or one that is not, and why. `note` is worth a word in any case."""

    name: str
    usable: bool
    why: str
    base_url: str | None = None
    note: str | None = None


def options() -> list[Option]:
    """All there are, in the order in which they are chosen."""
    *hosted, local, demo = without_servers()
    return [*hosted, *_servers(), local, demo]


def without_servers() -> list[Option]:
    """Those that nobody has to be asked for."""
    return [*(_hosted(name) for name in DEFAULTS), _local(), DEMO]


def choose() -> Option:
    """The first that is usable; its note tells of keys that cannot be used here."""
    found = options()
    chosen = next(option for option in found if option.usable)
    notes = [option.note for option in found[: found.index(chosen)] if option.note]
    return msgspec.structs.replace(chosen, note="; ".join(notes) or None)


def make(option: Option) -> Model:
    """The model of an option that is usable."""
    if option.name == "demo":
        return DemoModel()
    if option.name == "local":
        return LocalModel()
    provider, _, model = option.name.partition(":")
    return HostedModel(provider, model, base_url=option.base_url)


DEMO = Option(name="demo", usable=True, why="fixed answers, no model behind them")


def _hosted(provider: str) -> Option:
    name = f"{provider}:{DEFAULTS[provider]}"
    keys = PROVIDERS[provider].keys
    key = next((variable for variable in keys if os.environ.get(variable)), None)
    if key is None:
        return Option(name=name, usable=False, why=f"{' or '.join(keys)} is not set")
    return _checked(Option(name=name, usable=True, why=f"{key} is set"), f"{key} is set")


def _checked(option: Option, but: str) -> Option:
    """As it is when the packages for it are there."""
    try:
        make(option)
    except ConfigError as error:
        why = f"{but}, but {error.message}: {error.hint}"
        return Option(name=option.name, usable=False, why=why, note=why)
    return option


def _local() -> Option:
    try:
        file = local_weights.find()
    except ConfigError as error:
        return Option(name="local", usable=False, why=f"{error.message}: {error.hint}")
    return Option(name="local", usable=True, why=f"embedded, {file.name}")


def _servers() -> list[Option]:
    from concurrent.futures import ThreadPoolExecutor

    from .probe import first_model

    with ThreadPoolExecutor(len(PORTS), "tertulia-probe") as pool:
        found = list(pool.map(lambda port: first_model(port, PROBE), PORTS))
    answered = [_server(port, model) for port, model in zip(PORTS, found, strict=True) if model is not None]
    if answered:
        return answered
    where = ", ".join(map(str, PORTS))
    return [Option(name=LOCAL_SERVER, usable=False, why=f"no server answers on 127.0.0.1 at {where}")]


def _server(port: int, model: str) -> Option:
    where = f"a server at 127.0.0.1:{port}"
    option = Option(
        name=f"{LOCAL_SERVER}:{model}", usable=True, why=where, base_url=f"http://127.0.0.1:{port}/v1"
    )
    return _checked(option, f"{where} has it")
