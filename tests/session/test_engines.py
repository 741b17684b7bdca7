"""Another engine than our own loop: late, twice for one prompt, with tools of its own, and talking between turns."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tertulia import Session
from tertulia.models.base import Call, Finished
from tertulia.records.errors import InternalError, InvalidInput, PromptCancelled
from tertulia.records.parts import Text
from tertulia.records.record import ToolCall, ToolResult, Usage
from tertulia.session import calls, speech
from tertulia.session.engine import Ending, Spoken, Turn
from tertulia.session.inbox import Item
from tertulia.testing import EventRecorder, ScriptedModel


class Scripted:
    """Each input is answered as its text says."""

    name = "scripted"
    capabilities = frozenset({"steer"})

    def __init__(self) -> None:
        self.spoken: asyncio.Queue[Spoken | None] = asyncio.Queue()
        self.steered: list[str] = []
        self.takes_steers = True
        self.release = asyncio.Event()
        self.running = asyncio.Event()
        self.interrupts = 0
        self.closed = 0

    async def run(self, turn: Turn) -> Ending:
        (part,) = turn.input
        assert isinstance(part, Text)
        if part.text == "fail":
            raise RuntimeError("the engine broke")
        speech.begin(turn)
        if part.text == "late":
            await speech.said(turn, "wait for it")
            self.running.set()
            await self.release.wait()
        if part.text == "tools":
            await speech.said(turn, "I run a tool")
            (call,) = await speech.answer(
                turn, Finished(calls=(Call(name="own", args={"n": 1}),)), reported=True
            )
            calls.begin(turn, call)
            self.running.set()
            await self.release.wait()
            calls.finish(turn, call, "ok", (Text(text="own result"),))
            await calls.settled(turn)
            speech.begin(turn)
        if part.text == "twice":
            await self.spoken.put(Spoken(text="and the second result"))
        await speech.said(turn, f"answer to {part.text}")
        return Ending(last=Finished(usage=Usage(output_tokens=3, requests=1)))

    async def steer(self, item: Item) -> bool:
        self.steered.append(item.text)
        return self.takes_steers

    async def interrupt(self) -> None:
        self.interrupts += 1

    async def close(self) -> None:
        self.closed += 1

    async def output(self) -> AsyncIterator[Spoken]:  # type: ignore[override]
        while (spoken := await self.spoken.get()) is not None:
            yield spoken


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()


async def said(session: Session) -> list[tuple[str | None, str]]:
    return [(entry.role or entry.type, entry.text) for entry in await session.transcript()]


async def test_an_engine_needs_no_model_and_its_answer_is_a_reply() -> None:
    engine = Scripted()
    async with Session.open(engine=engine) as session:
        reply = await session.prompt("hello")
        assert str(reply) == "answer to hello"
        assert reply.usage.output_tokens == 3
        start = (await session.records())[0]
        assert (start.type, start.engine, start.model) == ("turn_start", "scripted", "")
    assert engine.closed == 1


async def test_a_late_answer_waits_and_a_cancelled_one_never_lands() -> None:
    engine = Scripted()
    async with Session.open(engine=engine) as session:
        prompt = asyncio.create_task(session.prompt("late"))
        await until(engine.running)
        session.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await prompt
        assert engine.interrupts == 1
        engine.release.set()
        assert str(await session.prompt("next")) == "answer to next"
        assert await said(session) == [
            ("user", "late"), ("assistant", "wait for it"), ("user", "next"), ("assistant", "answer to next"),
        ]  # fmt: skip
        assert [entry.status for entry in await session.transcript()] == ["ok", "aborted", "ok", "ok"]


async def test_a_second_result_comes_in_a_turn_of_its_own_without_a_user_message() -> None:
    engine = Scripted()
    async with Session.open(engine=engine) as session:
        async with EventRecorder(session.root) as seen:
            assert str(await session.prompt("twice")) == "answer to twice"
            await seen.wait_for("done", count=2)
            await session.wait_idle()
        assert await said(session) == [
            ("user", "twice"), ("assistant", "answer to twice"), ("assistant", "and the second result"),
        ]  # fmt: skip
        starts = [record for record in await session.records() if record.type == "turn_start"]
        assert [start.origin for start in starts] == [None, "engine"]
        assert len({event.turn_id for event in seen.of("turn_start")}) == 2


async def test_what_an_engine_says_between_turns_waits_for_the_running_one() -> None:
    engine = Scripted()
    async with Session.open(engine=engine) as session:
        prompt = asyncio.create_task(session.prompt("late"))
        await until(engine.running)
        await engine.spoken.put(Spoken(text="by the way"))
        follow = await session.follow_up("after")
        engine.release.set()
        await prompt
        await session.wait_idle()
        texts = [text for _, text in await said(session)]
        assert texts[1] == "wait for itanswer to late"
        assert set(texts[2:]) == {"by the way", "after", "answer to after"}
        assert follow.status == "queued"


async def test_tools_that_an_engine_ran_by_itself_are_recorded_as_reported() -> None:
    engine = Scripted()
    async with Session.open(engine=engine) as session:
        prompt = asyncio.create_task(session.prompt("tools"))
        await until(engine.running)
        engine.release.set()
        assert str(await prompt) == "answer to tools"
        call, result = (entry for entry in await session.transcript() if entry.type.startswith("tool"))
        assert isinstance(call, ToolCall)
        assert isinstance(result, ToolResult)
        assert call.reported
        assert (result.call_id, result.text, result.status) == (call.call_id, "own result", "ok")


async def test_a_cancel_while_its_tool_runs_leaves_one_result() -> None:
    engine = Scripted()
    async with Session.open(engine=engine) as session:
        async with EventRecorder(session.root) as seen:
            prompt = asyncio.create_task(session.prompt("tools"))
            await seen.wait_for("tool_call")
            session.cancel_active_prompt()
            with pytest.raises(PromptCancelled):
                await prompt
        results = [entry for entry in await session.transcript() if entry.type == "tool_result"]
        assert [(each.status, each.synthetic) for each in results] == [("cancelled", True)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("takes", [True, False])
async def test_a_steer_is_offered_to_an_engine_that_takes_them(takes: bool) -> None:
    engine = Scripted()
    engine.takes_steers = takes
    async with Session.open(engine=engine) as session:
        async with EventRecorder(session.root) as seen:
            prompt = asyncio.create_task(session.prompt("late"))
            await until(engine.running)
            await session.steer("also this")
            if takes:
                await seen.wait_for(lambda event: event.type == "message" and event.text == "also this")  # type: ignore[union-attr]
            engine.release.set()
            await prompt
            await session.wait_idle()
        assert engine.steered == ["also this"]
        starts = [record for record in await session.records() if record.type == "turn_start"]
        assert len(starts) == (1 if takes else 2)
        assert [text for _, text in await said(session)].count("also this") == 1


async def test_what_an_engine_raises_is_a_typed_error_and_the_conversation_goes_on() -> None:
    async with Session.open(engine=Scripted()) as session:
        with pytest.raises(InternalError, match="the engine broke"):
            await session.prompt("fail")
        assert str(await session.prompt("fine")) == "answer to fine"


async def test_each_conversation_has_an_engine_of_its_own() -> None:
    made: list[Scripted] = []

    def make() -> Scripted:
        made.append(Scripted())
        return made[-1]

    async with Session.open(engine=make) as session:
        child = await session.fork()
        await child.prompt("in the child")
        await session.prompt("in the root")
    assert [engine.closed for engine in made] == [1] * len(made)
    assert len(made) == 2


async def test_one_engine_object_serves_one_conversation() -> None:
    async with Session.open(engine=Scripted()) as session:
        with pytest.raises(InvalidInput, match="runs one conversation already"):
            await session.fork()
        assert len(session.conversations) == 1
        assert str(await session.prompt("still there")) == "answer to still there"


async def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is no engine"):
        await Session.open(engine="claude")  # type: ignore[arg-type]


async def test_an_output_that_breaks_off_is_told_and_harms_nothing() -> None:
    class Broken(Scripted):
        async def output(self) -> AsyncIterator[Spoken]:  # type: ignore[override]
            raise RuntimeError("no more")
            yield

    async with Session.open(engine=Broken()) as session:
        async with EventRecorder(session.root) as seen:
            await session.prompt("hello")
            warning: Any = await seen.wait_for("warning")
        assert "no more" in warning.message
        assert str(await session.prompt("again")) == "answer to again"


async def test_our_own_loop_still_wants_a_model() -> None:
    async with Session.open(model=ScriptedModel(["fine"])) as session:
        assert str(await session.prompt("x")) == "fine"
