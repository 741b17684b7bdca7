"""The table of what a cancel leaves behind, row by row: who cancels, and where."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tertulia.records.errors import ModelConnectionError, PromptCancelled
from tertulia.records.record import Approval, Interruption, Queue, ToolCall, ToolResult
from tertulia.testing import Stream, call, hold
from tertulia.tools.base import tool
from tests.session.kit import World, check_records, messages, reached, record_of, world
from tests.session.stores import GatedStore, committed

pytestmark = [pytest.mark.req("S0-04", "S2-06b", "S2-14b"), pytest.mark.timeout(20)]

Prompt = asyncio.Task[Any]
Stop = Callable[[World, Prompt], Awaitable[None]]


async def by_method(made: World, prompt: Prompt) -> None:
    assert made.conv.cancel_active_prompt().active
    assert made.conv.cancel_active_prompt().dropped == ()


async def by_coroutine(made: World, prompt: Prompt) -> None:
    assert (await made.conv.cancel()).active


async def by_task(made: World, prompt: Prompt) -> None:
    (task,) = made.session.tasks
    made.session.cancel_task(task.task_id)
    assert [each.status for each in made.session.tasks] == ["cancelling"]


async def by_caller(made: World, prompt: Prompt) -> None:
    prompt.cancel()


async def by_close(made: World, prompt: Prompt) -> None:
    await made.conv.close("cancel")


STOPS = (by_method, by_coroutine, by_task, by_caller, by_close)
every_stop = pytest.mark.parametrize("stop", STOPS)


async def ended(prompt: Prompt, stop: Stop) -> None:
    """Ours is PromptCancelled; the caller's own cancellation stays what it was."""
    error = asyncio.CancelledError if stop is by_caller else PromptCancelled
    with pytest.raises(error) as raised:
        async with asyncio.timeout(10):
            await prompt
    assert type(raised.value) is error


async def stopped(made: World, prompt: Prompt, stop: Stop) -> None:
    await stop(made, prompt)
    await ended(prompt, stop)
    async with asyncio.timeout(10):
        await made.conv.wait_idle()
    assert made.conv.id not in {task.conversation_id for task in made.session.tasks}
    check_records(await made.conv.records())


# ── before anything ran ──


@pytest.mark.parametrize("stop", [by_method, by_coroutine, by_caller, by_close])
@pytest.mark.req("S2-06c")
async def test_waiting_for_the_slot(store: GatedStore, stop: Stop) -> None:
    held = hold("first")
    async with world(store, [held]) as made:
        other = await made.session.open_conversation()
        running = asyncio.create_task(other.prompt("in the slot"))
        await reached(held)
        waiting = made.start("waits")
        await made.seen.wait_for("queue")
        await stopped(made, waiting, stop)
        assert {r.type for r in await made.conv.records()} <= {"queue"}
        assert [r.state for r in record_of(await made.conv.records(), Queue)][:1] == ["queued"]
        held.release()
        assert str(await running) == "first"
        await made.verify()


@pytest.mark.parametrize("stop", [by_method, by_task])
async def test_before_the_first_step_of_the_task(store: GatedStore, stop: Stop) -> None:
    async with world(store) as made:
        prompt = made.start("never begins")
        await asyncio.sleep(0)
        assert made.session.tasks
        await stopped(made, prompt, stop)
        assert await made.conv.records() == ()
        assert not made.model.requests
        await made.verify()


async def test_a_queued_item_before_the_first_step_of_its_task(store: GatedStore) -> None:
    held = hold("one")
    async with world(store, [held]) as made:
        first = made.start("one")
        await reached(held)
        second = made.start("two", when_busy="follow_up")
        await made.seen.wait_for("queue")
        held.release()
        await first
        for _ in range(100):
            if made.session.tasks and made.conv._runner.turn.item.text == "two":
                break
            await asyncio.sleep(0)
        made.conv.cancel_active_prompt()
        await ended(second, by_method)
        await made.conv.flush()
        assert [r.state for r in record_of(await made.conv.records(), Queue)][-1] in ("dropped", "delivered")
        assert (await store.open(made.conv.id)).inbox == ()
        await made.verify()


async def test_while_the_history_is_read(store: GatedStore) -> None:
    """A turn of a reopened conversation that never got to its first commit leaves nothing."""
    async with world(store, ["one"]) as made:
        await made.conv.prompt("one")
        id = made.session.id
    async with world(store, id=id) as made:
        prompt = made.start("two")
        for _ in range(3):
            await asyncio.sleep(0)
        made.conv.cancel_active_prompt()
        await ended(prompt, by_method)
        check_records(await made.conv.records())
        assert made.types().count("turn_end") == made.types().count("turn_start")
        await made.conv.prompt("three")
        check_records(await made.conv.records())


