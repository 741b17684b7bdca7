"""What a caller may say: text, parts, or a mix; checked before anything is written."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from ..records.errors import InvalidInput
from ..records.parts import AnyPart, Media, Part, Text, Withheld, text_of

Input = str | AnyPart | Sequence[str | AnyPart]

MAX_BYTES = 32 * 1024 * 1024

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[AnyPart, ...])


def parse_input(value: object) -> tuple[AnyPart, ...]:
    """The parts of an input, or InvalidInput that says what is wrong with it."""
    pieces: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    parts = tuple(Text(text=piece) if isinstance(piece, str) else piece for piece in pieces)
    data = dump_input(parts)
    if len(data) > MAX_BYTES:
        raise InvalidInput(
            f"the input has {len(data):,} bytes; at most {MAX_BYTES:,} are taken", hint="put it in a file"
        )
    for part in parts:
        if not isinstance(part, Part) or isinstance(part, Withheld):
            raise InvalidInput(
                f"an input is text or parts, not {type(part).__name__}",
                hint="give a str, or a list of str and Image",
            )
        if isinstance(part, Media) and [part.data, part.url, part.ref].count(None) != 2:
            raise InvalidInput("an image or a file needs exactly one of data, url and ref")
    _check_fields(parts, data)
    if not text_of(parts).strip() and all(isinstance(part, Text) for part in parts):
        raise InvalidInput("the input is empty", hint="say something, or attach an image")
    return parts


def _check_fields(parts: tuple[AnyPart, ...], data: bytes) -> None:
    """A part is not checked when it is made: what could not be read back is refused here."""
    if all(type(part) is Text and type(part.text) is str for part in parts):
        return
    try:
        _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"a part of the input has a field of the wrong type: {error}") from error


def check_text(value: object, what: str) -> str:
    """A label or a title that can be stored."""
    if not isinstance(value, str) or any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidInput(f"{what} is text, not {value!r:.80}")
    return value


def dump_input(parts: tuple[AnyPart, ...]) -> bytes:
    try:
        return _encoder.encode(parts)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"the input holds what JSON cannot carry: {error}") from error


def load_input(data: bytes | None) -> tuple[AnyPart, ...]:
    """The parts of a queued item. One whose body cannot be read says so instead of vanishing."""
    try:
        return _decoder.decode(data or b"[]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return (Text(text="[the text of this item cannot be read]"),)


def digest(parts: tuple[AnyPart, ...]) -> bytes:
    return hashlib.sha256(dump_input(parts)).digest()
