"""What each provider's answer becomes."""

import asyncio

import pytest

from tertulia.models.base import Call, Request, Said
from tertulia.models.prices import Price
from tertulia.records.errors import RequestRefused
from tertulia.records.record import Usage
from tertulia.testing import call
from tertulia.testing.providers import Reply, Think
from tests.models.hosted_kit import ADD, MODELS, asked, user

CACHE_WRITES = {"anthropic", "openai"}  # the others do not tell
REASONING_COUNTS = {"openai", "openai-chat", "google", "ollama"}


@pytest.mark.req("S1-004a")
async def test_text_comes_in_its_pieces(provider: str) -> None:
    async with asked(provider, [Reply("Hel", "lo ", "there.")]) as it:
        answer = await it.ask()
    assert "".join(answer.said) == "Hello there."
    assert len(answer.said) == 3
    assert answer.end.calls == ()
    assert answer.end.reasoning == ()
    assert answer.end.stop_reason == "end"


async def test_the_first_piece_is_not_lost(provider: str) -> None:
    async with asked(provider, ["Hello."]) as it:
        assert (await it.ask()).said == ["Hello."]


async def test_a_call_comes_whole(provider: str) -> None:
    async with asked(provider, [Reply("I add.", call("add", a=1, b=2, call_id="call_x1"))]) as it:
        answer = await it.ask(tools=(ADD,))
    assert answer.said == ["I add."]
    assert answer.end.calls == (Call(name="add", args={"a": 1, "b": 2}, id="call_x1"),)  # type: ignore[arg-type]
    assert answer.end.stop_reason == "tool_use"


async def test_parallel_calls_stay_in_order_and_apart(provider: str) -> None:
    async with asked(provider, [Reply(*(call("add", a=n, b=n) for n in range(5)))]) as it:
        answer = await it.ask(tools=(ADD,))
    assert [each.args for each in answer.end.calls] == [{"a": n, "b": n} for n in range(5)]
    assert len({each.id for each in answer.end.calls}) == 5


async def test_a_call_without_arguments_has_an_empty_object(provider: str) -> None:
    async with asked(provider, [Reply(call("add"))]) as it:
        assert [each.args for each in (await it.ask(tools=(ADD,))).end.calls] == [{}]


@pytest.mark.parametrize("text", ['{"a": 1, "b"', "[1, 2]", "nonsense"])
@pytest.mark.parametrize("provider", sorted(MODELS.keys() - {"google"}))  # its arguments come as objects
async def test_arguments_that_are_no_object_are_kept_as_text(provider: str, text: str) -> None:
    async with asked(provider, [Reply(Call(name="add", invalid=text), stop="max_tokens")]) as it:
        answer = await it.ask(tools=(ADD,))
    (made,) = answer.end.calls
    assert (made.args, made.invalid) == ({}, text)
    assert answer.end.stop_reason == "max_tokens"


async def test_a_long_call_gives_signs_of_life() -> None:
    """The turn would take it for silence otherwise."""
    async with asked("anthropic", [Reply(call("add", a=1, b=2))]) as it:
        events = [event async for event in it.model.stream(Request(messages=(user("Hi."),), tools=(ADD,)))]
    assert Said("") in events


async def test_thinking_is_shown_and_kept(provider: str) -> None:
    async with asked(provider, [Reply(Think("Let me see."), "Yes.", call("add", a=1, b=1))]) as it:
        answer = await it.ask(tools=(ADD,))
    assert answer.thought == ["Let me see."]
    assert answer.said == ["Yes."]
    (kept,) = answer.end.reasoning
    assert kept.text == "Let me see."
    assert kept.provider.startswith(provider)


async def test_usage_keeps_the_kinds_of_tokens_apart(provider: str) -> None:
    given = Usage(100, 20, 3_000, 400, 7)
    async with asked(provider, ["Hello."], usage=given) as it:
        used = (await it.ask()).end.usage
    written = 400 if provider in CACHE_WRITES else 0
    thought = 7 if provider in REASONING_COUNTS else 0
    assert used == Usage(500 - written, 20, 3_000, written, thought, 1)


@pytest.mark.parametrize("stop", ["end", "max_tokens", "refusal"])
async def test_why_it_stopped(provider: str, stop: str) -> None:
    async with asked(provider, [Reply("So far", stop=stop)]) as it:
        assert (await it.ask()).end.stop_reason == stop


async def test_a_refusal_without_a_word_is_an_error(provider: str) -> None:
    async with asked(provider, [Reply(stop="refusal")]) as it:
        with pytest.raises(RequestRefused):
            await it.ask()


async def test_its_price_is_known_where_it_was_given(provider: str) -> None:
    """Not from the list: at another address that may be another model."""
    name = f"{provider}:{MODELS[provider]}"
    async with asked(provider, ["Hello."]) as it:
        assert (await it.ask()).end.cost is None
    own = {name: Price(1_000_000.0, 0.0)}
    async with asked(provider, ["Hello."], usage=Usage(2), prices=own) as it:
        assert (await it.ask()).end.cost == pytest.approx(2.0)


async def test_an_answer_of_thirty_megabytes_is_whole(provider: str) -> None:
    piece = "0123456789abcdef" * 65_536
    async with asked(provider, [Reply(*[piece] * 30)]) as it:
        answer = await it.ask()
    assert sum(map(len, answer.said)) == 30 * len(piece) > 30_000_000


async def test_many_answers_at_once_over_one_model(provider: str) -> None:
    async with asked(provider, [f"Answer {n}." for n in range(20)]) as it:
        answers = await asyncio.gather(*(it.ask() for _ in range(20)))
    assert sorted(answer.said[0] for answer in answers) == sorted(f"Answer {n}." for n in range(20))
