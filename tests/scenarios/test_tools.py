"""Tools at work: in parallel, failing, in threads, with a context, late, huge, and what a model gets to read of it."""

import asyncio
import threading
import time
from typing import Any

import pytest

from tertulia import Session, Tool, ToolContext
from tertulia.models.base import Call
from tertulia.records.errors import PromptCancelled
from tertulia.records.ids import CallId
from tertulia.records.parts import Data, Image, Text
from tertulia.testing import EventRecorder, FakeClock, ScriptedModel, call, hold
from tests.scenarios.kit import add, asked, talk


async def results(session: Any) -> list[tuple[str, str, str]]:
    return [(e.name, e.status, e.text) for e in await session.transcript() if e.type == "tool_result"]


async def test_calls_of_one_answer_run_at_once_and_are_recorded_as_they_finish(store: Any) -> None:
    gates = {name: asyncio.Event() for name in "abc"}
    started: set[str] = set()
    all_in = asyncio.Event()

    async def work(name: str) -> str:
        started.add(name)
        if len(started) == 3:
            all_in.set()
        await gates[name].wait()
        if name == "b":
            raise ValueError("b is broken")
        return f"result {name}"

    script = [[call("work", name=name, call_id=name) for name in "abc"], "end"]
    async with talk(store, *script, tools=[work]) as (session, model), EventRecorder(session) as seen:
        running = asyncio.ensure_future(session.prompt("go"))
        async with asyncio.timeout(10):
            await all_in.wait()
        calls = [e.call_id for e in await session.transcript() if e.type == "tool_call"]
        assert calls == ["a", "b", "c"]  # stored before any of them ran
        for count, name in enumerate("cba", 1):
            gates[name].set()
            await seen.wait_for("tool_result", count)
        await running
        assert await results(session) == [
            ("work", "ok", "result c"), ("work", "error", "ValueError: b is broken"), ("work", "ok", "result a"),
        ]  # fmt: skip
        # For the model they stand in the order of its calls, in one message.
        tool_message = list(model.requests[1].messages)[-1]
        assert [result.call_id for result in tool_message.results] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("given", "says"),
    [({"a": 1}, "`b`"), ({"a": "x", "b": 2}, "`a`"), ({"a": 1, "b": 2, "c": 3}, "`c`"), ({"a": None, "b": 1}, "`a`")],
)  # fmt: skip
async def test_arguments_that_do_not_fit_name_the_field(given: dict[str, Any], says: str) -> None:
    async with talk(None, [call("add", **given)], "end", tools=[add]) as (session, _):
        await session.prompt("go")
        ((name, status, text),) = await results(session)
        assert (name, status) == ("add", "error")
        assert says in text


async def test_arguments_that_are_no_object_are_an_error(store: Any) -> None:
    async with talk(store, [Call(name="add", invalid="{oops")], "end", tools=[add]) as (session, _):
        await session.prompt("go")
        ((_, status, text),) = await results(session)
        assert status == "error"
        assert "{oops" in text


async def test_a_schema_given_by_hand_is_checked(store: Any) -> None:
    async def look(**args: Any) -> str:
        return str(args)

    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    given = Tool(name="look", description="Look.", parameters=schema, fn=look)
    script = [[call("look"), call("look", path=5), call("look", path="x")], "end"]
    async with talk(store, *script, tools=[given]) as (session, model):
        await session.prompt("go")
        assert [status for _, status, _ in await results(session)] == ["error", "error", "ok"]
        assert model.requests[0].tools[0].parameters == schema


