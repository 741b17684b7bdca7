"""What a message or a tool result is made of."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """One piece of content. Bytes stand inline while small; the journal moves large ones into blobs.

    Parts and records are trees and never hold themselves, so the cycle collector is spared them (`gc=False`).
    """


class Text(Part, tag="text", frozen=True, kw_only=True):
    text: str


class Media(Part, frozen=True, kw_only=True):
    """Exactly one of `data`, `url` and `ref` says where the bytes are."""

    media: str
    data: bytes | None = None
    url: str | None = None
    ref: str | None = None
    name: str | None = None


class Image(Media, tag="image", frozen=True, kw_only=True):
    pass


class File(Media, tag="file", frozen=True, kw_only=True):
    pass


class Data(Part, tag="data", frozen=True, kw_only=True):
    """A structured value under a name, such as `chart_data`."""

    name: str
    value: Any


class Blob(Part, tag="blob", frozen=True, kw_only=True):
    """A text or a structured value that was too large to stand in the log; `head` is how it begins."""

    ref: str
    of: Literal["text", "data"]
    size: int
    name: str | None = None
    head: str = ""


class Withheld(Part, tag="withheld", frozen=True, kw_only=True):
    """What stands where the retention policy removed a body. `of` is the type of the part that was here."""

    of: str
    reason: str = "retention"


AnyPart = Text | Image | File | Data | Blob | Withheld

PLACEHOLDER = {"text": "[text]", "image": "[image]", "file": "[file]", "data": "[data]"}


def text_of(parts: Iterable[AnyPart]) -> str:
    """The text of the parts, joined by newlines; what is not text is left out."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, Blob) and part.of == "text":
            texts.append(part.head)
    return "\n".join(texts)


def describe(parts: Iterable[AnyPart]) -> str:
    """The text, trimmed; where there is none, a placeholder for each other part."""
    parts = tuple(parts)
    text = text_of(parts).strip()
    if text:
        return text
    return " ".join(_placeholder(part) for part in parts if not isinstance(part, Text))


def has_content(parts: Iterable[AnyPart]) -> bool:
    """Whether there is anything but blank text."""
    return any(map(_says_something, parts))


def shown(parts: tuple[AnyPart, ...]) -> tuple[AnyPart, ...]:
    """The parts as a model is shown them: text that says so stands where a body was withheld."""
    if Withheld not in map(type, parts):
        return parts
    return tuple(Text(text=_placeholder(part)) if isinstance(part, Withheld) else part for part in parts)


def _says_something(part: AnyPart) -> bool:
    return not isinstance(part, Text) or (part.text != "" and not part.text.isspace())


def _placeholder(part: AnyPart) -> str:
    if isinstance(part, Withheld):
        return f"[{part.of} withheld]"
    if isinstance(part, Blob):
        return PLACEHOLDER[part.of]
    return PLACEHOLDER[str(part.__struct_config__.tag)]
