"""What callers may set, when opening and for one prompt; checked in one place."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict

import msgspec

from ..models.base import Model
from ..models.names import resolve
from ..records.clock import Clock
from ..records.errors import ConfigError, InvalidInput, StoragePolicyViolation
from ..tools.base import as_tool
from ..tools.mcp.config import parse_servers, parse_tools
from ..tools.mcp.view import OnConflict, View
from ..tools.toolbox import Toolbox, toolbox
from ..transcript.retention import FULL, Retention, parse, stricter
from .engine import Engine, Limits
from .loop import LoopEngine
from .shared import OnError, Setup
from .structured import Output

WhenBusy = Literal["reject", "follow_up", "steer"]


class ConversationOptions(TypedDict, total=False):
    """How a conversation is set up; `open_conversation` takes the same and inherits the rest."""

    model: Model | str | None
    fallback_models: Iterable[Model | str]
    engine: Engine | Callable[[], Engine] | None
    tools: Iterable[Any] | Literal["default"]
    system_prompt: str | Callable[[], str]
    retention: str | Retention
    on_error: OnError
    max_retries: int
    retry_base_delay: float
    turn_limit: int
    turn_timeout: float | None
    idle_timeout: float | None
    grace: float
    max_output: int
    compact_min_messages: int
    mcp_servers: Mapping[str, Any]
    mcp_tools: Mapping[str, Iterable[str]] | None
    on_conflict: OnConflict


class Overrides(TypedDict, total=False):
    """What a prompt may change for its own turn."""

    model: Model | str
    tools: Iterable[Any]
    retention: str | Retention
    max_retries: int
    retry_base_delay: float
    turn_limit: int
    turn_timeout: float | None
    idle_timeout: float | None
    output: Any  # the type that the answer has to have


LIMITS = frozenset(Limits.__struct_fields__)
MCP = frozenset({"mcp_servers", "mcp_tools", "on_conflict"})
OPTIONAL = ("turn_timeout", "idle_timeout")
WHOLE = ("max_retries", "turn_limit", "max_output")


def make_setup(options: Mapping[str, Any], base: Setup | None = None) -> Setup:
    """A Setup from what was given, or from another one with changes."""
    known = ConversationOptions.__annotations__
    for name in options:
        if name not in known:
            raise InvalidInput(f"there is no option {name!r}", hint="options are " + ", ".join(sorted(known)))
    changes = {PARSERS[name][0]: PARSERS[name][1](options[name]) for name in options if name in PARSERS}
    limits = {name: value for name, value in options.items() if name in LIMITS}
    if limits:
        changes["limits"] = make_limits(limits, base.limits if base is not None else Limits())
    if MCP & options.keys():
        changes["mcp"] = make_view(options, base.mcp if base is not None else None)
    if base is not None:
        return base.child(**changes)
    defaults = {
        "model": None,
        "engine": LoopEngine(),
        "make_engine": LoopEngine,
        "toolbox": Toolbox(),
        "retention": FULL,
        "limits": Limits(),
    }
    return Setup(**{**defaults, **changes})


def make_overrides(given: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    """What one prompt changes, ready for its turn."""
    known = Overrides.__annotations__
    for name in given:
        if name not in known:
            raise InvalidInput(
                f"a prompt has no option {name!r}", hint="options are " + ", ".join(sorted(known))
            )
    found: dict[str, Any] = {}
    if "model" in given:
        found["model"] = check_model(given["model"])
    if "tools" in given:
        found["toolbox"] = make_toolbox(given["tools"])
    if "retention" in given:
        retention = parse(given["retention"])
        if stricter(retention, setup.retention) != retention:
            raise StoragePolicyViolation(
                "a prompt cannot keep more than its conversation does", hint="give a stricter retention"
            )
        found["retention"] = retention
    if given.get("output") is not None:
        found["output"] = Output(given["output"])
    limits = {name: value for name, value in given.items() if name in LIMITS}
    if limits:
        found["limits"] = make_limits(limits, setup.limits)
    return found


def make_limits(given: Mapping[str, Any], base: Limits) -> Limits:
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and value >= 0) and not (value is None and name in OPTIONAL):
            raise ConfigError(f"{name} is {value!r}; it takes a number that is not negative")
        if name in WHOLE and not isinstance(value, int):
            raise ConfigError(f"{name} is {value!r}; it takes a whole number")
    if given.get("turn_limit", 1) < 1:
        raise ConfigError("turn_limit is 0; a turn makes at least one model request")
    return msgspec.structs.replace(base, **given)


def make_view(given: Mapping[str, Any], base: View | None) -> View:
    """What is said here of MCP servers, over what the Session says."""
    changes: dict[str, Any] = {}
    if "mcp_servers" in given:
        changes["servers"] = parse_servers(given["mcp_servers"] or {})
    if "mcp_tools" in given:
        tools = given["mcp_tools"]
        changes["allowed"] = None if tools is None else parse_tools(tools)
    if "on_conflict" in given:
        if given["on_conflict"] not in ("keep", "qualify"):
            raise ConfigError(f"on_conflict is {given['on_conflict']!r}", hint="keep or qualify")
        changes["on_conflict"] = given["on_conflict"]
    return msgspec.structs.replace(base or View(), **changes)


def make_toolbox(tools: object) -> Toolbox:
    if tools == "default":
        from ..tools.builtin import default_tools

        return toolbox(default_tools())
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise InvalidInput(f"tools is {tools!r}", hint="give 'default', or a list of functions and Tools")
    return toolbox(as_tool(each) for each in tools)


def check_model(model: object) -> Model | None:
    """A Model as it is, a name resolved."""
    if isinstance(model, str):
        return resolve(model)
    if model is None or callable(getattr(model, "stream", None)):
        return model  # type: ignore[return-value]
    raise InvalidInput(
        f"a {type(model).__name__} is no model",
        hint="give a name such as 'demo', or an object with stream(request)",
    )


def _engine(value: Any) -> Callable[[], Engine]:
    if value is None:
        return LoopEngine
    if not isinstance(value, type) and callable(getattr(value, "run", None)):
        return _Once(value)
    if callable(value):
        made: Callable[[], Engine] = value
        return made
    raise InvalidInput(
        f"a {type(value).__name__} is no engine",
        hint="give an object with run(turn), or a function that makes one",
    )


class _Once:
    """One engine object, for one conversation: what it keeps between turns is of that one."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine | None = engine

    def __call__(self) -> Engine:
        engine, self._engine = self._engine, None
        if engine is None:
            raise InvalidInput(
                "this engine runs one conversation already",
                hint="give engine= a function that makes one, and each conversation gets its own",
            )
        return engine


