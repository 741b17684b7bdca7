"""How many tokens a message is about, without a network and without a tokenizer."""

import msgspec

from ..records.parts import AnyPart, Blob, Data, Media, Text

PER_MESSAGE = 4
PICTURE = 1_000  # whatever its bytes are: providers count pictures by their size on a screen
FILE = 2_000
LETTERS = 4  # of a Latin text in one token; of others, one each


def of_text(text: str) -> int:
    if text.isascii():
        return (len(text) + LETTERS - 1) // LETTERS
    wide = sum(char > "\u2e7f" for char in text)  # CJK and what lies beyond
    return wide + (len(text) - wide + LETTERS - 2) // (LETTERS - 1)


def of_part(part: AnyPart) -> int:
    if isinstance(part, Text):
        return of_text(part.text)
    if isinstance(part, Media):
        return PICTURE if part.media.startswith("image/") else FILE
    if isinstance(part, Data):
        return of_value(part.value)
    return of_text(part.head if isinstance(part, Blob) else part.of)


def of_value(value: object) -> int:
    """Of a value as JSON."""
    return len(msgspec.json.encode(value)) // LETTERS + 1
