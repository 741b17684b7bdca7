"""Asking: one prompt, several in a row, and what is said while one runs."""

import asyncio
from typing import Any

import pytest

from tertulia import Session
from tertulia.records.errors import (
    EmptyReply,
    InvalidInput,
    ModelError,
    Overloaded,
    PromptAlreadyRunning,
    PromptCancelled,
    UnknownModelError,
)
from tertulia.records.parts import Image, Text
from tertulia.testing import EventRecorder, ScriptedModel, Stream, call, hold
from tests.scenarios.kit import add, asked, shape, sources, talk, texts


@pytest.mark.req("S0-01")
async def test_a_prompt_is_answered_and_stands_in_the_transcript(store: Any) -> None:
    async with talk(store, "hi there") as (session, model):
        reply = await session.prompt("hello")
        assert (reply.text, str(reply), reply.stop_reason) == ("hi there", "hi there", "end")
        assert await texts(session) == [("user", "hello"), ("assistant", "hi there")]
        assert asked(model.requests[0]) == [("user", "hello")]


@pytest.mark.req("S0-01")
@pytest.mark.parametrize("empty", ["", "   \n", [], Stream([])])
async def test_an_empty_reply_is_an_error_and_no_entry(store: Any, empty: Any) -> None:
    async with talk(store, empty, "better") as (session, model):
        with pytest.raises(EmptyReply):
            await session.prompt("hello")
        assert await texts(session) == [("user", "hello")]
        assert (await session.prompt("again")).text == "better"
        assert asked(model.requests[1]) == [("user", "hello"), ("user", "again")]


@pytest.mark.req("S0-01b")
async def test_the_next_request_carries_what_was_said(store: Any) -> None:
    async with talk(store, "one", "two", "three") as (session, model):
        for text in "abc":
            await session.prompt(text)
        assert asked(model.requests[2]) == [
            ("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two"), ("user", "c"),
        ]  # fmt: skip
        assert asked(model.requests[1]) == asked(model.requests[2])[:3]  # a request never changes afterwards


@pytest.mark.req("S0-04")
async def test_a_cancelled_prompt_leaves_its_question_and_its_broken_answer(store: Any) -> None:
    waiting = hold()
    async with talk(store, Stream(["par", waiting, "tial"]), "next") as (session, model):
        running = asyncio.ensure_future(session.prompt("slow"))
        await waiting.until_reached()
        assert session.cancel_active_prompt().active
        session.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await running
        assert not session.cancel_active_prompt().active
        waiting.release()
        assert await texts(session) == [("user", "slow"), ("assistant", "par")]
        assert (await session.transcript())[1].status == "aborted"
        await session.prompt("go on")
        said = asked(model.requests[1])
        assert ("assistant", "par") not in said
        assert (said[0], said[-1]) == (("user", "slow"), ("user", "go on"))


@pytest.mark.req("S0-07")
async def test_a_second_prompt_is_refused_and_writes_nothing(store: Any) -> None:
    waiting = hold("done")
    async with talk(store, waiting) as (session, model):
        running = asyncio.ensure_future(session.prompt("first"))
        await waiting.until_reached()
        for ask in (session.prompt, session.submit):
            with pytest.raises(PromptAlreadyRunning):
                await ask("second")
        waiting.release()
        await running
        assert await texts(session) == [("user", "first"), ("assistant", "done")]
        assert session.pending_messages(include_resolved=True) == []


@pytest.mark.req("S0-07", "S0-12")
async def test_what_is_said_meanwhile_runs_in_order(store: Any) -> None:
    waiting = hold("0")
    async with talk(store, waiting, "1", "2", "3", "4") as (session, model):
        running = asyncio.ensure_future(session.prompt("start"))
        await waiting.until_reached()
        first = asyncio.ensure_future(session.prompt("p1", when_busy="follow_up"))
        await asyncio.sleep(0)
        await session.follow_up("f2")
        await session.steer("s3")
        fourth = await session.submit("p4", when_busy="steer")
        assert session.pending_message_count() == 4
        assert (await session.stats()).pending_breakdown == {
            "prompt_follow_up": 1,
            "steer": 2,
            "follow_up": 1,
        }
        waiting.release()
        # No tool was called, so there was no boundary: the steers keep their places.
        assert ((await running).text, (await first).text, (await fourth.reply()).text) == ("0", "1", "4")
        await session.wait_idle()
        assert session.pending_message_count() == 0
        assert set((await session.stats()).pending_breakdown.values()) == {0}
        said = [text for role, text in await texts(session) if role == "user"]
        assert said == ["start", "p1", "f2", "s3", "p4"]


