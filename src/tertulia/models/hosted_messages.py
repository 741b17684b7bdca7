"""Our messages as pydantic-ai's: what one provider signed goes back to it alone, and as it was."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.messages import ModelMessage as Wire
from pydantic_ai.models import Model as Provided

from ..records.parts import AnyPart, Blob, Data, File, Image, Media, Text
from ..records.record import Reasoning, ToolCall, ToolResult
from ..transcript.context import ModelMessage
from .hosted_reasoning import Piece, read

CONVERSATIONS = 16
"""So many are remembered in their converted form; one that was forgotten is converted anew."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_TEXTUAL = {"application/json", "application/xml", "application/x-yaml", "application/javascript"}
_PDF = "application/pdf"


class Converter:
    """For one model. A message is converted once, so that later requests repeat it to the byte."""

    def __init__(self, origin: str, provided: Provided) -> None:
        self.origin = origin
        self._system = provided.system
        profile = provided.profile
        self._images = profile.get("supports_image_input", True)
        self._documents = profile.get("supports_document_input", True)
        self._inline_system = origin.startswith(("openai", "ollama"))
        self._known: OrderedDict[int, tuple[list[ModelMessage], list[Wire]]] = OrderedDict()

    def messages(self, messages: Sequence[ModelMessage]) -> list[Wire]:
        """A conversation is known by its first message, which it keeps (as the same object) while it grows."""
        if not len(messages):
            return []
        key = id(messages[0])
        before, converted = self._known.pop(key, ([], []))
        same = 0
        for message, known in zip(messages, before, strict=False):
            if message is not known:
                break
            same += 1
        new = list(messages[same:])
        del before[same:], converted[same:]
        before += new
        converted += map(self._convert, new)
        self._known[key] = (before, converted)
        if len(self._known) > CONVERSATIONS:
            self._known.popitem(last=False)
        return list(converted)

    def _convert(self, message: ModelMessage) -> Wire:
        match message.role:
            case "user":
                return ModelRequest([UserPromptPart(self._content(message.parts))])
            case "tool":
                return ModelRequest([self._result(result) for result in message.results])
            case "system" if self._inline_system:
                return ModelRequest([SystemPromptPart(message.text)])
            case "system":  # elsewhere it would move to the front, and what is cached behind it would be lost
                return ModelRequest([UserPromptPart(f"<system>\n{message.text}\n</system>")])
        return ModelResponse(self._said(message), provider_name=self._system)

    def _said(self, message: ModelMessage) -> list[ModelResponsePart]:
        text = "".join(part.text if isinstance(part, Text) else _placeholder(part) for part in message.parts)
        own = [reasoning for reasoning in message.reasoning if reasoning.provider == self.origin]
        pieces = _pieces(own, text, len(message.calls))
        calls = iter(message.calls)
        return [part for piece in pieces if (part := self._part(piece, calls)) is not None]

    def _part(self, piece: Piece, calls: Any) -> ModelResponsePart | None:
        own: dict[str, Any] = {"provider_name": self._system} if piece.signed else {}
        own |= {"id": piece.id, "provider_details": piece.details}
        match piece.kind:
            case "thinking":
                return ThinkingPart(piece.text, signature=piece.signature, **own)
            case "text":
                return TextPart(piece.text, **own) if piece.text else None
        call: ToolCall = next(calls)
        args = call.args if call.invalid is None else {"INVALID_JSON": call.invalid}
        return ToolCallPart(call.name, args, wire_id(call.call_id), **own)

    def _result(self, result: ToolResult) -> ToolReturnPart:
        content: Any = self._content(result.parts) if result.parts else result.text
        outcome: Literal["success", "failed"] = "success" if result.status == "ok" else "failed"
        return ToolReturnPart(result.name, content, wire_id(result.call_id), outcome=outcome)

    def _content(self, parts: Sequence[AnyPart]) -> str | list[UserContent]:
        content = [piece for part in parts if (piece := self._piece(part)) != ""]
        if all(isinstance(piece, str) for piece in content):
            return "\n".join(map(str, content))
        return content

    def _piece(self, part: AnyPart) -> UserContent:
        match part:
            case Text(text=text):
                return text
            case Data(name=name, value=value):
                return f"{name}: {msgspec.json.encode(value).decode()}"
            case Blob(of="text", head=head, size=size):
                return f"{head}\n[… the rest of {size:,} bytes is left out …]"
            case Image() | File():
                return self._media(part) or _placeholder(part)
        return _placeholder(part)

    def _media(self, part: Media) -> UserContent | None:
        """None for what the model cannot take, or what is not at hand."""
        if part.data is not None and _is_text(part.media):
            return f"{part.name or 'file'}:\n{part.data.decode('utf-8', 'replace')}"
        image = self._images and part.media in _IMAGES
        if not image and not (self._documents and part.media == _PDF):
            return None
        if part.data is not None:
            return BinaryContent(part.data, media_type=part.media)
        if part.url is not None:
            return (ImageUrl if image else DocumentUrl)(part.url, media_type=part.media)
        return None


def _pieces(own: Sequence[Reasoning], text: str, calls: int) -> list[Piece]:
    """The answer piece by piece, as its provider gave it, or (no longer whole, or of another one) text, then calls."""
    if len(own) == 1:
        pieces = read(own[0], text, calls)
        if pieces is not None:
            return pieces
    return [Piece(kind="text", text=text), *(Piece(kind="call") for _ in range(calls))]


def wire_id(id: str) -> str:
    """The id of a call as every provider takes it: as it is, or (foreign ones may hold anything) its digest."""
    return id if _ID.fullmatch(id) else f"call_{sha256(id.encode('utf-8', 'replace')).hexdigest()[:32]}"


def _is_text(media: str) -> bool:
    return media.startswith("text/") or media in _TEXTUAL


def _placeholder(part: AnyPart) -> str:
    """What stands for a part that cannot be sent, so that the model can say that it does not see it."""
    if isinstance(part, Media):
        kind = "image" if isinstance(part, Image) else "file"
        return f"[{kind} {part.name or part.media}: not shown to this model]"
    return f"[{part.__struct_config__.tag}]"