@pytest.mark.parametrize(
    ("value", "status", "text"),
    [
        (None, "ok", ""), ("plain", "ok", "plain"), ({"a": [1]}, "ok", '{"a":[1]}'), (7, "ok", "7"),
        (Text(text="part"), "ok", "part"), ([Text(text="a"), "b"], "ok", "a\nb"), (object(), "error", "JSON"),
        ({1: {2: object()}}, "error", "JSON"), (Data(name="chart_data", value=object()), "error", "JSON"),
        ("lone \ud800 surrogate", "ok", "lone"), (Text(text="\udfff!"), "ok", "!"), (Text(text=5), "error", ""),  # type: ignore[arg-type]
        (float("nan"), "ok", "null"), (Image(media="image/png", data=b"x"), "ok", "[image]"),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
async def test_what_a_tool_returns(value: Any, status: str, text: str, tmp_path: Any) -> None:
    async def give() -> Any:
        return value

    async with talk(tmp_path / "s.db", [call("give")], "end", "more", tools=[give]) as (session, _):
        assert (await session.prompt("go")).text == "end"
        ((_, found, said),) = await results(session)
        assert found == status
        assert text in said
        assert (await session.prompt("on")).text == "more"
        id = session.id
    async with Session.open(id=id, store=tmp_path / "s.db") as session:
        assert len(await results(session)) == 1


@pytest.mark.parametrize("retention", ["full", "none"])
async def test_a_huge_output_is_cut_and_kept_whole_in_a_blob(store: Any, retention: str) -> None:
    size = 100_000_000 if store is None else 20_000_000

    async def huge() -> str:
        return "h" * (size - 4) + "tail"

    async with talk(store, [call("huge")], "end", tools=[huge], retention=retention) as (session, model):
        await session.prompt("go")
        ((_, status, text),) = await results(session)
        assert status == "ok"
        assert len(text) < 60_000
        assert text.startswith("hhh")
        assert "left out" in text
        assert "tail" in text
        assert len(list(model.requests[1].messages)[-1].text) < 60_000
        entry: Any = (await session.transcript())[2]
        assert bool(entry.refs) is (retention == "full")
        if entry.refs:
            assert len(await session._shared.store.get_blob(entry.refs[0])) == size


async def test_a_strict_turn_leaves_no_blob(store: Any) -> None:
    async def huge() -> str:
        return "s" * 200_000

    async def keep(context: ToolContext) -> str:
        return await context.put_blob(b"bytes")

    script = [[call("huge"), call("keep")], "end"]
    async with talk(store, *script, tools=[huge, keep]) as (session, _):
        await session.prompt("go", retention="none")
        entries: list[Any] = [e for e in await session.transcript() if e.type == "tool_result"]
        assert {e.name: e.status for e in entries} == {"huge": "ok", "keep": "error"}
        assert [e.refs for e in entries] == [(), ()]


async def test_repeated_and_missing_call_ids(store: Any) -> None:
    script = [
        [call("add", a=1, b=1, call_id="x"), call("add", a=2, b=2, call_id="x"), call("add", a=3, b=3, call_id="")],
        [call("add", a=4, b=4, call_id="x")], "end", [call("add", a=5, b=5, call_id="x")], "end",
    ]  # fmt: skip
    async with talk(store, *script, tools=[add]) as (session, model):
        await session.prompt("go")
        await session.prompt("again")
        transcript = await session.transcript()
        calls = [e for e in transcript if e.type == "tool_call"]
        assert len({e.call_id for e in calls[:3]}) == 3
        assert sorted(text for _, _, text in await results(session)) == ["10", "2", "4", "6", "8"]
        last = [m for m in model.requests[-1].messages if m.results]
        assert [[r.text for r in m.results] for m in last] == [["2", "4", "6"], ["8"], ["10"]]


async def test_a_tool_is_told_about_its_call(store: Any) -> None:
    told: list[Any] = []

    async def look(context: ToolContext, n: int = 1) -> str:
        told.append((context.session_id, context.conversation_id, context.call_id, context.cwd))
        context.progress({"half": n})
        context.progress("done")
        await asyncio.sleep(0)
        return await context.put_blob(b"payload")

    script = [[call("look", call_id="c9")], "end"]
    async with (
        talk(store, *script, tools=[look], cwd="/tmp") as (session, model),
        EventRecorder(session) as seen,
    ):
        reply = await session.prompt("go")
        await seen.wait_for("done")
        assert told == [(session.id, session.root.id, "c9", "/tmp")]
        assert "context" not in str(model.requests[0].tools[0].parameters)
        progress = seen.of("tool_progress")
        assert [e.data["progress"] for e in progress] == [{"half": 1}, "done"]
        assert {(e.turn_id, e.data["tool_call_id"]) for e in progress} == {(reply.turn_id, "c9")}
        entry: Any = next(e for e in await session.transcript() if e.type == "tool_result")
        assert entry.refs == (entry.text,)


async def test_a_plain_function_runs_in_a_thread_and_reaches_back(store: Any) -> None:
    where: list[Any] = []
    release = threading.Event()

    def blocking(context: ToolContext) -> str:
        where.append(threading.current_thread())
        context.progress("from the thread")
        assert release.wait(10)
        count = context.portal.call(count_entries)
        return f"{count} entries"

    async def count_entries() -> int:
        return len(await session.transcript())

    script = [[call("blocking"), call("quick")], "end"]

    async def quick() -> str:
        release.set()  # while the other blocks, the loop runs
        return "quick"

    async with talk(store, *script, tools=[blocking, quick]) as (session, _), EventRecorder(session) as seen:
        await session.prompt("go")
        assert where[0] is not threading.main_thread()
        assert ("blocking", "ok") in [(name, status) for name, status, _ in await results(session)]
        await seen.wait_for("tool_progress")


async def test_what_plain_functions_raise(store: Any) -> None:
    def fails() -> str:
        raise KeyError("missing")

    def leaves() -> str:
        raise SystemExit(3)

    def later() -> Any:
        async def answer() -> str:
            return "awaited"

        return answer()

    script = [[call("fails"), call("leaves"), call("later")], "end"]
    async with talk(store, *script, tools=[fails, leaves, later]) as (session, _):
        assert (await session.prompt("go")).text == "end"
        found = {name: (status, text) for name, status, text in await results(session)}
        assert found["fails"] == ("error", "KeyError: 'missing'")
        assert found["leaves"][0] == "error"
        assert found["later"] == ("ok", "awaited")


async def test_a_tool_that_is_cancelled_from_within_is_an_error(store: Any) -> None:
    async def gives_up() -> str:
        raise asyncio.CancelledError

    async with talk(store, [call("gives_up"), call("add", a=1, b=1)], "end", tools=[gives_up, add]) as (
        session,
        _,
    ):
        assert (await session.prompt("go")).text == "end"
        assert {(name, status) for name, status, _ in await results(session)} == {
            ("gives_up", "error"),
            ("add", "ok"),
        }


async def test_a_late_result_is_no_second_result(store: Any) -> None:
    entered, leave, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
    clock = FakeClock()

    async def stubborn() -> str:
        entered.set()
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue
        left.set()
        return "too late"

    async with talk(store, [call("stubborn")], "next", tools=[stubborn], clock=clock, grace=2.0) as (
        session,
        _,
    ):
        running = asyncio.ensure_future(session.prompt("go"))
        async with asyncio.timeout(10):
            await entered.wait()
        session.cancel_active_prompt()
        await clock.asleep()
        await clock.advance(3)
        with pytest.raises(PromptCancelled):
            await running
        assert [(name, status) for name, status, _ in await results(session)] == [("stubborn", "cancelled")]
        async with EventRecorder(session) as seen:
            leave.set()
            async with asyncio.timeout(10):
                await left.wait()
            await seen.wait_for("conversation")
        await session.flush()
        kinds = [r.kind for r in await session.records() if r.type == "custom"]
        assert kinds == ["late_tool_result"]
        assert len(await results(session)) == 1
        assert (await session.prompt("on")).text == "next"


async def test_results_that_cannot_be_stored_end_the_turn_with_every_call_answered(store: Any) -> None:
    """The store refuses a blob: the result says so, and the log stays whole."""

    async def huge() -> str:
        return "x" * 200_000

    async with talk(store, [call("huge"), call("add", a=1, b=1)], "end", tools=[huge, add]) as (session, _):

        async def refuse(data: bytes) -> str:
            raise OSError("no room")

        session._shared.store.put_blob = refuse  # type: ignore[method-assign]
        reply = await session.prompt("go")
        assert reply.text == "end"
        found = {name: (status, text) for name, status, text in await results(session)}
        assert found["add"] == ("ok", "2")
        assert found["huge"][0] in ("ok", "error")
        assert (await session.stats()).tool_results == 2


async def test_arguments_of_odd_kinds_reach_the_tool(store: Any) -> None:
    got: list[Any] = []

    async def take(
        items: list[int], table: dict[str, float], flag: bool = False, text: str | None = None
    ) -> str:
        got.append((items, table, flag, text))
        return "ok"

    script = [
        [call("take", items=[1, 2], table={"a": 1}), call("take", items=[], table={}, flag=True, text="é")],
        "end",
    ]
    async with talk(store, *script, tools=[take]) as (session, _):
        await session.prompt("go")
        assert got == [([1, 2], {"a": 1.0}, False, None), ([], {}, True, "é")]


async def test_many_calls_cost_few_commits(store: Any) -> None:
    async with talk(store, [call("add", a=n, b=0) for n in range(50)], "end", tools=[add]) as (session, _):
        started = time.monotonic()
        await session.prompt("go")
        assert session.root._journal.commits <= 3 + 49
        assert len(await results(session)) == 50
        assert time.monotonic() - started < 20


async def test_memory_stays_flat(store: Any) -> None:
    """What runs leaves nothing but its records."""
    import gc

    waiting = hold()
    async with talk(store, default=[call("add", a=1, b=1)], tools=[add], turn_limit=1) as (session, model):
        for n in range(30):
            await session.follow_up(f"n{n}")
        await session.wait_idle()
        model.requests.clear()
        gc.collect()
        before = len(asyncio.all_tasks()), threading.active_count(), kinds()
        for n in range(100):
            await session.prompt(f"p{n}")
        model.requests.clear()
        gc.collect()
        after = kinds()
        assert (len(asyncio.all_tasks()), threading.active_count()) == before[:2]
        for name in ("Turn", "Item", "Put", "_Batch", "CallContext", "Future", "Task"):
            assert after.get(name, 0) <= before[2].get(name, 0) + 2, name
        assert waiting is not None


def kinds() -> dict[str, int]:
    import gc

    found: dict[str, int] = {}
    for each in gc.get_objects():
        name = type(each).__name__
        found[name] = found.get(name, 0) + 1
    return found


async def test_call_ids_of_the_model_are_kept(store: Any) -> None:
    async with talk(
        store, [Call(name="add", args={"a": 1, "b": 2}, id=CallId("toolu_1"))], "end", tools=[add]
    ) as (
        session,
        model,
    ):
        await session.prompt("go")
        assert [e.call_id for e in await session.transcript() if e.type in ("tool_call", "tool_result")] == [
            "toolu_1", "toolu_1",
        ]  # fmt: skip
        assert asked(model.requests[1])[-1] == ("tool", "3")
        assert isinstance(model, ScriptedModel)