@pytest.mark.req("S0-07", "S0-07b")
async def test_a_steer_goes_in_after_every_result_and_before_the_next_request(store: Any) -> None:
    gate, inside = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        inside.set()
        await gate.wait()
        return "slow result"

    script = [[call("slow"), call("add", a=1, b=2)], [call("add", a=3, b=4)], "the end"]
    async with talk(store, *script, tools=[slow, add]) as (session, model):
        running = asyncio.ensure_future(session.prompt("work"))
        async with asyncio.timeout(10):
            await inside.wait()
        one = await session.submit("left", when_busy="steer")
        await session.steer("right")
        gate.set()
        reply = await running
        assert reply.text == "the end"
        assert (await one.reply()).turn_id == reply.turn_id == one.turn_id  # the turn that took it in
        assert (await one.reply()).text == "the end"
        kinds = [(e.type, e.text) for e in await session.transcript() if e.type != "tool_call"]
        assert sorted(kinds[1:3]) == [("tool_result", "3"), ("tool_result", "slow result")]
        assert kinds[3:] == [
            ("message", "left"), ("tool_result", "7"), ("message", "right"), ("message", "the end"),
        ]  # fmt: skip
        assert asked(model.requests[1])[-1] == ("user", "left")
        assert asked(model.requests[2])[-1] == ("user", "right")


@pytest.mark.req("S0-07b")
async def test_a_steer_that_comes_while_the_model_emits_its_calls_goes_into_that_turn(store: Any) -> None:
    waiting = hold()
    script = [Stream(["thinking", waiting, call("add", a=1, b=1)]), "end"]
    async with talk(store, *script, tools=[add]) as (session, model):
        running = asyncio.ensure_future(session.prompt("work"))
        await waiting.until_reached()
        await session.steer("mind the gap")
        waiting.release()
        await running
        assert asked(model.requests[1])[-2:] == [("tool", "2"), ("user", "mind the gap")]
        assert session.pending_message_count() == 0


@pytest.mark.req("S0-07b")
async def test_a_steer_is_not_delivered_where_no_request_follows(store: Any) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        inside.set()
        await gate.wait()
        return "ok"

    async with talk(store, [call("slow")], "to the steer", tools=[slow], turn_limit=1) as (session, model):
        running = asyncio.ensure_future(session.prompt("work"))
        async with asyncio.timeout(10):
            await inside.wait()
        steer = await session.submit("and this", when_busy="steer")
        gate.set()
        assert (await running).stop_reason == "turn_limit"
        assert (await steer.reply()).text == "to the steer"
        assert len(model.requests) == 2


@pytest.mark.req("S0-07", "S0-07b")
async def test_a_failure_fails_what_is_queued_with_the_same_error(store: Any) -> None:
    waiting = hold(Overloaded("too much"))
    async with talk(store, waiting, "fine") as (session, model):
        running = asyncio.ensure_future(session.prompt("first"))
        await waiting.until_reached()
        queued = asyncio.ensure_future(session.prompt("second", when_busy="follow_up"))
        await asyncio.sleep(0)
        await session.steer("third")
        sent = await session.send_message("by its own")
        waiting.release()
        with pytest.raises(Overloaded) as first:
            await running
        with pytest.raises(Overloaded) as second:
            await queued
        assert first.value is second.value
        await session.wait_idle()
        assert sources(session.pending_messages(include_resolved=True)) == [
            ("prompt_follow_up", "second", "failed"), ("steer", "third", "failed"),
            ("follow_up", "by its own", "resolved"),
        ]  # fmt: skip
        assert sent.status == "queued"
        assert [text for _, text in await texts(session)] == ["first", "by its own", "fine"]


@pytest.mark.req("S0-07b")
async def test_a_steer_that_was_taken_in_fails_with_its_turn(store: Any) -> None:
    waiting = hold(Overloaded("late"))
    async with talk(store, [call("add", a=1, b=1)], waiting, tools=[add]) as (session, model):
        async with EventRecorder(session) as seen:
            running = asyncio.ensure_future(session.prompt("work"))
            await seen.wait_for("turn_start")
            steer = await session.submit("hey", when_busy="steer")
            await waiting.until_reached()
            await session.follow_up("not begun")
            waiting.release()
            with pytest.raises(Overloaded):
                await running
        with pytest.raises(Overloaded):
            await steer.reply()
        assert [each.status for each in session.pending_messages(include_resolved=True)] == [
            "failed",
            "failed",
        ]


@pytest.mark.req("S0-07")
@pytest.mark.parametrize("on_error", ["hold", "continue"])
async def test_what_is_queued_survives_a_failure_where_it_is_told_to(store: Any, on_error: Any) -> None:
    waiting = hold(Overloaded("busy"))
    async with talk(store, waiting, "one", "two", on_error=on_error) as (session, model):
        running = asyncio.ensure_future(session.prompt("first"))
        await waiting.until_reached()
        handle = await session.submit("second", when_busy="follow_up")
        await session.follow_up("third")
        waiting.release()
        with pytest.raises(Overloaded):
            await running
        if on_error == "hold":
            await session.wait_idle()  # what is held makes nothing busy
            assert [each.held for each in session.pending_messages()] == [True, True]
            assert await session.queue.run() == 2
        assert (await handle.reply()).text == "one"
        await session.wait_idle()
        assert [text for _, text in await texts(session)] == ["first", "second", "one", "third", "two"]


