"""Whole conversations over each provider, with tools, retries, a cancel, and a provider changed in the middle."""

import asyncio
import json
from typing import Any

import pytest

from tertulia import Conversation, Session
from tertulia.models.base import Call
from tertulia.models.prices import Price
from tertulia.records.errors import AuthenticationFailed, Overloaded, PromptCancelled
from tertulia.records.record import ModelUsage, Reasoning, ToolCall, ToolResult, Usage
from tertulia.testing import EventRecorder, call, hold
from tertulia.testing.providers import Cut, Reply, Status, Think
from tests.models.hosted_kit import MODELS, Asked, asked, closed, reached
from tests.models.test_hosted_requests import answered, called, found, spoken

SIGNED = {"anthropic": "signature", "openai": "encrypted_content", "google": "thoughtSignature"}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def broken() -> None:
    """It does not work."""
    raise RuntimeError("no paper")


def twice() -> list[Any]:
    think, calls = Think("Hm."), (call("add", a=1, b=2), call("add", a=3, b=4), call("broken"))
    return [Reply(think, "I add.", *calls), Reply("They are ", "3 and 7.")]


async def kinds(conversation: Conversation) -> list[str]:
    return [record.type for record in await conversation.records() if record.is_entry]


@pytest.mark.req("S0-01", "S0-01b")
async def test_a_conversation_with_tools(provider: str) -> None:
    options: dict[str, Any] = {"tools": [add, broken], "system_prompt": "Be brief."}
    async with (
        asked(provider, [*twice(), "You are welcome."], usage=Usage(100, 20)) as it,
        Session.open(model=it.model, **options) as session,
    ):
        reply = await session.prompt("Add 1 and 2, 3 and 4.")
        assert (reply.text, reply.usage.requests) == ("They are 3 and 7.", 2)
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (200, 40)
        assert str(await session.prompt("Thank you.")) == "You are welcome."
        assert await kinds(session.root) == (
            ["message", "message"] + ["tool_call"] * 3 + ["tool_result"] * 3 + ["message"] * 3
        )
    bodies = [seen.json for seen in it.fake.requests]
    assert len(bodies) == 3
    results = answered(provider, bodies[1])
    assert ["3" in results[0][1], "7" in results[1][1], "no paper" in results[2][1]] == [True] * 3
    assert [args for _, args in called(provider, bodies[1])] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {}]
    for before, after in zip(bodies, bodies[1:], strict=False):
        old, new = spoken(provider, before), spoken(provider, after)
        assert json.dumps(new[: len(old)]) == json.dumps(old)


async def test_it_goes_on_from_the_log(provider: str, tmp_path: Any) -> None:
    """What is read back from disk makes the same requests, to the byte."""
    store = str(tmp_path / "s.db")
    async with asked(provider, [*twice(), "Yes.", "Yes."]) as it:
        options: dict[str, Any] = {"model": it.model, "tools": [add, broken], "store": store}
        async with Session.open(**options) as session:
            await session.prompt("Add.")
        async with Session.open(**options, id=session.id) as session:
            await session.prompt("And?")
    bodies = [seen.json for seen in it.fake.requests]
    old, new = spoken(provider, bodies[1]), spoken(provider, bodies[2])
    assert json.dumps(new[: len(old)]) == json.dumps(old)
    if provider in SIGNED:
        assert found(bodies[2], SIGNED[provider])


@pytest.mark.req("S2-11a")
@pytest.mark.parametrize("other", MODELS)
async def test_a_provider_changed_in_the_middle(provider: str, other: str) -> None:
    """Calls and results stay, what the first one signed is for nobody else, and it comes back to it later."""
    async with asked(provider, [*twice(), *twice(), "Back."]) as it:
        second = Asked(other, it.fake, headers={"x-other": "1"})
        async with Session.open(model=it.model, tools=[add, broken]) as session:
            await session.prompt("Add.")
            await session.prompt("Again.", model=second.model)
            assert str(await session.prompt("And?")) == "Back."
            made = [record for record in await session.root.records() if isinstance(record, Reasoning)]
        await second.model.aclose()
    bodies = [seen.json for seen in it.fake.requests]
    assert [seen.headers.get("x-other") for seen in it.fake.requests] == [None, None, "1", "1", None]
    if other != provider:
        assert "Hm." not in json.dumps(bodies[2])
        assert len({reasoning.provider for reasoning in made}) == 2
        assert json.dumps(bodies[3]).count("Hm.") <= 1
    for body, api, calls in ((bodies[2], other, 3), (bodies[3], other, 6), (bodies[4], provider, 6)):
        assert len(called(api, body)) == len(answered(api, body)) == calls
    old, new = spoken(provider, bodies[1]), spoken(provider, bodies[4])
    assert json.dumps(new[: len(old)]) == json.dumps(old)


