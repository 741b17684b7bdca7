"""What went wrong at a provider, as one of our errors, with the provider's own words."""

from json import JSONDecodeError
from typing import Any

import httpx2
from pydantic import ValidationError
from pydantic_ai import exceptions as theirs

from ..records.errors import (
    AuthenticationFailed,
    BadModelRequest,
    ContextFull,
    ModelConnectionError,
    ModelError,
    Overloaded,
    RateLimited,
    RequestRefused,
)

MAX_MESSAGE = 2_000
NO_ANSWER = "what came is no answer: ask again, or check the address"
TOO_LARGE = 413
_HTTP = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL)
_UNREADABLE = (ValidationError, JSONDecodeError, UnicodeDecodeError)
FAILURES = (theirs.AgentRunError, theirs.UserError, NotImplementedError, *_HTTP, *_UNREADABLE)
"""All that a request is known to raise; anything else is a defect, and shows as what it is."""

# The first that fits decides: a subclass stands before its base.
RULES: tuple[tuple[tuple[type[Exception], ...], type[ModelError], str | None], ...] = (
    ((theirs.ModelContextWindowExceededError,), ContextFull, "compact the conversation, or start a new one"),
    ((theirs.ModelAuthenticationError,), AuthenticationFailed, "check the API key and what it may use"),
    ((theirs.ModelQuotaExceededError,), AuthenticationFailed, "the account has no quota or credit left"),
    ((theirs.ModelNotFoundError,), BadModelRequest, "check the model's name and the address"),
    ((theirs.ModelRequestRejectedError,), BadModelRequest, None),
    ((theirs.ModelUnavailableError,), Overloaded, "try again later"),
    (
        (theirs.ModelConnectionError, theirs.ModelRequestTimeout),
        ModelConnectionError,
        "check the network and the address",
    ),
    ((theirs.ContentFilterError,), RequestRefused, "ask something else, or another model"),
    ((theirs.UserError, NotImplementedError), BadModelRequest, None),
    (_HTTP, ModelConnectionError, "check the network and the address"),
    (
        (theirs.UnexpectedModelBehavior, *_UNREADABLE),
        ModelConnectionError,
        NO_ANSWER,
    ),
)


def typed(error: Exception, secret: str) -> ModelError:
    message = _message(error).replace(secret, "…")
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "…"
    if isinstance(error, theirs.ModelRateLimitError):
        return RateLimited(message, retry_after=error.retry_after, hint="try again later")
    if isinstance(error, theirs.ModelHTTPError) and error.status_code == TOO_LARGE:
        return ContextFull(message, hint="the request is too large: compact the conversation, or send less")
    for kinds, ours, hint in RULES:
        if isinstance(error, kinds):
            return ours(message, hint=hint)
    if type(error) is theirs.ModelAPIError and not error.in_stream:
        return ModelConnectionError(message, hint=NO_ANSWER)
    return ModelError(message, hint="the provider failed: try again later")


def cause(error: Exception, secret: str) -> Exception | None:
    """The original, unless it would show the key. Its frames go: they hold the connection and the answer so far."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
    return None if secret in f"{error} {error!r}" else error


def _message(error: Exception) -> str:
    status = f" ({error.status_code})" if isinstance(error, theirs.ModelHTTPError) else ""
    found = _said(getattr(error, "body", None))
    if found:
        return f"{found}{status}"
    if status:
        return f"the provider answered with an error{status}"
    return str(error) or type(error).__name__


def _said(body: Any) -> str:
    """The provider's message, wherever it stands in the body."""
    if isinstance(body, dict):
        return _said(body.get("error")) or _said(body.get("message"))
    return body.strip() if isinstance(body, str) else ""
