"""Several conversations of one Session: isolation, the slot, order, overrides, tasks, and many of them."""

import asyncio
import gc
import threading
import time
import weakref
from typing import Any

import pytest

from tertulia import Conversation, Session, ToolContext
from tertulia.records.errors import (
    ConversationBusy,
    Overloaded,
    PromptCancelled,
    StoragePolicyViolation,
    TertuliaError,
    TurnNotFound,
    WrongThread,
)
from tertulia.testing import EventRecorder, ScriptedModel, Stream, call, hold
from tests.scenarios.kit import add, asked, shape, talk, texts


@pytest.mark.req("S2-01")
async def test_conversations_share_the_session_and_nothing_else(store: Any) -> None:
    other = ScriptedModel(default="from the other model")
    async with talk(store, default="root", tools=[add]) as (session, model), EventRecorder(session) as seen:
        one = await session.open_conversation(model=other, tools=[], retention="none")
        two = await session.open_conversation()
        await session.prompt("r")
        await one.prompt("1")
        await two.prompt("2")
        assert await texts(session) == [("user", "r"), ("assistant", "root")]
        assert await texts(one) == [("user", "1"), ("assistant", "from the other model")]
        assert await texts(two) == [("user", "2"), ("assistant", "root")]
        assert ([d.name for d in one.tool_descriptors()], len(two.tool_descriptors())) == ([], 1)
        two.unregister("add")
        assert list(session.active_tool_names()) == ["add"]
        assert asked(model.requests[1]) == [("user", "2")]
        for each in (session.root, one, two):
            await seen.wait_for(lambda e, each=each: e.type == "done" and e.conversation_id == each.id)  # type: ignore[misc]
        assert {e.session_id for e in seen.events} == {session.id}
        ids = session.id, one.id
    if store is not None:
        async with Session.open(id=ids[0], store=store) as session:
            assert list(await session.conversation(ids[1]).transcript()) == []
            assert len(await session.transcript()) == 2