async def test_held_items_let_prompts_pass(store: Any) -> None:
    waiting = hold(Overloaded("busy"))
    async with talk(store, waiting, "a", "b", "c", on_error="hold") as (session, model):
        running = asyncio.ensure_future(session.prompt("first"))
        await waiting.until_reached()
        await session.follow_up("held")
        waiting.release()
        with pytest.raises(Overloaded):
            await running
        assert (await session.prompt("direct")).text == "a"
        await session.follow_up("new")
        await session.wait_idle()
        assert [each.text for each in session.pending_messages()] == ["held"]
        await session.queue.run()
        await session.wait_idle()
        assert [text for role, text in await texts(session) if role == "user"] == [
            "first",
            "direct",
            "new",
            "held",
        ]


@pytest.mark.req("S0-14")
@pytest.mark.parametrize("how", ["follow_up", "steer", "send_message"])
async def test_idle_it_starts_exactly_one_run(store: Any, how: str) -> None:
    async with talk(store, "answer") as (session, model):
        receipt = await getattr(session, how)("say it once")
        assert receipt.status == "delivered"
        assert receipt.durable is (store is not None)
        await session.wait_idle()
        assert await texts(session) == [("user", "say it once"), ("assistant", "answer")]
        assert len(model.requests) == 1


@pytest.mark.req("S0-19")
@pytest.mark.parametrize("how", ["follow_up", "steer"])
async def test_idle_items_are_settled_by_their_own_outcome(store: Any, how: str) -> None:
    async with talk(store, "fine", Overloaded("no"), "fine again") as (session, model):
        source = "follow_up" if how == "follow_up" else "steer"
        for text in ("good", "bad", "better"):
            receipt = await getattr(session, how)(text)
            assert receipt.status == "delivered"
            await session.wait_idle()
        assert sources(session.pending_messages(include_resolved=True)) == [
            (source, "good", "resolved"), (source, "bad", "failed"), (source, "better", "resolved"),
        ]  # fmt: skip


async def test_what_a_model_raises_becomes_a_model_error_with_its_cause(store: Any) -> None:
    async with talk(store, RuntimeError("odd"), "ok", max_retries=0) as (session, model):
        with pytest.raises(UnknownModelError) as raised:
            await session.prompt("x")
        assert isinstance(raised.value, ModelError)
        assert isinstance(raised.value.__cause__, RuntimeError)
        assert raised.value.code == "unknown"
        assert (await session.prompt("y")).text == "ok"


@pytest.mark.parametrize(
    "bad",
    ["", "  \n\t", [], (), None, 5, b"bytes", {"text": "x"}, [""], ["a", 5], Text(text=""), "\ud800",
     Image(media="image/png"), Text(text=5), Image(media=5, url="u"), "x" * (33 << 20)],
    ids=lambda bad: repr(bad)[:20],
)  # fmt: skip
async def test_a_bad_input_is_refused_and_writes_nothing(bad: Any) -> None:
    async with talk(None, default="ok") as (session, model):
        for ask in (session.prompt, session.submit, session.steer, session.follow_up, session.send_message):
            with pytest.raises(InvalidInput):
                await ask(bad)
        assert list(await session.records()) == []
        assert model.requests == []
        assert (await session.prompt("good")).text == "ok"


async def test_options_that_mean_nothing_are_typed_errors() -> None:
    bad: list[dict[str, Any]] = [
        {"model": 5}, {"model": "no-such-model"}, {"tools": 5}, {"tools": "default?"}, {"tools": [5]}, {"cwd": 5},
        {"retention": "some"}, {"retention": []}, {"on_error": "x"}, {"max_running": 0}, {"max_running": "2"},
        {"max_retries": -1}, {"max_retries": "1"}, {"max_retries": 1.5}, {"turn_limit": 0}, {"turn_limit": 2.5},
        {"turn_timeout": "x"}, {"turn_timeout": float("nan")}, {"system_prompt": 5}, {"approvals": "maybe"},
        {"approval_timeout": "x"}, {"approval_timeout": -1}, {"engine": 5}, {"store": 5}, {"store": ""}, {"id": ""},
        {"id": 5}, {"no_such_option": 1}, {"clock": 5},
    ]  # fmt: skip
    accepted = []
    for options in bad:
        try:
            session = await Session.open(**options)
        except InvalidInput:
            continue
        accepted.append(options)
        await session.aclose()
    assert accepted == []


async def test_a_prompt_without_a_model_says_what_is_usable(store: Any) -> None:
    async with Session.open(store=store) as session:
        for ask in (session.prompt, session.follow_up):
            with pytest.raises(InvalidInput, match="demo"):
                await ask("hello")
        assert list(await session.records()) == []
        assert (await session.prompt("hello", model=ScriptedModel(["given"]))).text == "given"


async def test_parts_of_an_input_are_kept_in_order(store: Any) -> None:
    image = Image(media="image/png", data=b"\x89PNG")
    async with talk(store, "seen", "again") as (session, model):
        await session.prompt(["look", image, "closely"])
        await session.prompt(image)
        first, _, third, _ = await session.transcript()
        assert [part.type if hasattr(part, "type") else type(part).__name__ for part in first.parts] == [
            "Text", "Image", "Text",
        ]  # fmt: skip
        assert third.parts == (image,)
        assert list(model.requests[1].messages)[0].parts == first.parts
        assert len(shape(await session.transcript())) == 4
