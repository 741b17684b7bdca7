"""What a provider wants back with its own answer: signed thinking, and the order in which all of it came.

One `Reasoning` record holds it. Its text is the thinking that may be shown; its blob says, piece by piece, how much of
that text or of the answer's belongs to it, and what the provider signed. So nothing is stored twice, and where
retention has changed a text the signature over it is not sent either.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from ..records.record import Reasoning
from .base import ReasoningPart

_BETWEEN = "\n\n"


class Piece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`size` is how many characters of the text it is; `text` is them, once it is read again."""

    kind: str
    size: int = 0
    id: str | None = None
    signature: str | None = None
    details: dict[str, Any] | None = None
    signed: bool = False
    text: str = ""


def written(parts: Iterable[ModelResponsePart], origin: str) -> tuple[ReasoningPart, ...]:
    """Nothing, where the answer's text and calls are all there is to know."""
    pieces: list[Piece] = []
    thoughts: list[str] = []
    for part in parts:
        if isinstance(part, ThinkingPart):
            pieces.append(_piece("thinking", part, len(part.content), part.signature))
            if part.content:
                thoughts.append(part.content)
        elif isinstance(part, TextPart):
            pieces.append(_piece("text", part, len(part.content)))
        elif isinstance(part, ToolCallPart):
            pieces.append(_piece("call", part, 0))
    if not any(piece.kind == "thinking" or piece.details for piece in pieces):
        return ()
    blob = msgspec.json.encode(pieces).decode()
    return (ReasoningPart(provider=origin, blob=blob, text=_BETWEEN.join(thoughts)),)


def _piece(
    kind: str, part: ThinkingPart | TextPart | ToolCallPart, size: int, signature: str | None = None
) -> Piece:
    return Piece(
        kind=kind,
        size=size,
        id=part.id,
        signature=signature,
        details=part.provider_details,
        signed=part.provider_name is not None,
    )


def read(reasoning: Reasoning, text: str, calls: int) -> list[Piece] | None:
    """The pieces with their text again; None when they are not those of this answer any more."""
    try:
        pieces = msgspec.json.decode(reasoning.blob, type=list[Piece])
    except msgspec.DecodeError:
        return None
    thoughts = _cut(reasoning.text, [piece for piece in pieces if piece.kind == "thinking"], _BETWEEN)
    said = _cut(text, [piece for piece in pieces if piece.kind == "text"], "")
    if thoughts is None or said is None or sum(piece.kind == "call" for piece in pieces) != calls:
        return None
    given = {"thinking": iter(thoughts), "text": iter(said)}
    return [
        msgspec.structs.replace(piece, text=next(given[piece.kind])) if piece.kind in given else piece
        for piece in pieces
    ]


def _cut(text: str, pieces: Sequence[Piece], between: str) -> list[str] | None:
    found: list[str] = []
    at = 0
    for piece in pieces:
        if piece.size and at:
            at += len(between)
        found.append(text[at : at + piece.size])
        at += piece.size
    return found if at == len(text) else None
