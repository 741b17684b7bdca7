"""What servers say, as ours: their tools made safe to show to a model, their results as parts."""

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec

from ...records.parts import AnyPart, File, Image, Text

MAX_DESCRIPTION, MAX_SCHEMA, MAX_DEPTH, MAX_NAME = 4_000, 64 * 1024, 24, 64
MEDIA = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}")


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a server lists it, cleaned. `name` is the server's own, `shown` what a model calls it by."""

    name: str
    shown: str
    description: str
    parameters: dict[str, Any]
    read_only: bool = False
    late: bool = (
        False  # not of the first listing: a tool of another server that was there before goes before it
    )


def listed(tools: Iterable[Any]) -> tuple[tuple[Listed, ...], list[str]]:
    """The tools in order of their names, and why the others are left out."""
    kept: dict[str, Listed] = {}
    refused: list[str] = []
    for tool in tools:
        name = str(tool.name)
        problem = _problem(name, tool.input_schema)
        if problem is None and name in kept:
            problem = "is listed twice"
        if problem is not None:
            refused.append(f"the tool {name[:80]!r} {problem}")
            continue
        read_only = tool.annotations is not None and bool(tool.annotations.read_only_hint)
        kept[name] = Listed(
            name=name,
            shown=safe_name(name),
            description=clean(tool.description or tool.title or "", MAX_DESCRIPTION),
            parameters={"type": "object", **_clean_schema(tool.input_schema)},
            read_only=read_only,
        )
    return tuple(kept[name] for name in sorted(kept)), refused


def safe_name(name: str) -> str:
    """Providers take letters, digits, _ and -, and refuse the whole request for anything else."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME]


def clean(text: str, limit: int) -> str:
    """Without control and invisible characters, and not longer than that."""
    text = "".join(
        each for each in text[: limit * 2] if each in "\n\t" or unicodedata.category(each)[0] != "C"
    )
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _problem(name: str, schema: Any) -> str | None:
    if not name or not name.isprintable():
        return "has a name with control characters, or none"
    if len(name) > 128:
        return "has a name of more than 128 characters"
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "has a schema that is no object's"
    if not isinstance(schema.get("properties", {}), dict) or not isinstance(schema.get("required", []), list):
        return "has a schema that makes no sense"
    if _depth(schema, MAX_DEPTH) < 0:
        return f"has a schema more than {MAX_DEPTH} deep"
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA:
        return f"has a schema larger than {MAX_SCHEMA // 1024} KiB"
    return None


def _depth(value: Any, left: int) -> int:
    """How much of `left` remains below the deepest place; negative when it does not reach."""
    if left < 0 or not isinstance(value, dict | list):
        return left
    inner = value.values() if isinstance(value, dict) else value
    return min((_depth(each, left - 1) for each in inner), default=left)


def _clean_schema(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: clean(each, MAX_DESCRIPTION)
        if key in ("description", "title") and isinstance(each, str)
        else _clean_schema(each)
        for key, each in value.items()
    }


def parts_of(content: Iterable[Any], structured: Any = None) -> list[AnyPart]:
    """A result's pieces. Structured content is said in words where the server did not do so itself."""
    parts = [part_of(piece) for piece in content]
    if structured is not None and not any(isinstance(part, Text) for part in parts):
        parts.append(Text(text=msgspec.json.encode(structured).decode()))
    return parts


def part_of(piece: Any) -> AnyPart:
    kind = getattr(piece, "type", "")
    if kind == "text":
        return Text(text=piece.text)
    if kind in ("image", "audio"):
        return _media(piece.data, piece.mime_type, kind == "image")
    if kind == "resource_link":
        return Text(text=f"[resource {piece.name}: {piece.uri}]")
    if kind == "resource":
        return resource_part(piece.resource)
    return Text(text=f"[content of an unknown kind: {kind!r}]")


def resource_part(resource: Any) -> AnyPart:
    text = getattr(resource, "text", None)
    if text is not None:
        return Text(text=text)
    return _media(resource.blob, resource.mime_type or "application/octet-stream", False, str(resource.uri))


def _media(encoded: str, kind: str, image: bool, name: str | None = None) -> AnyPart:
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return Text(text=f"[{'image' if image else 'file'} that cannot be decoded]")
    if image and MEDIA.fullmatch(kind) and kind.startswith("image/"):
        return Image(media=kind, data=data)
    return File(media=kind if MEDIA.fullmatch(kind) else "application/octet-stream", data=data, name=name)
