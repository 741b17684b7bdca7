"""Retries, fallbacks, a full context, a silent model, an answer of a wanted type."""

import asyncio
from typing import Any

import msgspec
import pytest

from tertulia import Session, tool
from tertulia.records.errors import (
    AuthenticationFailed,
    BadModelRequest,
    CompactionRefused,
    ContextFull,
    InvalidInput,
    ModelError,
    OutputInvalid,
    Overloaded,
    RateLimited,
    TurnTimeout,
    UnknownModelError,
)
from tertulia.testing import EventRecorder, FakeClock, ScriptedModel, Stream, call, hold, texts


async def states(seen: EventRecorder) -> list[str]:
    return [event.state for event in seen.of("state")]  # type: ignore[union-attr]


@pytest.mark.req("S3-09")
async def test_nothing_is_tried_again_by_default() -> None:
    model = ScriptedModel([Overloaded("busy"), "never"])
    async with Session.open(model=model) as session:
        with pytest.raises(Overloaded):
            await session.prompt("x")
        assert len(model.requests) == 1


@pytest.mark.req("S3-09", "S3-09b")
async def test_retries_wait_longer_each_time_and_end_after_n_more_attempts() -> None:
    clock = FakeClock()
    model = ScriptedModel(default=lambda request: Overloaded("busy"))
    async with Session.open(model=model, clock=clock, max_retries=3, retry_base_delay=2.0) as session:
        async with EventRecorder(session.root) as seen:
            prompt = asyncio.create_task(session.prompt("x"))
            for pause in (2.0, 4.4, 8.8):
                async with asyncio.timeout(10):
                    await clock.asleep()
                await clock.advance(pause)
            with pytest.raises(Overloaded):
                await prompt
        assert len(model.requests) == 4
        assert clock.slept[0] == 2.0
        assert 4.0 <= clock.slept[1] <= 4.4
        assert 8.0 <= clock.slept[2] <= 8.8
        assert [event.attempt for event in seen.of("retry")] == [1, 2, 3]  # type: ignore[union-attr]
        assert await states(seen) == ["queued", "running", *["retrying", "running"] * 3, "failed"]


@pytest.mark.req("S3-09")
@pytest.mark.parametrize(
    "error", [AuthenticationFailed("key"), BadModelRequest("shape"), ContextFull("full")]
)
async def test_what_cannot_get_better_is_not_tried_again(error: ModelError) -> None:
    model = ScriptedModel([error, "never"])
    async with Session.open(model=model, max_retries=4, retry_base_delay=0) as session:
        with pytest.raises(type(error)):
            await session.prompt("x")
        assert len(model.requests) == 1


@pytest.mark.req("S3-09")
async def test_an_unknown_exception_is_tried_again_and_reaches_the_caller_with_its_cause() -> None:
    model = ScriptedModel([KeyError("odd"), "well"])
    async with Session.open(model=model, max_retries=1, retry_base_delay=0) as session:
        assert str(await session.prompt("x")) == "well"
        model.add(KeyError("odd"), KeyError("again"))
        with pytest.raises(UnknownModelError) as raised:
            await session.prompt("y")
        assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.req("S3-09")
async def test_a_retry_after_text_and_tools_duplicates_nothing() -> None:
    runs = []

    @tool
    def note(text: str) -> str:
        """Note a text."""
        runs.append(text)
        return "noted"

    broken = Stream(["half an ans", Overloaded("cut")])
    model = ScriptedModel([["first", call("note", text="a")], broken, "whole answer"])
    async with Session.open(model=model, tools=[note], max_retries=1, retry_base_delay=0) as session:
        async with EventRecorder(session.root) as seen:
            assert str(await session.prompt("x")) == "whole answer"
        assert runs == ["a"]
        entries = [(e.type, e.text) for e in await session.transcript() if e.type == "message"]
        assert entries == [("message", "x"), ("message", "first"), ("message", "whole answer")]
        (retry,) = seen.of("retry")
        assert retry.discarded  # type: ignore[union-attr]
        ids = [event.message_id for event in seen.of("iteration_start")]  # type: ignore[union-attr]
        assert len(ids) == len(set(ids)) == 3


