"""What goes wrong at a provider, in each of its ways, is one typed error after exactly one request."""

import socket
import traceback
from typing import Any

import pytest

from tertulia.records.errors import (
    AuthenticationFailed,
    BadModelRequest,
    ContextFull,
    ModelConnectionError,
    ModelError,
    Overloaded,
    RateLimited,
)
from tertulia.testing import call
from tertulia.testing.providers import Cut, Ends, Reply, Status
from tests.models.hosted_kit import ADD, KEY, asked, closed

STATUSES: list[tuple[int, type[ModelError]]] = [
    (400, BadModelRequest),
    (401, AuthenticationFailed),
    (402, AuthenticationFailed),
    (403, AuthenticationFailed),
    (404, BadModelRequest),
    (413, ContextFull),
    (422, BadModelRequest),
    (429, RateLimited),
    (500, ModelError),
    (503, Overloaded),
    (529, Overloaded),
]


@pytest.mark.parametrize(("code", "kind"), STATUSES)
async def test_each_status_has_its_error(provider: str, code: int, kind: type[ModelError]) -> None:
    async with asked(provider, [Status(code, "This is why.")], default="Never asked for.") as it:
        with pytest.raises(kind) as caught:
            await it.ask()
    assert type(caught.value) is kind
    assert caught.value.message == f"This is why. ({code})"
    assert len(it.fake.requests) == 1


async def test_how_long_to_wait_is_told(provider: str) -> None:
    async with asked(provider, [Status(429, retry_after=7), Status(429)]) as it:
        with pytest.raises(RateLimited) as caught:
            await it.ask()
        with pytest.raises(RateLimited) as vague:
            await it.ask()
    assert (caught.value.retry_after, vague.value.retry_after) == (7.0, None)


FULL = {
    "anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "google": "The input token count (9) exceeds the maximum number of tokens allowed (8)",
}


async def test_a_full_context_is_told_from_a_bad_request(provider: str) -> None:
    message = FULL.get(provider, "This model's maximum context length is 8 tokens.")
    async with asked(provider, [Status(400, message)]) as it:
        with pytest.raises(ContextFull):
            await it.ask()


@pytest.mark.parametrize("provider", ["openai", "openai-chat"])
async def test_an_empty_account_is_not_a_rate_limit(provider: str) -> None:
    """Waiting would not help."""
    async with asked(provider, [Status(429, "No credit.", kind="insufficient_quota")]) as it:
        with pytest.raises(AuthenticationFailed):
            await it.ask()


async def test_a_body_that_says_nothing(provider: str) -> None:
    async with asked(provider, [Status(500, body=b"")]) as it:
        with pytest.raises(ModelError, match="500"):
            await it.ask()


async def test_a_huge_body_is_cut(provider: str) -> None:
    async with asked(provider, [Status(500, "x" * 1_000_000)]) as it:
        with pytest.raises(ModelError) as caught:
            await it.ask()
    assert len(str(caught.value)) < 5_000


async def test_the_key_shows_nowhere(provider: str) -> None:
    async with asked(
        provider, [Status(401, f"Bad key {KEY}."), Status(400, "Bad.", body=KEY.encode())]
    ) as it:
        assert KEY not in repr(it.model)
        for _ in range(2):
            with pytest.raises(ModelError) as caught:
                await it.ask()
            assert KEY not in "".join(traceback.format_exception(caught.value))
            assert KEY not in repr(caught.value.__dict__)


# ── in mid-stream ──

GARBAGE = b"event: content_block_delta\ndata: {not json\n\n"
BROKEN: list[tuple[str, tuple[Any, ...]]] = [
    ("lost", (Cut(),)),
    ("ended", (Ends(),)),
    ("garbage", (GARBAGE, Ends())),
    ("bytes", (b'data: {"type": "\xff\xfe"}\n\n', Ends())),
    ("html", (b"<html><body>Bad gateway</body></html>", Ends())),
]


@pytest.mark.parametrize("pieces", [p for _, p in BROKEN], ids=[name for name, _ in BROKEN])
@pytest.mark.parametrize("before", [(), ("So far",)], ids=["first", "later"])
async def test_a_stream_that_breaks_is_a_connection_error(
    provider: str, before: tuple[str, ...], pieces: tuple[Any, ...]
) -> None:
    async with asked(provider, [Reply(*before, *pieces)], default="Never asked for.") as it:
        with pytest.raises(ModelConnectionError):
            await it.ask()
    assert len(it.fake.requests) == 1


async def test_a_call_that_breaks_off_is_no_call(provider: str) -> None:
    async with asked(provider, [Reply("I add.", call("add", a=1, b=2), Cut())]) as it:
        with pytest.raises(ModelConnectionError):
            await it.ask(tools=(ADD,))


EVENTS = {
    "anthropic": [
        (529, "", Overloaded),
        (500, "", ModelError),
        (429, "", RateLimited),
        (400, "", BadModelRequest),
    ],
    "openai": [(500, "server_error", ModelError), (429, "rate_limit_exceeded", RateLimited)],
    "openai-chat": [(500, "server_error", ModelError), (429, "rate_limit_exceeded", RateLimited)],
    "google": [(503, "", Overloaded), (500, "", ModelError), (429, "", RateLimited)],
    "ollama": [(500, "server_error", ModelError)],
}


@pytest.mark.parametrize(
    ("name", "event"), [(name, event) for name, events in EVENTS.items() for event in events]
)
@pytest.mark.parametrize("before", [(), ("So far",)], ids=["first", "later"])
async def test_an_error_event_is_that_error(
    name: str, event: tuple[Any, ...], before: tuple[str, ...]
) -> None:
    code, kind, expected = event
    async with asked(name, [Reply(*before, Status(code, "It broke.", kind), Ends())], default="Never.") as it:
        with pytest.raises(expected, match="It broke.") as caught:
            await it.ask()
    assert type(caught.value) is expected
    assert len(it.fake.requests) == 1


async def test_what_is_no_stream_is_no_answer(provider: str) -> None:
    """A proxy's page with status 200."""
    async with asked(provider, [Status(200, body=b"<html>Sign in</html>")]) as it:
        with pytest.raises(ModelConnectionError):
            await it.ask()


async def test_nobody_listens(provider: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with asked(provider, base_url=f"http://127.0.0.1:{taken.getsockname()[1]}") as it:
            with pytest.raises(ModelConnectionError):
                await it.ask()


async def test_an_address_that_is_none(provider: str) -> None:
    async with asked(provider, base_url="http://") as it:
        with pytest.raises((ModelConnectionError, BadModelRequest)):
            await it.ask()


async def test_a_connection_that_the_server_closed_is_not_used_again(provider: str) -> None:
    async with asked(provider, ["One.", Reply("x", Cut()), "Two."]) as it:
        assert (await it.ask()).said == ["One."]
        with pytest.raises(ModelConnectionError):
            await it.ask()
        assert (await it.ask()).said == ["Two."]


async def test_an_error_leaves_no_connection_open(provider: str) -> None:
    async with asked(provider, [Reply("x", GARBAGE, "y")]) as it:
        with pytest.raises(ModelConnectionError) as caught:
            await it.ask()
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.__traceback__ is None  # its frames would hold what was opened
        await it.model.aclose()
        await closed(it.fake.requests[0])