# ── while the model answers ──


@every_stop
async def test_before_the_first_token(store: GatedStore, stop: Stop) -> None:
    held = hold("too late")
    async with world(store, [held]) as made:
        prompt = made.start("hello")
        await reached(held)
        await stopped(made, prompt, stop)
        held.release()
        assert made.types() == ["turn_start", "message", "interruption", "turn_end"]
        assert messages(made) == [("user", "hello", "ok")]
        assert made.ends() == [("cancelled", "cancelled")]
        await made.verify()
        texts = [message.text for message in made.model.requests[-1].messages]
        if stop is not by_close:
            assert texts[0] == "hello"
            assert "interrupted" in texts[1]


@every_stop
async def test_in_the_stream(store: GatedStore, stop: Stop) -> None:
    held, ran = hold(), []
    script = [Stream(["half ", "an answer", call("look"), held, " and the rest"])]
    async with world(store, script, tools=[tool(lambda: ran.append(1), name="look")]) as made:
        prompt = made.start("hello")
        await reached(held)
        await stopped(made, prompt, stop)
        held.release()
        assert messages(made) == [("user", "hello", "ok"), ("assistant", "half an answer", "aborted")]
        assert not record_of(await made.conv.records(), ToolCall)
        assert made.ends() == [("cancelled", "cancelled")]
        await made.verify()
        assert not ran
        assert all("half" not in message.text for message in made.model.requests[-1].messages)


# ── while a commit is in flight ──


@every_stop
async def test_the_first_commit_in_flight(store: GatedStore, stop: Stop) -> None:
    async with world(store, ["never shown"]) as made:
        await made.conv.rename("claimed and there")
        store.hold()
        prompt = made.start("hello")
        await store.waiting()
        stopping = asyncio.create_task(stop(made, prompt))
        await asyncio.sleep(0)
        store.let_go()
        await stopping
        await ended(prompt, stop)
        await made.conv.wait_idle()
        assert messages(made) == [("user", "hello", "ok")]
        assert made.ends() == [("cancelled", "cancelled")]
        await made.verify()


