"""Tools and models that misbehave, subscribers that do not read, and calls from where they may not come."""

import asyncio
import threading
from typing import Any

import pytest

from tertulia.models.base import Call, Finished, Said, Thought
from tertulia.records.errors import (
    ModelError,
    PromptCancelled,
    TertuliaError,
    UnknownModelError,
    WrongThread,
)
from tertulia.records.ids import CallId
from tertulia.records.record import Custom, ToolCall, ToolResult
from tertulia.testing import Stream, call, hold
from tertulia.tools.base import tool
from tests.session.kit import World, check_records, messages, reached, record_of, world
from tests.session.stores import GatedStore

pytestmark = [pytest.mark.timeout(20), pytest.mark.req("S2-14b")]

# ── tools ──


class Odd(BaseException):
    """Neither an Exception nor one of the system's own."""


async def results(made: World) -> list[tuple[str, str]]:
    return [(r.status, r.text) for r in record_of(await made.conv.records(), ToolResult)]


@pytest.mark.parametrize("error", [Odd("odd"), SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
@pytest.mark.parametrize("plain", [False, True])
async def test_whatever_a_tool_raises_is_its_result(
    store: GatedStore, error: BaseException, plain: bool
) -> None:
    async def bad() -> None:
        raise error

    def bad_plain() -> None:
        raise error

    async def good() -> str:
        return "fine"

    tools = [tool(bad_plain if plain else bad), good]
    script = [[call(tools[0].name), call("good")], "I see"]
    async with world(store, script, tools=tools) as made:
        assert str(await made.conv.prompt("go")) == "I see"
        assert sorted(status for status, _ in await results(made)) == ["error", "ok"]
        assert made.ends() == [("completed", None)]
        await made.verify()


async def test_a_result_that_cannot_be_kept_elsewhere(store: GatedStore) -> None:
    """Its blob cannot be stored: the result says so."""

    async def long(n: int) -> str:
        return "x" * n

    async def refuse(data: bytes) -> str:
        raise TertuliaError("no room for blobs")

    script = [[call("long", n=100), call("long", n=5)], "I see"]
    async with world(store, script, tools=[long], max_output=10) as made:
        store.put_blob = refuse  # type: ignore[attr-defined]
        assert str(await made.conv.prompt("go")) == "I see"
        found = await results(made)
        assert ("ok", "xxxxx") in found
        assert [status for status, _ in found] == ["ok", "ok"]
        assert any("no room for blobs" in text for _, text in found)
        await made.verify()


@pytest.mark.parametrize("late", [True, False])
async def test_a_tool_that_ignores_its_cancellation(store: GatedStore, late: bool) -> None:
    """It gets a grace period; what it answers then comes too late, and never is a second result."""
    release, swallowed = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await asyncio.wait_for(release.wait(), 10)
            except asyncio.CancelledError:
                swallowed.set()
        return "late"

    async with world(store, [[call("stubborn")]], tools=[stubborn], grace=3) as made:
        prompt = made.start("go")
        await made.seen.wait_for("tool_call")
        for _ in range(10):
            await asyncio.sleep(0)
        made.conv.cancel_active_prompt()
        await asyncio.wait_for(swallowed.wait(), 10)
        await made.clock.asleep()
        if late:
            await made.clock.advance(3)
        else:
            release.set()
        with pytest.raises(PromptCancelled):
            await prompt
        release.set()
        if late:
            await made.seen.wait_for("conversation")
        found = await results(made)
        assert [status for status, _ in found] == (["cancelled"] if late else ["ok"])
        assert made.clock.slept == [3]
        customs = [r.kind for r in record_of(await made.conv.records(), Custom)]
        assert customs == (["late_tool_result"] if late else [])
        await made.verify()


async def test_a_tool_that_blocks_the_loop_and_one_that_never_returns(store: GatedStore) -> None:
    """A cancel does not wait for a thread; the loop goes on after one that blocked it."""
    entered, leave = threading.Event(), threading.Event()

    def never() -> str:
        entered.set()
        leave.wait(20)
        return "at last"

    async def block() -> str:
        leave.wait(0.02)
        return "blocked"

    async with world(store, [[call("block"), call("never")]], tools=[never, block]) as made:
        prompt = made.start("go")
        await made.seen.wait_for("tool_result")
        await asyncio.to_thread(entered.wait, 10)
        made.conv.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await prompt
        assert [status for status, _ in await results(made)] == ["ok", "cancelled"]
        await made.verify()
        leave.set()


# ── models ──


class Endless:
    """Yields as many deltas as it is asked for, and never awaits."""

    name = "endless"

    def __init__(self, event: Any, count: int) -> None:
        self.event, self.count = event, count

    async def stream(self, request: Any) -> Any:
        for _ in range(self.count):
            yield self.event
        yield Said("the end")
        yield Finished()


@pytest.mark.parametrize("event", [Said("x"), Thought("x"), Said("")])
async def test_a_model_that_never_waits_lets_others_run(store: GatedStore, event: Any) -> None:
    async with world(store, model=Endless(event, 64 * 40)) as made:
        steps = 0

        async def other() -> None:
            nonlocal steps
            while not prompt.done():
                steps += 1
                await asyncio.sleep(0)

        prompt = made.start("go")
        await asyncio.gather(prompt, other())
        assert steps >= 40


@pytest.mark.parametrize("event", [Said("x"), Thought("x"), Said("")])
async def test_a_model_that_never_waits_and_never_ends_is_cancelled(store: GatedStore, event: Any) -> None:
    async with world(store, model=Endless(event, 10**9)) as made:
        prompt = made.start("go")
        await made.seen.wait_for("turn_start")
        made.conv.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await asyncio.wait_for(prompt, 10)
        assert made.ends() == [("cancelled", "cancelled")]


async def test_a_model_that_says_nothing(store: GatedStore) -> None:
    async with world(store, [Stream([])]) as made:
        with pytest.raises(ModelError) as raised:
            await made.conv.prompt("go")
        assert raised.value.code == "empty_reply"
        assert messages(made) == [("user", "go", "ok")]
        await made.verify()


async def test_a_model_that_fails_after_it_spoke(store: GatedStore) -> None:
    async with world(store, [Stream(["half ", "a word", ZeroDivisionError("oops")])]) as made:
        with pytest.raises(UnknownModelError) as raised:
            await made.conv.prompt("go")
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert messages(made)[-1] == ("assistant", "half a word", "aborted")
        assert made.ends() == [("failed", "unknown")]
        await made.verify()


async def test_a_model_that_was_cancelled_from_within(store: GatedStore) -> None:
    """Nobody cancelled the prompt: this is a failure of the model."""
    async with world(store, [asyncio.CancelledError()]) as made:
        with pytest.raises(UnknownModelError):
            await made.conv.prompt("go")
        assert made.ends() == [("failed", "unknown")]
        await made.verify()


class Deaf:
    """Goes on answering when it is told to stop."""

    name = "deaf"

    def __init__(self, then: Any) -> None:
        self.then = then
        self.waiting, self.told = asyncio.Event(), 0

    async def stream(self, request: Any) -> Any:
        yield Said("before ")
        try:
            self.waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.told += 1
        if isinstance(self.then, BaseException):
            raise self.then
        yield Said("after")
        yield self.then


@pytest.mark.parametrize("then", [Finished(), Finished(calls=(Call(name="look"),)), ModelError("closed")])
async def test_a_model_that_ignores_its_cancellation(store: GatedStore, then: Any) -> None:
    """Its late answer never lands: nothing it calls runs, and it is not tried again."""
    ran: list[int] = []
    model = Deaf(then)
    look = tool(name="look")(lambda: ran.append(1))
    async with world(store, model=model, tools=[look], max_retries=3, retry_base_delay=0) as made:
        prompt = made.start("go")
        await asyncio.wait_for(model.waiting.wait(), 10)
        made.conv.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await asyncio.wait_for(prompt, 10)
        assert (ran, model.told) == ([], 1)
        assert messages(made) == [("user", "go", "ok"), ("assistant", "before ", "aborted")]
        assert not record_of(await made.conv.records(), ToolCall)
        assert made.ends() == [("cancelled", "cancelled")]


async def test_call_ids_that_repeat(store: GatedStore) -> None:
    async def look(n: int) -> str:
        return f"saw {n}"

    twice = [call("look", call_id="same", n=1), call("look", call_id="same", n=2)]
    async with world(store, [twice, [call("look", call_id="same", n=3)], "done"], tools=[look]) as made:
        await made.conv.prompt("go")
        calls = record_of(await made.conv.records(), ToolCall)
        answers = {r.call_id: r.text for r in record_of(await made.conv.records(), ToolResult)[:2]}
        assert calls[0].call_id == calls[2].call_id == CallId("same") != calls[1].call_id
        assert answers == {calls[0].call_id: "saw 1", calls[1].call_id: "saw 2"}
        await made.verify()


async def test_a_model_that_calls_for_ever(store: GatedStore) -> None:
    async def look() -> str:
        return "seen"

    async with world(store, [["again", call("look")]] * 4, tools=[look], turn_limit=4) as made:
        reply = await made.conv.prompt("go")
        assert (reply.stop_reason, reply.tool_calls, str(reply)) == ("turn_limit", 4, "again")
        await made.verify()


@pytest.mark.parametrize("where", ["said", "result"])
async def test_text_that_cannot_be_stored(store: GatedStore, where: str) -> None:
    async def bad() -> str:
        return "half of a pair: \ud800"

    script = ["half of a pair: \ud800"] if where == "said" else [[call("bad")], "done"]
    async with world(store, script, tools=[bad]) as made:
        outcome = (await asyncio.gather(made.conv.prompt("go"), return_exceptions=True))[0]
        assert not isinstance(outcome, BaseException) or isinstance(outcome, TertuliaError)
        check_records(await made.conv.records())
        made.model._script.clear()
        made.model.add("works")
        assert str(await made.conv.prompt("again")) == "works"


# ── subscribers ──


@pytest.mark.req("S2-14d")
async def test_a_subscriber_that_never_reads(store: GatedStore) -> None:
    """The turn ends all the same, what is kept for it is bounded, and it can read all that is durable afterwards."""
    many = [Stream(["x"] * 5000)]
    async with world(store, many * 3) as made, made.conv.events() as lazy:
        lazy.start()
        for n in range(3):
            await made.conv.prompt(f"{n}")
        for _ in range(400):
            await made.conv.label(f"{made.conv.id}:1", "label")
        buffer = lazy._subscription.buffer
        assert len(buffer) <= 1100
        last = made.conv._log.last
        seen = []
        async with asyncio.timeout(10):
            while not seen or seen[-1].seq != last:
                seen.append(await anext(lazy))
        assert any(event.type == "resync" for event in seen)
        assert [e.seq for e in seen if e.seq is not None] == list(range(1, last + 1))


# ── from elsewhere ──


async def test_the_wrong_thread_and_the_wrong_loop(store: GatedStore) -> None:
    held = hold("one")
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        conv = made.conv

        def elsewhere() -> list[Any]:
            async def asynchronous() -> list[Any]:
                calls = [conv.prompt("no"), conv.steer("no"), conv.follow_up("no"), conv.submit("no")]
                calls += [conv.cancel(), conv.wait_idle(), conv.close(), conv.flush(), conv.queue.run()]
                return await asyncio.gather(*calls, return_exceptions=True)

            found = asyncio.run(asynchronous())
            for method in (conv.cancel_active_prompt, conv.clear_pending_state, conv.pending_messages):
                try:
                    found.append(method())
                except WrongThread as error:
                    found.append(error)
            return found

        found = await asyncio.to_thread(elsewhere)
        assert [type(each) for each in found] == [WrongThread] * len(found)
        held.release()
        assert str(await prompt) == "one"
        await made.verify()