async def test_retries_are_the_sessions_alone(provider: str) -> None:
    script = [Status(529, "busy"), Reply("Hal", Cut()), Status(429, retry_after=0), "Here."]
    async with asked(provider, script) as it:
        options = {"max_retries": 4, "retry_base_delay": 0}
        async with Session.open(model=it.model, **options) as session, EventRecorder(session) as seen:
            assert str(await session.prompt("Hello?")) == "Here."
    retries = [(event.data["code"], event.data["discarded"]) for event in seen.of("retry")]
    assert retries == [("overloaded", False), ("connection", True), ("rate_limited", False)]
    assert len(it.fake.requests) == 4


@pytest.mark.parametrize(("status", "expected"), [(529, Overloaded), (401, AuthenticationFailed)])
async def test_by_default_one_failure_is_one_request(provider: str, status: int, expected: Any) -> None:
    async with (
        asked(provider, [Status(status)], default="Never.") as it,
        Session.open(model=it.model) as session,
    ):
        with pytest.raises(expected):
            await session.prompt("Hello?")
    assert len(it.fake.requests) == 1


@pytest.mark.req("S0-04")
async def test_a_cancelled_prompt_hangs_up(provider: str) -> None:
    held = hold()
    async with asked(provider, [Reply("So far", held), "Again."]) as it:
        async with Session.open(model=it.model) as session:
            asking = asyncio.create_task(session.prompt("Hello?"))
            await reached(held)
            session.cancel_active_prompt()
            with pytest.raises(PromptCancelled):
                await asking
            await closed(it.fake.requests[0])
            assert str(await session.prompt("Again?")) == "Again."
        assert "So far" not in json.dumps(it.body)


async def test_what_it_cost_is_in_the_log(provider: str) -> None:
    prices = {f"{provider}:{MODELS[provider]}": Price(1.0, 10.0)}
    given = {"usage": Usage(1_000, 100), "prices": prices}
    async with asked(provider, ["Hello."], **given) as it, Session.open(model=it.model) as session:
        reply = await session.prompt("Hello?")
        (used,) = [record for record in await session.root.records() if isinstance(record, ModelUsage)]
    assert reply.cost == used.cost == pytest.approx(0.002)
    assert used.model == f"{provider}:{MODELS[provider]}"


async def test_a_broken_call_gets_an_error_result_and_the_model_goes_on() -> None:
    script = [Reply(Call(name="add", invalid='{"a": 1'), stop="max_tokens"), "Sorry."]
    async with asked("anthropic", script) as it, Session.open(model=it.model, tools=[add]) as session:
        assert str(await session.prompt("Add.")) == "Sorry."
        records = await session.root.records()
        assert [record.invalid for record in records if isinstance(record, ToolCall)] == ['{"a": 1']
        assert [record.status for record in records if isinstance(record, ToolResult)] == ["error"]


async def test_arguments_with_half_characters_are_an_error_that_the_model_reads(provider: str) -> None:
    """Whether a provider sends arguments as an object or as text."""
    script = [Reply("I add.", call("add", a="\ud800", b=1)), "I see."]
    async with asked(provider, script) as it, Session.open(model=it.model, tools=[add]) as session:
        assert str(await session.prompt("Add.")) == "I see."
        (result,) = [r for r in await session.records() if isinstance(r, ToolResult)]
        assert (result.status, "no JSON object" in result.text) == ("error", True)