@every_stop
async def test_the_calls_in_flight(store: GatedStore, stop: Stop) -> None:
    """What is on its way completes: the calls stand in the log, none of them ran."""
    held, ran = hold([call("look", call_id="a"), call("look", call_id="b")]), []
    async with world(store, [held], tools=[tool(lambda: ran.append(1), name="look")]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("turn_start")
        store.hold()
        held.release()
        await store.waiting()
        stopping = asyncio.create_task(stop(made, prompt))
        await asyncio.sleep(0)
        store.let_go()
        await stopping
        await ended(prompt, stop)
        await made.conv.wait_idle()
        assert made.results() == [("look", "cancelled"), ("look", "cancelled")]
        assert not ran
        await made.verify()


@every_stop
async def test_the_calls_not_taken_yet(store: GatedStore, stop: Stop) -> None:
    """Another commit is in flight, so the cancel comes first: the calls are withdrawn, what was seen is kept."""
    held = hold(["I will look", call("look")])
    async with world(store, [held], tools=[tool(lambda: "seen", name="look")]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("turn_start")
        store.hold()
        label = asyncio.create_task(made.conv.rename("in flight"))
        await store.waiting()
        held.release()
        await made.seen.wait_for("text")
        for _ in range(10):
            await asyncio.sleep(0)
        stopping = asyncio.create_task(stop(made, prompt))
        for _ in range(10):
            await asyncio.sleep(0)
        store.let_go()
        await asyncio.gather(stopping, label)
        await ended(prompt, stop)
        await made.conv.wait_idle()
        assert not record_of(await made.conv.records(), ToolCall)
        assert messages(made)[-1] == ("assistant", "I will look", "aborted")
        await made.verify()


async def test_the_end_in_flight(store: GatedStore) -> None:
    """The turn completes: nothing was active any more, and what is queued is settled all the same."""
    held = hold("the answer")
    async with world(store, [held]) as made:
        prompt = made.start("hello")
        await reached(held)
        later = made.start("later", when_busy="follow_up")
        await made.seen.wait_for("queue")
        await made.conv.flush()
        store.hold()
        held.release()
        await store.waiting()
        result = made.conv.cancel_active_prompt()
        assert (result.active, result.dropped) == (False, ("later",))
        store.let_go()
        assert str(await prompt) == "the answer"
        await ended(later, by_method)
        assert made.ends() == [("completed", None)]
        await made.verify()


async def test_the_end_not_taken_yet(store: GatedStore) -> None:
    held = hold("the answer")
    async with world(store, [held]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("turn_start")
        store.hold()
        label = asyncio.create_task(made.conv.rename("in flight"))
        await store.waiting()
        held.release()
        await made.seen.wait_for("text")
        for _ in range(10):
            await asyncio.sleep(0)
        assert made.conv.cancel_active_prompt().active
        assert made.conv.cancel_active_prompt().active
        store.let_go()
        await label
        await ended(prompt, by_method)
        assert messages(made) == [("user", "hello", "ok"), ("assistant", "the answer", "aborted")]
        assert made.ends() == [("cancelled", "cancelled")]
        await made.verify()


async def test_the_end_has_landed(store: GatedStore) -> None:
    async with world(store, ["the answer"]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("done")
        assert not made.conv.cancel_active_prompt().active
        assert str(await prompt) == "the answer"
        await made.verify()


# ── tools and approvals ──


@every_stop
async def test_in_a_batch_of_tools(store: GatedStore, stop: Stop) -> None:
    """Finished results stay, every other call has one that says cancelled, the model is not asked again."""
    release = asyncio.Event()

    async def look(n: int) -> str:
        if n:
            await release.wait()
        return f"saw {n}"

    script = [["looking", call("look", n=0), call("look", n=1), call("look", n=2)]]
    async with world(store, script, tools=[look]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("tool_result")
        await stopped(made, prompt, stop)
        found = record_of(await made.conv.records(), ToolResult)
        assert [(r.status, r.text) for r in found][:1] == [("ok", "saw 0")]
        assert [r.status for r in found[1:]] == ["cancelled", "cancelled"]
        assert len(made.model.requests) == 1
        assert record_of(await made.conv.records(), Interruption)
        await made.verify()


@every_stop
async def test_a_result_in_flight(store: GatedStore, stop: Stop) -> None:
    release = asyncio.Event()

    async def look(n: int) -> str:
        await (asyncio.sleep(0) if n else release.wait())
        return f"saw {n}"

    async with world(store, [[call("look", n=0), call("look", n=1)]], tools=[look]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("tool_call", count=2)
        store.hold()
        await store.waiting()
        stopping = asyncio.create_task(stop(made, prompt))
        await asyncio.sleep(0)
        store.let_go()
        await stopping
        await ended(prompt, stop)
        await made.conv.wait_idle()
        assert sorted(status for _, status in made.results()) == ["cancelled", "ok"]
        await made.verify()


@every_stop
async def test_while_an_approval_waits(store: GatedStore, stop: Stop) -> None:
    ran: list[str] = []
    script = [[call("look", call_id="a"), call("delete", call_id="b"), call("delete", call_id="c")]]
    async with world(store, script, tools=[tool(lambda: "saw", name="look"), _asking(ran)]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("approval_request", count=2)
        await made.seen.wait_for("tool_result")
        assert len(made.session.approvals.pending()) == 2
        await stopped(made, prompt, stop)
        assert made.session.approvals.pending() == []
        decided = [r for r in record_of(await made.conv.records(), Approval) if r.phase == "decided"]
        assert [r.decision for r in decided] == ["cancelled", "cancelled"]
        assert sorted(made.results()) == [("delete", "cancelled"), ("delete", "cancelled"), ("look", "ok")]
        await made.verify()
        assert not ran
        resolved = made.seen.of("approval_resolved")
        assert len(resolved) == 2


def _asking(ran: list[str]) -> Any:
    async def delete() -> None:
        ran.append("delete")

    return tool(ask=True)(delete)


@every_stop
async def test_while_the_question_is_being_stored(store: GatedStore, stop: Stop) -> None:
    """A question that was written is resolved too: its dialog must go."""
    ran: list[str] = []
    async with world(store, [[call("delete")]], tools=[_asking(ran)]) as made:
        prompt = made.start("hello")
        await made.seen.wait_for("tool_call")
        store.hold()
        await store.waiting()
        assert any(isinstance(r, Approval) for r in committed(store._held[0][0]))
        stopping = asyncio.create_task(stop(made, prompt))
        await asyncio.sleep(0)
        store.let_go()
        await stopping
        await ended(prompt, stop)
        await made.conv.wait_idle()
        phases = [r.phase for r in record_of(await made.conv.records(), Approval)]
        assert phases == ["asked", "decided"]
        assert made.results() == [("delete", "cancelled")]
        await made.verify()
        assert not ran


# ── waits between attempts ──


@every_stop
async def test_in_the_wait_before_a_retry(store: GatedStore, stop: Stop) -> None:
    script = [Stream(["half", ModelConnectionError("gone")]), "never asked for"]
    async with world(store, script, max_retries=1, retry_base_delay=60) as made:
        prompt = made.start("hello")
        await made.clock.asleep()
        await stopped(made, prompt, stop)
        assert len(made.model.requests) == 1
        assert messages(made) == [("user", "hello", "ok")]
        assert made.seen.of("retry")[0].discarded
        made.model._script.clear()
        await made.verify()
