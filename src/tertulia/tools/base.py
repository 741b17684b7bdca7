"""A tool: a typed function, or an object with a schema and a function.

The schema and the validation of arguments come from the function's signature. A parameter annotated with
ToolContext is not part of it: it is where the function is told about the call it serves.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, overload

import msgspec

from ..records.errors import InvalidTool
from .schema import Arguments, argument_struct, context_parameter, schema_of, schema_validator, validator

Source = Literal["native", "mcp"]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """`ask`: whether a call needs an approval where the Session's mode is "ask".

    `command`: the argument that holds a shell command, which approvals then look into.
    """

    name: str
    description: str = ""
    short_description: str = ""
    parameters: dict[str, Any] = {}
    enabled: bool = True
    fn: Callable[..., Any]
    source: Source = "native"
    server: str | None = None  # of an MCP tool
    ask: bool = False
    command: str | None = None
    validate: Arguments | None = None
    context_parameter: str | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 128 or not self.name.isprintable():
            raise InvalidTool(f"{self.name!r} cannot name a tool", hint="use letters, digits, _ and -")
        if not callable(self.fn):
            raise InvalidTool(f"tool {self.name}: fn must be callable, not {type(self.fn).__name__}")

    @property
    def signature(self) -> bytes:
        """What makes two tools of one name the same: the schema of their parameters."""
        return msgspec.json.encode(self.parameters, order="deterministic")


class ToolDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    short_description: str
    parameters: dict[str, Any]
    source: Source
    is_enabled: bool


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, enabled: bool = True, ask: bool = False
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    enabled: bool = True,
    ask: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a Tool of a function: its name, docstring and signature say what the model is told."""

    def make(fn: Callable[..., Any]) -> Tool:
        title: str = name or str(getattr(fn, "__name__", ""))
        text = description if description is not None else inspect.getdoc(fn) or ""
        struct, context = argument_struct(fn, title)
        return Tool(
            name=title,
            description=text,
            short_description=text.partition("\n")[0][:80],
            parameters=schema_of(struct),
            enabled=enabled,
            fn=fn,
            ask=ask,
            validate=validator(struct),
            context_parameter=context,
        )

    return make(fn) if fn is not None else make


def as_tool(value: object) -> Tool:
    """A Tool as it is, a function made into one, anything else refused."""
    if isinstance(value, Tool):
        return value if value.validate is not None else _with_schema(value)
    if callable(value):
        return tool(value)
    raise InvalidTool(
        f"{type(value).__name__} is no tool", hint="give a function, or a tertulia.Tool with a name and fn"
    )


def describe_tool(tool: Tool) -> ToolDescriptor:
    return ToolDescriptor(
        name=tool.name,
        description=tool.description,
        short_description=tool.short_description,
        parameters=tool.parameters,
        source=tool.source,
        is_enabled=tool.enabled,
    )


def is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _with_schema(given: Tool) -> Tool:
    """A Tool made by hand: its own schema is what the model is told; the function's types still validate."""
    context = None
    parameters = given.parameters
    validate: Arguments
    if parameters:
        validate = schema_validator(parameters)
        context = context_parameter(given.fn)
    else:
        struct, context = argument_struct(given.fn, given.name)
        parameters, validate = schema_of(struct), validator(struct)
    return msgspec.structs.replace(
        given,
        parameters=parameters,
        validate=validate,
        context_parameter=context,
        short_description=given.short_description or given.description.partition("\n")[0][:80],
    )