def _models(models: object) -> tuple[Model, ...]:
    if isinstance(models, str) or not isinstance(models, Iterable):
        raise InvalidInput(f"fallback_models is {models!r}", hint="give a list of models or their names")
    found = tuple(check_model(each) for each in models)
    return tuple(each for each in found if each is not None)


def _system_prompt(value: object) -> object:
    if isinstance(value, str) or callable(value):
        return value
    raise InvalidInput(
        f"system_prompt is {type(value).__name__}", hint="give text, or a function that returns it"
    )


def check_cwd(path: object) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"cwd is {path!r}", hint="the path of a folder")
    return os.path.abspath(os.fspath(path))


def check_slots(slots: object) -> int:
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise InvalidInput(f"max_running is {slots!r}", hint="a whole number from 1 on")
    return slots


def check_clock(clock: Clock) -> Clock:
    if not callable(getattr(clock, "now", None)) or not callable(getattr(clock, "sleep", None)):
        raise InvalidInput(f"a {type(clock).__name__} is no clock", hint="leave it out, or give a FakeClock")
    return clock


def _on_error(value: object) -> object:
    if value not in ("fail", "hold", "continue"):
        raise ConfigError(f"on_error is {value!r}", hint="choose one of fail, hold, continue")
    return value


PARSERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "model": ("model", check_model),
    "fallback_models": ("fallbacks", _models),
    "engine": ("make_engine", _engine),
    "tools": ("toolbox", make_toolbox),
    "system_prompt": ("system_prompt", _system_prompt),
    "retention": ("retention", parse),
    "on_error": ("on_error", _on_error),
}
"""For each option, the field of a Setup that it sets, and what checks it."""