async def test_the_last_failed_attempt_keeps_its_text_aborted() -> None:
    model = ScriptedModel([Stream(["one", Overloaded("cut")]), Stream(["two", Overloaded("cut")])])
    async with Session.open(model=model, max_retries=1, retry_base_delay=0) as session:
        with pytest.raises(Overloaded):
            await session.prompt("x")
        assert [(e.text, e.status) for e in await session.transcript()] == [("x", "ok"), ("two", "aborted")]


async def test_rate_limits_say_how_long_to_wait() -> None:
    clock = FakeClock()
    model = ScriptedModel([RateLimited("slow down", retry_after=30.0), "ok"])
    async with Session.open(model=model, clock=clock, max_retries=1, retry_base_delay=1.0) as session:
        prompt = asyncio.create_task(session.prompt("x"))
        async with asyncio.timeout(10):
            await clock.asleep()
        assert clock.slept == [30.0]
        await clock.advance(30)
        await prompt


async def test_other_models_stand_in_in_order() -> None:
    first = ScriptedModel([Overloaded("busy"), "first again"])
    second, third = ScriptedModel([AuthenticationFailed("no key")]), ScriptedModel(["third"])
    first.name, second.name, third.name = "first", "second", "third"
    async with Session.open(model=first, fallback_models=[second, third]) as session:
        async with EventRecorder(session.root) as seen:
            assert str(await session.prompt("x")) == "third"
            assert str(await session.prompt("y")) == "first again"
        assert [event.model for event in seen.of("usage")] == ["third", "first"]  # type: ignore[union-attr]
        assert [event.code for event in seen.of("retry")] == ["overloaded", "authentication"]  # type: ignore[union-attr]


async def test_what_the_request_itself_is_refused_for_goes_to_no_other_model() -> None:
    other = ScriptedModel(["never"])
    async with Session.open(
        model=ScriptedModel([BadModelRequest("shape")]), fallback_models=[other]
    ) as session:
        with pytest.raises(BadModelRequest):
            await session.prompt("x")
        assert other.requests == []


@pytest.mark.req("S3-09")
async def test_a_full_context_is_compacted_once_and_the_turn_goes_on() -> None:
    model = ScriptedModel(default=lambda request: f"answer {len(model.requests)}")
    async with Session.open(model=model) as session:
        for n in range(10):
            await session.prompt(f"question {n}")
        before = await session.transcript()
        model.add(ContextFull("too long"), "it fits now")
        async with EventRecorder(session.root) as seen:
            assert str(await session.prompt("one more")) == "it fits now"
        (event,) = seen.of("compaction")
        request = model.requests[-1]
        assert len(request.messages) < len(model.requests[-2].messages)
        assert request.messages[0].origin == "compaction"
        assert "question 0" in request.messages[0].text
        assert request.messages[-1].text == "one more"
        after = await session.transcript()
        assert after[: len(before)] == before  # nothing leaves the transcript
        assert event.entries <= len(before)  # type: ignore[union-attr]
        model.add(ContextFull("still"), ContextFull("still"))
        with pytest.raises(ContextFull):
            await session.prompt("hopeless")


async def test_compacting_twice_does_not_stack_summaries() -> None:
    model = ScriptedModel(default="answer")
    async with Session.open(model=model, compact_min_messages=4) as session:
        for n in range(6):
            await session.prompt(f"question {n}")
        await session.compact()
        for n in range(6, 12):
            await session.prompt(f"question {n}")
        summary = await session.compact()
        await session.prompt("last")
        said = texts(model.requests[-1])
        assert said[0] == ("user", summary)
        assert summary.count("[Summary") == 1
        assert sum("[Summary" in text for _, text in said) == 1


