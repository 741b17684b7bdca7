"""What the fake provider servers write: one answer in each of the four streaming formats."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from ..models.base import Call
from ..records.record import Usage
from .model import Hold


class Think(msgspec.Struct, frozen=True):
    """A piece of reasoning. `signature` is what the provider wants back with it."""

    text: str
    signature: str = "signed"


class Cut(msgspec.Struct, frozen=True):
    """The connection is lost here."""


class Ends(msgspec.Struct, frozen=True):
    """The body ends here, as if the answer were whole: no event says so."""


class Status(msgspec.Struct, frozen=True):
    """An answer that is an error; as a piece of a Reply, the error event of its format in mid-stream.

    `kind` is the provider's own name for it; `body` stands for the whole body as it is.
    """

    code: int
    message: str = "it did not work"
    kind: str = ""
    retry_after: float | None = None
    headers: dict[str, str] = {}
    body: bytes | None = None


Piece = str | bytes | Think | Call | Cut | Ends | Hold | Status


class Reply:
    """An answer in pieces: text, Think, calls; Cut, Ends, a Status or a hold where it breaks; bytes as they are."""

    def __init__(self, *pieces: Piece, usage: Usage | None = None, stop: str = "") -> None:
        self.pieces = pieces
        self.usage = usage
        self.stop = stop or ("tool_use" if any(isinstance(piece, Call) for piece in pieces) else "end")


Wire = Iterator[bytes | Cut | Hold]

KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "api_error", 529: "overloaded_error",
}  # fmt: skip
GOOGLE_KINDS = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
}  # fmt: skip


def _sse(data: Any, event: str = "") -> bytes:
    line = f"event: {event}\n" if event else ""
    return f"{line}data: {json.dumps(data)}\n\n".encode()


def _call_id(call: Call, n: int) -> str:
    return call.id or f"call_{n}"


def _arguments(call: Call) -> str:
    return call.invalid if call.invalid is not None else json.dumps(call.args)


# ── Messages ──

_MESSAGES_STOPS = {
    "end": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "refusal": "refusal",
}


def _messages(reply: Reply, usage: Usage, seen: Any) -> Wire:
    counted = {
        "input_tokens": usage.input_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": 1,
    }
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": seen.json.get("model"), "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": counted,
    }  # fmt: skip
    yield _event("message_start", message=message)
    for index, piece in enumerate(reply.pieces):
        if isinstance(piece, Ends):
            return
        if isinstance(piece, str | Think | Call):
            yield from _block(index, piece)
        else:
            yield from _other(piece, "messages")
    counted = {**counted, "output_tokens": usage.output_tokens}
    stop = _MESSAGES_STOPS[reply.stop]
    yield _event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=counted)
    yield _event("message_stop")


def _block(index: int, piece: str | Think | Call) -> Wire:
    start: dict[str, Any]
    deltas: list[dict[str, Any]]
    match piece:
        case str(text):
            start, deltas = {"type": "text", "text": ""}, [{"type": "text_delta", "text": text}]
        case Think(text, signature):
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": text},
                {"type": "signature_delta", "signature": signature},
            ]
        case Call():
            start = {"type": "tool_use", "id": _call_id(piece, index), "name": piece.name, "input": {}}
            whole = _arguments(piece)
            half = len(whole) // 2  # in two pieces, as they come
            deltas = [
                {"type": "input_json_delta", "partial_json": part} for part in (whole[:half], whole[half:])
            ]
    yield _event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _event(name: str, **fields: Any) -> bytes:
    return _sse({"type": name, **fields}, name)


# ── Chat Completions ──

_CHAT_STOPS = {"end": "stop", "tool_use": "tool_calls", "max_tokens": "length", "refusal": "content_filter"}


def _chat(reply: Reply, usage: Usage, seen: Any) -> Wire:
    shared = {
        "id": "chat_1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": seen.json.get("model"),
    }

    def chunk(delta: dict[str, Any], stop: str | None = None) -> bytes:
        return _sse({**shared, "choices": [{"index": 0, "delta": delta, "finish_reason": stop}]})

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for piece in reply.pieces:
        match piece:
            case Ends():
                return
            case str(text):
                yield chunk({"content": text})
            case Think(text):
                yield chunk({"reasoning_content": text})
            case Call():
                id = _call_id(piece, calls)
                head = {
                    "index": calls,
                    "id": id,
                    "type": "function",
                    "function": {"name": piece.name, "arguments": ""},
                }
                yield chunk({"tool_calls": [head]})
                yield chunk({"tool_calls": [{"index": calls, "function": {"arguments": _arguments(piece)}}]})
                calls += 1
            case _:
                yield from _other(piece, "chat")
    yield chunk({}, _CHAT_STOPS[reply.stop])
    counted = {
        "prompt_tokens": _all_input(usage),
        "completion_tokens": usage.output_tokens,
        "total_tokens": _all_input(usage) + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    yield _sse({**shared, "choices": [], "usage": counted})
    yield b"data: [DONE]\n\n"


def _all_input(usage: Usage) -> int:
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


# ── Responses ──


def _responses(reply: Reply, usage: Usage, seen: Any) -> Wire:
    response: dict[str, Any] = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": seen.json.get("model"), "status": "in_progress",
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    yield _event("response.created", response=response, sequence_number=0)
    output: list[dict[str, Any]] = []
    for index, piece in enumerate(reply.pieces):
        if isinstance(piece, Ends):
            return
        if isinstance(piece, str | Think | Call):
            yield from _item(index, piece, output)
        else:
            yield from _other(piece, "responses")
    counted = {
        "input_tokens": _all_input(usage),
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": _all_input(usage) + usage.output_tokens,
    }
    response = {**response, "status": "completed", "output": output, "usage": counted}
    if reply.stop in ("max_tokens", "refusal"):
        reason = "max_output_tokens" if reply.stop == "max_tokens" else "content_filter"
        response |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        yield _event("response.incomplete", response=response, sequence_number=99)
    else:
        yield _event("response.completed", response=response, sequence_number=99)


def _item(index: int, piece: str | Think | Call, output: list[dict[str, Any]]) -> Wire:
    where = {"output_index": index, "sequence_number": index + 1}
    empty: dict[str, Any]
    match piece:
        case str(text):
            id = f"msg_{index}"
            empty = {"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []}
            content = {"type": "output_text", "text": text, "annotations": []}
            item = {**empty, "status": "completed", "content": [content]}
            deltas = [
                _event(
                    "response.content_part.added",
                    item_id=id,
                    content_index=0,
                    part={**content, "text": ""},
                    **where,
                ),
                _event(
                    "response.output_text.delta",
                    item_id=id,
                    content_index=0,
                    delta=text,
                    logprobs=[],
                    **where,
                ),
            ]
        case Think(text, signature):
            id = f"rs_{index}"
            empty = {"type": "reasoning", "id": id, "summary": [], "encrypted_content": ""}
            summary = {"type": "summary_text", "text": text}
            item = {**empty, "summary": [summary], "encrypted_content": signature}
            added = {**summary, "text": ""}
            deltas = [
                _event(
                    "response.reasoning_summary_part.added", item_id=id, summary_index=0, part=added, **where
                ),
                _event(
                    "response.reasoning_summary_text.delta", item_id=id, summary_index=0, delta=text, **where
                ),
            ]
        case Call():
            id, arguments = f"fc_{index}", _arguments(piece)
            empty = {
                "type": "function_call",
                "id": id,
                "call_id": _call_id(piece, index),
                "name": piece.name,
                "arguments": "",
            }
            item = {**empty, "arguments": arguments, "status": "completed"}
            deltas = [_event("response.function_call_arguments.delta", item_id=id, delta=arguments, **where)]
    yield _event("response.output_item.added", item=empty, **where)
    yield from deltas
    yield _event("response.output_item.done", item=item, **where)
    output.append(item)


# ── Gemini ──

_GEMINI_STOPS = {"end": "STOP", "tool_use": "STOP", "max_tokens": "MAX_TOKENS", "refusal": "SAFETY"}


def _gemini(reply: Reply, usage: Usage, seen: Any) -> Wire:
    signature: str | None = None

    def chunk(*parts: dict[str, Any], stop: str | None = None, **fields: Any) -> bytes:
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
        return _sse(
            {
                "candidates": [candidate | ({"finishReason": stop} if stop else {})],
                "responseId": "g1",
                **fields,
            }
        )

    for piece in reply.pieces:
        match piece:
            case Ends():
                return
            case str(text):
                yield chunk({"text": text})
            case Think(text, signature):
                yield chunk({"text": text, "thought": True})
            case Call():
                part: dict[str, Any] = {"functionCall": {"name": piece.name, "args": piece.args}}
                if piece.id:
                    part["functionCall"]["id"] = piece.id
                if signature is not None:  # of several parallel calls the first carries it
                    part["thoughtSignature"], signature = b64encode(signature.encode()).decode(), None
                yield chunk(part)
            case _:
                yield from _other(piece, "gemini")
    counted = {
        "promptTokenCount": _all_input(usage),
        "cachedContentTokenCount": usage.cache_read_tokens,
        "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": _all_input(usage) + usage.output_tokens,
    }
    yield chunk({"text": ""}, stop=_GEMINI_STOPS[reply.stop], usageMetadata=counted)


# ── what breaks ──


def _other(piece: Piece, format: str) -> Wire:
    if isinstance(piece, Status):
        body = ERRORS[format](piece)
        if format == "responses":
            body = {
                "type": "error",
                "code": piece.kind or "server_error",
                "message": piece.message,
                "param": None,
            }
        yield _sse(body, "error" if format in ("messages", "responses") else "")
    elif isinstance(piece, bytes | Cut | Hold):
        yield piece


def _anthropic_error(status: Status) -> dict[str, Any]:
    kind = status.kind or KINDS.get(status.code, "api_error")
    return {"type": "error", "error": {"type": kind, "message": status.message}, "request_id": "req_1"}


def _openai_error(status: Status) -> dict[str, Any]:
    kind = status.kind or {500: "server_error"}.get(status.code, KINDS.get(status.code, "server_error"))
    return {"error": {"message": status.message, "type": kind, "code": status.kind or None, "param": None}}


def _google_error(status: Status) -> dict[str, Any]:
    kind = status.kind or GOOGLE_KINDS.get(status.code, "UNKNOWN")
    return {"error": {"code": status.code, "message": status.message, "status": kind}}


ERRORS: dict[str, Callable[[Status], dict[str, Any]]] = {
    "messages": _anthropic_error,
    "chat": _openai_error,
    "responses": _openai_error,
    "gemini": _google_error,
}
FORMATS: dict[str, tuple[str, Callable[[Reply, Usage, Any], Wire]]] = {
    "messages": ("/messages", _messages),
    "chat": ("/chat/completions", _chat),
    "responses": ("/responses", _responses),
    "gemini": (":streamGenerateContent", _gemini),
}
"""For each format, what its path holds and what writes it."""
