"""What a tool returned, as parts that a log can hold and a model can read."""

from typing import Any

import msgspec

from ..records.parts import AnyPart, Part, Text

_decoder: msgspec.json.Decoder[AnyPart] = msgspec.json.Decoder(AnyPart)


def result_parts(value: Any) -> tuple[AnyPart, ...]:
    """Text as it is, parts as they are, a list that holds parts piece by piece, anything else as JSON."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (Text(text=storable(value)),)
    if isinstance(value, Part):
        return (_checked(value),)
    if isinstance(value, list | tuple) and any(isinstance(piece, Part) for piece in value):
        return tuple(part for piece in value for part in result_parts(piece))
    try:
        return (Text(text=msgspec.json.encode(value).decode()),)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(
            f"the tool returned {type(value).__name__}, which has no JSON form: "
            "return text, numbers, lists, dicts or parts"
        ) from error


def storable(text: str) -> str:
    """Half characters, as file names that are no UTF-8 give them, cannot be stored: each becomes a mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _checked(part: Part) -> AnyPart:
    """A part is not checked when it is made; one that could not be read back is refused here."""
    if type(part) is Text and type(part.text) is str:
        return Text(text=storable(part.text))
    try:
        return _decoder.decode(msgspec.json.encode(part))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"the tool returned a part that has no JSON form: {error}") from error


def bounded(parts: tuple[AnyPart, ...], limit: int) -> tuple[tuple[AnyPart, ...], bytes | None]:
    """Text beyond the limit is cut in its middle; the second value is then the whole text, to be kept elsewhere."""
    total = sum(len(part.text) for part in parts if isinstance(part, Text))
    if total <= limit:
        return parts, None
    whole = "\n".join(part.text for part in parts if isinstance(part, Text))
    head, tail = whole[: limit * 2 // 3], whole[-(limit // 3) :]
    cut = Text(text=f"{head}\n[… {len(whole) - len(head) - len(tail):,} characters left out …]\n{tail}")
    rest = tuple(part for part in parts if not isinstance(part, Text))
    return (cut, *rest), whole.encode("utf-8", "replace")