@pytest.mark.req("S2-01")
async def test_a_session_with_its_root_alone_is_a_plain_conversation(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await session.prompt("x")
        assert [each.id for each in session.conversations] == [session.root.id]
        assert shape(await session.transcript()) == shape(await session.root.transcript())


@pytest.mark.req("S2-06b", "S2-06c")
async def test_one_turn_runs_at_a_time_first_come_first_served(store: Any) -> None:
    running: list[str] = []
    order: list[str] = []

    def answer(request: Any) -> Any:
        async def play() -> str:
            name = request.messages[-1].text
            running.append(name)
            order.append(name)
            assert len(running) == 1
            for _ in range(3):
                await asyncio.sleep(0)
            running.remove(name)
            return name

        return play()

    waiting = hold("first")
    async with talk(store, waiting, default=answer) as (session, _):
        conversations = [session.root, *[await session.open_conversation() for _ in range(4)]]
        first = asyncio.ensure_future((await session.open_conversation()).prompt("holds the slot"))
        await waiting.until_reached()
        prompts = []
        for n, conversation in enumerate(conversations):
            prompts.append(asyncio.ensure_future(conversation.prompt(f"{n}a")))
            await asyncio.sleep(0)
            prompts.append(asyncio.ensure_future(conversation.prompt(f"{n}b", when_busy="follow_up")))
            await asyncio.sleep(0)
        waiting.release()
        await first
        assert [reply.text for reply in await asyncio.gather(*prompts)] == [
            f"{n}{x}" for n in range(5) for x in "ab"
        ]
        # Each conversation goes to the end of the line after each turn.
        assert order == [f"{n}a" for n in range(5)] + [f"{n}b" for n in range(5)]


@pytest.mark.req("S2-06b")
async def test_max_running_lets_several_run(store: Any) -> None:
    holds = [hold(str(n)) for n in range(3)]
    async with talk(store, *holds, max_running=2) as (session, _):
        conversations = [await session.open_conversation() for _ in range(3)]
        prompts = [asyncio.ensure_future(each.prompt("x")) for each in conversations]
        await asyncio.gather(holds[0].until_reached(), holds[1].reached.wait())
        assert len(session.tasks) == 2
        assert not holds[2].reached.is_set()
        holds[1].release()
        await holds[2].until_reached()
        for each in holds:
            each.release()
        assert [reply.text for reply in await asyncio.gather(*prompts)] == ["0", "1", "2"]


@pytest.mark.req("S2-06b")
async def test_sessions_run_in_parallel(tmp_path: Any) -> None:
    store = tmp_path / "s.db"
    holds = [hold(), hold()]
    async with talk(store, holds[0]) as (one, _), talk(store, holds[1]) as (two, _):
        prompts = [asyncio.ensure_future(each.prompt("x")) for each in (one, two)]
        await asyncio.gather(*(each.until_reached() for each in holds))
        for each in holds:
            each.release()
        await asyncio.gather(*prompts)


@pytest.mark.req("S2-06a")
async def test_a_prompt_that_waited_sees_what_was_written_meanwhile(store: Any) -> None:
    waiting = hold("first answer")
    async with talk(store, waiting, "second answer") as (session, model):
        running = asyncio.ensure_future(session.prompt("first"))
        await waiting.until_reached()
        queued = asyncio.ensure_future(session.prompt("second", when_busy="follow_up"))
        await asyncio.sleep(0)
        session.register(add)
        waiting.release()
        await asyncio.gather(running, queued)
        assert asked(model.requests[1]) == [
            ("user", "first"),
            ("assistant", "first answer"),
            ("user", "second"),
        ]
        assert [spec.name for spec in model.requests[1].tools] == ["add"]


@pytest.mark.req("S2-06c", "S2-06b")
@pytest.mark.parametrize("how", ["cancel", "task", "close"])
async def test_a_prompt_that_waits_for_the_slot_can_give_up(store: Any, how: str) -> None:
    waiting = hold("ok")
    async with talk(store, waiting, default="ok") as (session, model):
        one, two, three = [await session.open_conversation() for _ in range(3)]
        running = asyncio.ensure_future(one.prompt("1"))
        await waiting.until_reached()
        waits = asyncio.ensure_future(two.prompt("2"))
        last = asyncio.ensure_future(three.prompt("3"))
        await asyncio.sleep(0)
        if how == "cancel":
            assert two.cancel_active_prompt().active
        elif how == "task":
            waits.cancel()
        else:
            await two.close()
        with pytest.raises(asyncio.CancelledError if how == "task" else PromptCancelled):
            await waits
        assert not two.busy
        waiting.release()
        await asyncio.gather(running, last)
        assert list(await two.transcript()) == []
        assert len(model.requests) == 2
        assert session._shared.scheduler._free == 1
        if how != "close":
            assert (await two.prompt("again")).text == "ok"


@pytest.mark.req("S2-06b")
@pytest.mark.parametrize("end", ["error", "cancel", "close", "timeout", "delete"])
async def test_the_slot_is_free_after_every_end(store: Any, end: str) -> None:
    waiting = hold(Overloaded("no"))
    async with talk(store, waiting, "next") as (session, _):
        conversation = await session.open_conversation()
        options: dict[str, Any] = {"turn_timeout": 0.01} if end == "timeout" else {}
        running = asyncio.ensure_future(conversation.prompt("x", **options))
        await waiting.until_reached()
        if end == "error":
            waiting.release()
        elif end == "cancel":
            conversation.cancel_active_prompt()
        elif end == "close":
            await conversation.close()
        elif end == "delete":
            await session.delete_conversation(conversation.id)
        with pytest.raises(TertuliaError):
            await running
        assert (await session.prompt("y")).text == "next"
        assert session.tasks == ()


@pytest.mark.req("S2-06c")
async def test_a_prompt_from_inside_a_tool_never_deadlocks(store: Any) -> None:
    found: list[str] = []

    async def inside(context: ToolContext) -> str:
        other = await session.open_conversation()
        for ask in (
            lambda: session.prompt("a", when_busy="follow_up"), lambda: other.prompt("b"),
            session.wait_idle, other.wait_idle, lambda: handle_of(other),
        ):  # fmt: skip
            try:
                await ask()
            except ConversationBusy as error:
                found.append(error.code)
        return str(await context.prompt("sub question"))

    async def handle_of(other: Conversation) -> Any:
        return await (await other.submit("c", when_busy="follow_up")).reply()

    def threaded(context: ToolContext) -> str:
        try:
            context.portal.call(session.prompt, "x", when_busy="follow_up")
        except ConversationBusy:
            return str(context.portal.call(context.prompt, "from a thread"))
        return "?"

    script = [[call("inside")], "sub answer", [call("threaded")], "threaded answer", "end"]
    async with talk(store, *script, tools=[inside, threaded], default="left over") as (session, model):
        assert (await session.prompt("go")).text == "end"
        assert found == ["conversation_busy"] * 5
        results = [e.text for e in await session.transcript() if e.type == "tool_result"]
        assert results == ["sub answer", "threaded answer"]
        assert asked(model.requests[1]) == [("user", "sub question")]
        for each in session.conversations:
            await each.wait_idle()


@pytest.mark.req("S2-06c")
async def test_a_sub_conversation_is_set_up_like_the_one_that_asks(store: Any) -> None:
    async def ask(context: ToolContext) -> str:
        reply = await context.prompt("sub")
        with pytest.raises(TertuliaError):
            await context.prompt("")
        with pytest.raises(TertuliaError):
            await context.prompt("x", nonsense=1)
        return str(reply)

    own = ScriptedModel([[call("ask")], "own sub answer", "end"])
    async with Session.open(store=store) as session:
        conversation = await session.open_conversation(model=own, tools=[ask], system_prompt="Be brief.")
        assert (await conversation.prompt("x")).text == "end"
        assert [request.system for request in own.requests] == ["Be brief."] * 3
        assert "own sub answer" in [text for _, text in await texts(conversation)]


@pytest.mark.req("S2-03c")
async def test_running_tasks_are_listed_and_can_be_cancelled_one_by_one(store: Any) -> None:
    holds = [hold(), hold()]
    async with talk(store, *holds, "queued ran", max_running=2) as (session, _):
        other = await session.open_conversation()
        one = asyncio.ensure_future(session.prompt("1"))
        await holds[0].until_reached()
        two = asyncio.ensure_future(other.prompt("2"))
        await holds[1].until_reached()
        queued = asyncio.ensure_future(session.prompt("behind", when_busy="follow_up"))
        await asyncio.sleep(0)
        first, second = session.tasks
        assert (first.conversation_id, second.conversation_id) == (session.root.id, other.id)
        assert first.status == "running"
        assert 0 < first.started_at <= second.started_at
        session.cancel_task(first.task_id)
        with pytest.raises(PromptCancelled):
            await one
        assert (await queued).text == "queued ran"
        assert [task.task_id for task in session.tasks] == [second.task_id]
        holds[1].release()
        reply = await two
        assert reply.turn_id == second.task_id
        assert session.tasks == ()
        for id in (first.task_id, second.task_id, "turn_none"):
            with pytest.raises(TurnNotFound):
                session.cancel_task(id)


@pytest.mark.req("S2-04b")
async def test_a_request_shares_the_history_and_copies_none(store: Any) -> None:
    async with talk(None, default="ok") as (session, model):
        for n in range(50):
            await session.prompt(f"m{n}")
        early, late = model.requests[10].messages, model.requests[49].messages
        assert len(late) == 99
        assert all(one is other for one, other in zip(early, list(late)[: len(early) - 1], strict=False))
        assert early._settled is late._settled  # type: ignore[attr-defined]
        assert len(asked(model.requests[10])) == 21  # what came later shows in no earlier request


@pytest.mark.req("S2-04c")
async def test_history_then_delivered_input_then_the_turns_own(store: Any) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        inside.set()
        await gate.wait()
        return "ok"

    async with talk(store, "old answer", [call("slow")], "end", tools=[slow]) as (session, model):
        await session.prompt("old")
        running = asyncio.ensure_future(session.prompt("own input"))
        async with asyncio.timeout(10):
            await inside.wait()
        await session.steer("steered")
        gate.set()
        await running
        said = [text for role, text in asked(model.requests[2]) if role == "user"]
        assert said == ["old", "own input", "steered"]
        assert asked(model.requests[1]) == [
            ("user", "old"),
            ("assistant", "old answer"),
            ("user", "own input"),
        ]


@pytest.mark.req("S2-11a")
async def test_overrides_hold_for_one_turn(store: Any) -> None:
    other = ScriptedModel([[call("sub")], "other"])

    async def sub() -> str:
        return "from sub"

    async with talk(store, default="usual", tools=[add]) as (session, model):
        assert (await session.prompt("a", model=other, tools=[sub])).text == "other"
        assert [spec.name for spec in other.requests[0].tools] == ["sub"]
        assert (await session.prompt("b")).text == "usual"
        assert [spec.name for spec in model.requests[0].tools] == ["add"]
        assert ("user", "a") in asked(model.requests[0])
        await session.prompt("secret words", retention="none")
        with pytest.raises(TertuliaError):
            await session.prompt("c", nonsense=1)
        with pytest.raises(TertuliaError):
            await session.prompt("c", model=5)
        strict = await session.open_conversation(retention="headers_only")
        with pytest.raises(StoragePolicyViolation):
            await strict.prompt("c", retention="full")
        await session.prompt("d")
        assert ("user", "secret words") in asked(model.requests[-1])  # live memory keeps it
        id, count = session.id, len(await session.transcript())
    if store is not None:
        async with Session.open(id=id, store=store) as session:
            assert "secret words" not in str(await session.transcript())
            assert [text for role, text in await texts(session) if role == "user"] == ["a", "b", "d"]
            assert count == len(await session.transcript()) + 2


@pytest.mark.req("S2-14a")
async def test_rapid_open_message_close(store: Any) -> None:
    running = 0

    def answer(request: Any) -> Any:
        async def play() -> str:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1
            return "ok"

        return play()

    async def one(n: int) -> None:
        conversation = await session.open_conversation()
        prompt = asyncio.ensure_future(conversation.prompt("x"))
        if n % 3:
            await prompt
        elif n % 2:
            await asyncio.sleep(0)
        await session.close_conversation(conversation.id)
        await asyncio.gather(prompt, return_exceptions=True)

    async with talk(store, default=answer) as (session, _):
        count = 1000 if store is None else 100
        for start in range(0, count, 50):
            await asyncio.gather(*(one(n) for n in range(start, start + 50)))
        assert session._shared.scheduler._free == 1
        assert session.tasks == ()
        assert len(session.conversations) == 1


@pytest.mark.req("S2-03b")
async def test_a_thousand_conversations_leave_nothing() -> None:
    refs: list[weakref.ref[Any]] = []
    tasks, threads = len(asyncio.all_tasks()), threading.active_count()
    async with talk(None, default="ok", tools=[add]) as (session, model):
        waiting: Any = None
        for n in range(1000):
            conversation = await session.open_conversation()
            refs.append(weakref.ref(conversation))
            if n % 10 == 0:
                waiting = hold()
                model.add(waiting)
                prompt = asyncio.ensure_future(conversation.prompt("x"))
                await waiting.until_reached()
                conversation.cancel_active_prompt()
                await asyncio.gather(prompt, return_exceptions=True)
            else:
                await conversation.prompt("x")
            model.requests.clear()
            await session.close_conversation(conversation.id)
        del conversation, prompt, waiting
        await asyncio.sleep(0)
        gc.collect()
        assert sum(ref() is not None for ref in refs) == 0
        shared = session._shared
        assert (len(shared.logs), len(shared.owner.conversations), len(shared.turns)) == (1, 1, 0)
        assert shared.bus._of == {}
    assert (len(asyncio.all_tasks()), threading.active_count()) == (tasks, threads)


@pytest.mark.req("S2-03b")
async def test_a_thousand_sessions_leave_nothing() -> None:
    refs: list[weakref.ref[Any]] = []
    tasks, threads = len(asyncio.all_tasks()), threading.active_count()
    for _ in range(1000):
        async with Session.open(model=ScriptedModel(["ok"])) as session:
            refs.append(weakref.ref(session.root))
            await session.prompt("x")
    del session
    await asyncio.sleep(0)
    gc.collect()
    assert sum(ref() is not None for ref in refs) == 0
    assert (len(asyncio.all_tasks()), threading.active_count()) == (tasks, threads)


@pytest.mark.req("S2-14e")
async def test_a_script_run_twice_gives_the_same(store: Any, tmp_path: Any) -> None:
    async def run(place: Any) -> tuple[Any, Any]:
        script = ["one", ["two", call("add", a=1, b=2, call_id="c1"), call("nope", call_id="c2")], "three"]
        async with talk(place, *script, Overloaded("x"), tools=[add]) as (session, _):
            async with EventRecorder(session) as seen:
                await session.prompt("a")
                await session.prompt("b")
                with pytest.raises(Overloaded):
                    await session.prompt("c")
                await seen.wait_for("done", count=3)
            return shape(await session.transcript()), seen.types()

    other = {"memory": None, "sqlite": str(tmp_path / "2.db"), "jsonl": f"jsonl:{tmp_path / '2'}"}
    again = other["memory" if store is None else "jsonl" if store.startswith("jsonl") else "sqlite"]
    assert await run(store) == await run(again)


async def test_a_session_belongs_to_its_loop_and_thread(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await session.prompt("x")
        failures: list[str] = []

        def elsewhere() -> None:
            async def use() -> None:
                for ask in (
                    lambda: session.prompt("y"), lambda: session.steer("y"), session.fork, session.aclose,
                    session.root.close, session.wait_idle, session.cancel, session.open_conversation,
                ):  # fmt: skip
                    try:
                        await asyncio.wait_for(ask(), 5)
                    except WrongThread:
                        failures.append("loop")

            for call_it in (
                session.cancel_active_prompt, session.pending_messages, session.pending_message_count,
                session.clear_pending_state, session.clear_pending_history, lambda: session.register(add),
                lambda: session.unregister("x"), session.tool_descriptors, session.queue.list,
                lambda: session.cancel_task("x"),
            ):  # fmt: skip
                try:
                    call_it()
                except WrongThread:
                    failures.append("thread")
            asyncio.run(use())

        await asyncio.to_thread(elsewhere)
        assert failures == ["thread"] * 10 + ["loop"] * 8
        assert (await session.prompt("still mine")).text == "ok"


async def test_a_long_answer_lets_others_run(store: Any) -> None:
    pieces = ["x"] * 2000
    async with talk(store, Stream(pieces)) as (session, _):
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        started = time.monotonic()
        reply = await session.prompt("go")
        ticking.cancel()
        assert len(reply.text) == 2000
        assert ticks >= 2000 // 64
        assert time.monotonic() - started < 30
