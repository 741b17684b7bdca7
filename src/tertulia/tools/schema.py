"""From a signature to a JSON schema, and the validation of arguments against either."""

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ..records.errors import InvalidTool
from .context import ToolContext


class Arguments(Protocol):
    def __call__(self, args: dict[str, Any]) -> dict[str, Any]: ...


class ArgumentError(ValueError):
    """Arguments that do not validate; the text names the field and goes to the model."""


def schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of an argument struct, on its own: what it refers to stands under $defs."""
    (root,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    own = definitions.pop(root["$ref"].rpartition("/")[2])
    own.pop("title", None)
    own.setdefault("required", [])
    return {**own, "$defs": definitions} if definitions else own


def argument_struct(fn: Callable[..., Any], name: str) -> tuple[type[msgspec.Struct], str | None]:
    """A struct with a field for each parameter, and the name of the one that wants the ToolContext."""
    if not name.isprintable() or not callable(fn):
        raise InvalidTool(f"no tool can be made from {fn!r}")
    try:
        signature = inspect.signature(fn)
        hints = typing.get_type_hints(fn, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidTool(f"tool {name}: the signature cannot be read: {error}") from error
    context: str | None = None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in signature.parameters.values():
        annotation = hints.get(parameter.name, Any)
        if _is_context(annotation):
            context = parameter.name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidTool(f"tool {name}: parameter {parameter} cannot be given by name")
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, _default(parameter.default)))
    try:
        struct = msgspec.defstruct("arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(struct)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidTool(
            f"tool {name}: no schema can be made of its signature: {error}",
            hint="annotate its parameters with types that JSON can carry",
        ) from error
    return struct, context


def _default(value: Any) -> Any:
    # A mutable default of a function is shared by its calls anyway; a struct wants a factory for it.
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=lambda: value)
    return value


def _is_context(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_context(choice) for choice in typing.get_args(annotation))
    return annotation is ToolContext


def validator(struct: type[msgspec.Struct]) -> Arguments:
    names = struct.__struct_fields__

    def validate(args: dict[str, Any]) -> dict[str, Any]:
        try:
            value = msgspec.convert(args, struct)
        except msgspec.ValidationError as error:
            raise ArgumentError(_explain(str(error))) from error
        return {name: getattr(value, name) for name in names}

    return validate


def _explain(text: str) -> str:
    """msgspec says "Expected `int`, got `str` - at `$.path`"; a model understands "argument `path`: …"."""
    message, _, place = text.partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    if field:
        return f"argument `{field}`: {message}"
    return message.replace("Object missing required field", "missing argument").replace(
        "Object contains unknown field", "unknown argument"
    )


def context_parameter(fn: Callable[..., Any]) -> str | None:
    try:
        hints = typing.get_type_hints(fn)
    except (TypeError, NameError):
        return None
    return next((name for name, hint in hints.items() if name != "return" and _is_context(hint)), None)


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def schema_validator(schema: dict[str, Any]) -> Arguments:
    """Checks names and outermost types of a foreign schema; what lies deeper is the tool's own business."""
    properties: dict[str, Any] = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if isinstance(name, str)]
    closed = schema.get("additionalProperties") is False

    def validate(args: dict[str, Any]) -> dict[str, Any]:
        for name in required:
            if name not in args:
                raise ArgumentError(f"missing argument `{name}`")
        for name, value in args.items():
            if name not in properties:
                if closed:
                    raise ArgumentError(f"unknown argument `{name}`")
            elif not _fits(value, properties[name]):
                wanted = properties[name]["type"]
                raise ArgumentError(f"argument `{name}`: Expected `{wanted}`, got `{type(value).__name__}`")
        return args

    return validate


def _fits(value: Any, schema: Any) -> bool:
    wanted = schema.get("type") if isinstance(schema, dict) else None
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    accepted = tuple(kind for name in names for kind in _TYPES.get(name, ()))
    if not accepted:
        return True
    if isinstance(value, bool):
        return bool in accepted
    return isinstance(value, accepted)
