"""A path as text that people or other programs read."""

import html
from collections.abc import Callable, Sequence

import msgspec

from ..records.codec import encode
from ..records.errors import InvalidInput
from ..records.record import AnyRecord, Message, ToolCall, ToolResult

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}pre{white-space:pre-wrap}"
)


def render(records: Sequence[AnyRecord], format: str, title: str) -> str:
    if format not in FORMATS:
        raise InvalidInput(
            f"there is no export format {format!r}", hint="choose one of " + ", ".join(FORMATS)
        )
    return FORMATS[format](records, title)


def _jsonl(records: Sequence[AnyRecord], title: str) -> str:
    return "".join(encode(record).decode("utf-8", "replace") + "\n" for record in records)


def _markdown(records: Sequence[AnyRecord], title: str) -> str:
    pieces = [f"# {title}"]
    for head, text, code in _pieces(records):
        pieces.append(f"## {head}\n\n{_fenced(text) if code else text}")
    return "\n\n".join(pieces) + "\n"


def _html(records: Sequence[AnyRecord], title: str) -> str:
    body = "".join(
        f"<h2>{html.escape(head)}</h2>\n<pre>{html.escape(text)}</pre>\n"
        for head, text, _ in _pieces(records)
    )
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{name}</h1>\n{body}</body></html>\n"
    )


def _pieces(records: Sequence[AnyRecord]) -> list[tuple[str, str, bool]]:
    """A heading and a text for each entry, and whether the text is code."""
    found: list[tuple[str, str, bool]] = []
    for record in records:
        if isinstance(record, Message):
            aborted = " (aborted)" if record.status == "aborted" else ""
            found.append((record.role + aborted, record.text, False))
        elif isinstance(record, ToolCall):
            found.append((f"call {record.name}", msgspec.json.encode(record.args).decode(), True))
        elif isinstance(record, ToolResult):
            found.append((f"result of {record.name}: {record.status}", record.text, True))
    return found


def _fenced(text: str) -> str:
    """In a fence longer than any that the text holds."""
    longest = max((len(run) for run in _runs(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _runs(text: str) -> list[str]:
    return [run for run in "".join(char if char == "`" else " " for char in text).split() if run]


FORMATS: dict[str, Callable[[Sequence[AnyRecord], str], str]] = {
    "jsonl": _jsonl,
    "md": _markdown,
    "html": _html,
}
