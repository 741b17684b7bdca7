"""A provider's whole answer as ours."""

from typing import Any

import msgspec
from pydantic_ai.messages import FilePart, ModelResponse, ToolCallPart
from pydantic_ai.usage import RequestUsage

from ..records.errors import ModelConnectionError, RequestRefused
from ..records.ids import CallId
from ..records.parts import AnyPart, File, Image
from ..records.record import Usage
from .base import Call, Finished
from .hosted_reasoning import written

_STOPS = {"stop": "end", "length": "max_tokens", "tool_call": "tool_use", "content_filter": "refusal"}


def finish(response: ModelResponse, origin: str) -> Finished:
    """Everything but the price. Raises for an answer that broke off, and for one that was refused whole."""
    if response.finish_reason is None:
        raise ModelConnectionError("the answer ended before it was finished", hint="ask again")
    if response.finish_reason == "content_filter" and not response.text and not response.tool_calls:
        raise RequestRefused("the model refused to answer", hint="ask something else, or another model")
    calls = tuple(_call(part) for part in response.parts if isinstance(part, ToolCallPart))
    stop = (
        "tool_use"
        if calls and response.finish_reason == "stop"
        else _STOPS.get(response.finish_reason, "end")
    )
    return Finished(
        calls=calls,
        parts=tuple(_file(part) for part in response.parts if isinstance(part, FilePart)),
        reasoning=written(response.parts, origin),
        usage=usage_of(response.usage),
        stop_reason=stop,
    )


def _call(part: ToolCallPart) -> Call:
    id = CallId(part.tool_call_id)
    args: Any = part.args if part.args is not None else {}
    if isinstance(args, str):
        try:
            args = msgspec.json.decode(args) if args.strip() else {}
        except ValueError:  # no JSON, or half characters
            return Call(name=part.tool_name, id=id, invalid=str(part.args))
    if not isinstance(args, dict):
        return Call(name=part.tool_name, id=id, invalid=str(part.args))
    return Call(name=part.tool_name, args=args, id=id)


def _file(part: FilePart) -> AnyPart:
    kind = Image if part.content.is_image else File
    return kind(media=part.content.media_type, data=part.content.data)


def usage_of(usage: RequestUsage) -> Usage:
    """Theirs counts cached tokens as input too; ours keeps the kinds apart, as they are billed."""
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    return Usage(
        input_tokens=max(0, usage.input_tokens - cached),
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.output_reasoning_tokens,
        requests=1,
    )
