"""A summary that needs no model: what was asked, what was done, what was said last. The same input, the same text."""

from collections.abc import Iterable, Sequence

from .context import COMPACTION, ModelMessage

LIMIT = 4_000  # characters
LINE = 240

_HEAD = "[Summary of the earlier conversation, made without a model]"


def summarise(messages: Sequence[ModelMessage]) -> str:
    """An earlier summary is taken over in front, cut when it must be, so that summaries do not stack."""
    before = [
        message.text.removeprefix(_HEAD).strip() for message in messages if message.origin == COMPACTION
    ]
    news = [message for message in messages if message.origin != COMPACTION]
    sections = [
        ("Before that", before),
        ("Asked", _lines(message.text for message in news if message.role == "user")),
        ("Tools used", _tools(news)),
        ("Answered", _lines(message.text for message in news if message.role == "assistant")),
    ]
    share = LIMIT // max(1, sum(1 for _, lines in sections if lines))
    parts = [f"{title}:\n{_fitted(lines, share)}" for title, lines in sections if lines]
    return "\n".join([_HEAD, *parts])


def _lines(texts: Iterable[str]) -> list[str]:
    return [f"- {_cut(' '.join(text.split()), LINE)}" for text in texts if text.strip()]


def _tools(messages: Iterable[ModelMessage]) -> list[str]:
    counts: dict[str, int] = {}
    for message in messages:
        for call in message.calls:
            counts[call.name] = counts.get(call.name, 0) + 1
    return [f"- {name} ({count} times)" if count > 1 else f"- {name}" for name, count in counts.items()]


def _fitted(lines: Sequence[str], limit: int) -> str:
    """The first line, which says what it was about, then as many of the last as fit."""
    if sum(len(line) + 1 for line in lines) <= limit:
        return "\n".join(lines)
    first = _cut(lines[0], limit // 2)
    room = limit - len(first) - 10
    kept: list[str] = []
    for line in reversed(lines[1:]):
        if len(line) + 1 > room:
            break
        kept.append(line)
        room -= len(line) + 1
    return "\n".join([first, "- …", *reversed(kept)]) if kept else first


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