@pytest.mark.req("S4-03b")
async def test_below_the_threshold_compaction_is_refused_and_changes_nothing() -> None:
    async with Session.open(model=ScriptedModel(default="a"), compact_min_messages=4) as session:
        await session.prompt("one")
        before = await session.records()
        with pytest.raises(CompactionRefused, match="2 messages"):
            await session.compact()
        assert await session.records() == before
        await session.prompt("two")
        assert await session.compact()


async def test_a_summary_survives_reopening(tmp_path: Any) -> None:
    store = tmp_path / "s.db"
    async with Session.open(model=ScriptedModel(default="a"), store=store) as session:
        for n in range(8):
            await session.prompt(f"question {n}")
        summary = await session.compact()
        id = session.id
    model = ScriptedModel(default="b")
    async with Session.open(model=model, store=store, id=id) as session:
        await session.prompt("again")
        assert texts(model.requests[0])[0] == ("user", summary)


async def test_a_silent_model_is_a_timeout_that_ends_at_once() -> None:
    clock = FakeClock()
    silent = hold()
    model = ScriptedModel([Stream(["a start", silent])])
    async with Session.open(model=model, clock=clock, idle_timeout=60, max_retries=3) as session:
        prompt = asyncio.create_task(session.prompt("x"))
        async with asyncio.timeout(10):
            await silent.reached.wait()
            await clock.asleep()
        await clock.advance(61)
        with pytest.raises(TurnTimeout, match="sent nothing for 60 seconds"):
            await prompt
        assert len(model.requests) == 1
        assert [(e.text, e.status) for e in await session.transcript()] == [
            ("x", "ok"),
            ("a start", "aborted"),
        ]
        model.add("fine")
        assert str(await session.prompt("y")) == "fine"


async def test_a_model_that_speaks_now_and_then_is_not_silent() -> None:
    clock = FakeClock()
    holds = [hold(), hold()]
    model = ScriptedModel([Stream(["a", holds[0], "b", holds[1], "c"])])
    async with Session.open(model=model, clock=clock, idle_timeout=60) as session:
        prompt = asyncio.create_task(session.prompt("x"))
        for each in holds:
            async with asyncio.timeout(10):
                await each.reached.wait()
                await clock.asleep()
            await clock.advance(50)
            each.release()
        assert str(await prompt) == "abc"


class City(msgspec.Struct):
    name: str
    people: int


async def test_an_answer_of_a_wanted_type_is_a_value() -> None:
    model = ScriptedModel(['```json\n{"name": "Paris", "people": 2}\n```', "plain"])
    async with Session.open(model=model, system_prompt="Be brief.") as session:
        reply = await session.prompt("which city?", output=City)
        assert reply.output == City("Paris", 2)
        assert model.requests[0].system.startswith("Be brief.")
        assert '"people"' in model.requests[0].system
        assert (await session.prompt("and now in words")).output is None
        assert model.requests[1].system == "Be brief."


async def test_an_answer_of_the_wrong_type_is_mended_once() -> None:
    model = ScriptedModel(["Paris!", '{"name": "Paris", "people": 2}', "no", "never"])
    async with Session.open(model=model) as session:
        assert (await session.prompt("which city?", output=City)).output == City("Paris", 2)
        assert "Answer again" in model.requests[1].messages[-1].text
        assert [e.text for e in await session.forkable_user_messages()] == ["which city?"]
        with pytest.raises(OutputInvalid):
            await session.prompt("again", output=City)
        assert len(model.requests) == 4


async def test_pydantic_models_are_taken_where_they_are_there() -> None:
    from pydantic import BaseModel

    class Town(BaseModel):
        name: str

    async with Session.open(model=ScriptedModel(['{"name": "Ulm"}'])) as session:
        assert (await session.prompt("which?", output=Town)).output == Town(name="Ulm")


async def test_a_type_without_a_schema_is_refused_before_anything_is_asked() -> None:
    model = ScriptedModel()
    async with Session.open(model=model) as session:
        with pytest.raises(InvalidInput, match="no JSON schema"):
            await session.prompt("x", output=asyncio.Future)
        assert model.requests == []
        assert await session.records() == ()
