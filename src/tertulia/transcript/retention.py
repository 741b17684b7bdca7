"""What of a record may be stored. The journal projects what it writes; the sweeper uses the same projection."""

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..records.errors import ConfigError
from ..records.parts import AnyPart, Blob, Text, Withheld, has_content
from ..records.record import (
    MAJOR,
    AnyRecord,
    Approval,
    Compaction,
    Custom,
    Info,
    Label,
    Message,
    Reasoning,
    Record,
    Retrieval,
    Settings,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    Unknown,
)

Kind = Literal["full", "headers_only", "none", "ttl"]
Then = Literal["headers_only", "delete"]


class Retention(msgspec.Struct, frozen=True):
    """`full` keeps everything, `headers_only` no body, `none` only that turns began and ended and how.

    `ttl` keeps everything until a record is `ttl` seconds old, and `then` only its header, or nothing.
    """

    kind: Kind = "full"
    ttl: int = 0
    then: Then = "headers_only"

    @property
    def bodies(self) -> bool:
        """Whether what was said is stored, be it for a time."""
        return self.kind in ("full", "ttl")


FULL = Retention()

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_TTL = re.compile(r"ttl:([0-9]{1,9})([smhd]?)(?::(headers_only|delete))?")
_STRICTNESS = ("full", "ttl", "headers_only", "none")


def parse(value: object) -> Retention:
    """A Retention, or its text: full, headers_only, none, ttl:3600, ttl:30d, ttl:30d:delete."""
    text = format(value) if isinstance(value, Retention) else value
    if text in ("full", "headers_only", "none"):
        return Retention(text)
    found = _TTL.fullmatch(text) if isinstance(text, str) else None
    if found is None or not int(found[1]):
        raise ConfigError(
            f"no retention is called {value!r}",
            hint="give full, headers_only, none, or ttl:TIME[:delete] with a TIME such as 3600, 12h or 30d",
        )
    return Retention(
        "ttl", int(found[1]) * _UNITS[found[2]], "delete" if found[3] == "delete" else "headers_only"
    )


def format(retention: Retention) -> str:
    """The text that `parse` reads."""
    if retention.kind != "ttl":
        return retention.kind
    return f"ttl:{retention.ttl}" + ("" if retention.then == "headers_only" else f":{retention.then}")


def stricter(one: Retention, other: Retention) -> Retention:
    """What satisfies both; of headers_only and a ttl with delete, headers_only: its bodies were never stored."""
    if one.kind == other.kind == "ttl":
        then: Then = "delete" if "delete" in (one.then, other.then) else "headers_only"
        return Retention("ttl", min(one.ttl, other.ttl), then)
    return max(one, other, key=lambda retention: _STRICTNESS.index(retention.kind))


def project(record: AnyRecord, retention: Retention, now: int) -> AnyRecord | None:
    """The record as it may be stored at `now` (microseconds), or None. seq, type and ts never change."""
    if retention.kind == "full":
        return record
    if retention.kind == "headers_only":
        return headers(record)
    if retention.kind == "none":
        return _bounds(record)
    if record.ts + retention.ttl * 1_000_000 >= now:
        return record
    return headers(record) if retention.then == "headers_only" else None


def headers(record: AnyRecord) -> AnyRecord:
    """The record without its body. One that has none, or lost it before, is given back as it is."""
    less = _LESS.get(type(record))
    changes = less(record) if less else {}
    if record.refs:
        changes["refs"] = ()
    changes = {name: value for name, value in changes.items() if getattr(record, name) != value}
    return msgspec.structs.replace(record, **changes, withheld=True) if changes else record


def _bounds(record: AnyRecord) -> AnyRecord | None:
    if isinstance(record, TurnStart):
        return msgspec.structs.replace(record, refs=())
    return headers(record) if isinstance(record, TurnEnd) else None


def _parts(record: Message | ToolResult) -> dict[str, Any]:
    return {"parts": tuple(_withheld(part) for part in record.parts)}


def _withheld(part: AnyPart) -> AnyPart:
    """Blank text leaves blank text, so that what counts as a message without content goes on to."""
    if isinstance(part, Withheld):
        return part
    if isinstance(part, Blob):
        return Withheld(of=part.of)
    return Withheld(of=str(part.__struct_config__.tag)) if has_content((part,)) else Text(text="")


def _unknown(record: Unknown) -> dict[str, Any]:
    """Of a record that cannot be understood, what every record has."""
    header = {"type": record.name, "seq": record.seq, "ts": record.ts, "v": MAJOR, "withheld": True}
    return {"raw": msgspec.json.encode(header)}


def _fixed(**fields: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda record: dict(fields)


_LESS: dict[type[Record], Callable[[Any], dict[str, Any]]] = {
    Message: _parts,
    ToolResult: _parts,
    ToolCall: _fixed(args={}, invalid=None),
    TurnEnd: _fixed(error=None),
    Reasoning: _fixed(blob="", text=""),
    Compaction: _fixed(summary=""),
    Retrieval: _fixed(query="", hits=()),
    Approval: _fixed(summary="", key=(), feedback=None),
    Label: _fixed(text=""),
    Info: _fixed(title=None),
    Settings: _fixed(values={}),
    Custom: _fixed(data=None),
    Unknown: _unknown,
}
"""What goes from each type that has a body. The others are ids, names and counts."""
