"""Tools as a conversation lists them, as the model is told of them, and what stats and events say of calls."""

import asyncio
from typing import Any

import pytest

from tertulia import Tool, tool
from tertulia.records.errors import InvalidTool, ToolConflict
from tertulia.testing import EventRecorder, FakeClock, ScriptedModel, call, hold
from tests.scenarios.kit import add, talk


@tool(enabled=False)
async def off(text: str = "x") -> str:
    """Never to be used.

    More than one line."""
    return text


def plain(n: int) -> int:
    """A plain function."""
    return n + 1


@pytest.mark.req("S0-08")
async def test_descriptors_say_all_in_a_fixed_order(store: Any) -> None:
    async with talk(store, default="ok", tools=[plain, off]) as (session, _):
        session.register(add)
        found = session.tool_descriptors()
        assert [(d.name, d.is_enabled, d.source, d.short_description) for d in found] == [
            ("plain", True, "native", "A plain function."), ("off", False, "native", "Never to be used."),
            ("add", True, "native", "Add two numbers."),
        ]  # fmt: skip
        assert found[1].description == "Never to be used.\n\nMore than one line."
        assert found[2].parameters["properties"]["a"] == {"type": "integer"}
        assert found[2].parameters["required"] == ["a", "b"]
        assert list(session.active_tool_names()) == ["plain", "add"]
        assert session.tool_descriptors() == found
        assert session.unregister("plain") is True
        assert session.unregister("plain") is False
        assert [d.name for d in session.tool_descriptors()] == ["off", "add"]
        assert list(session.active_tool_names()) == ["add"]


@pytest.mark.req("S0-08")
async def test_calls_of_unknown_and_disabled_tools_are_errors(store: Any) -> None:
    script = [[call("nothing"), call("off")], "gave up"]
    async with talk(store, *script, tools=[add, off]) as (session, model):
        assert (await session.prompt("try")).text == "gave up"
        results = [entry for entry in await session.transcript() if entry.type == "tool_result"]
        assert {(r.name, r.status) for r in results} == {("nothing", "error"), ("off", "error")}
        assert [spec.name for spec in model.requests[0].tools] == ["add"]


@pytest.mark.req("S0-08")
async def test_a_model_that_never_stops_calling_meets_the_limit(store: Any) -> None:
    async with talk(store, default=[call("nothing")], turn_limit=3) as (session, model):
        reply = await session.prompt("loop")
        assert reply.stop_reason == "turn_limit"
        assert (len(model.requests), reply.tool_calls) == (3, 3)
        stats = await session.stats()
        assert (stats.tool_calls, stats.tool_results) == (3, 3)
        assert (await session.prompt("again", turn_limit=1)).stop_reason == "turn_limit"


@pytest.mark.req("S0-08b")
async def test_a_change_shows_in_the_very_next_request(store: Any) -> None:
    def names(model: ScriptedModel) -> list[list[str]]:
        return [[spec.name for spec in request.tools] for request in model.requests]

    async with talk(store, default="ok") as (session, model):

        async def grow() -> str:
            session.register(add)
            session.unregister("grow")
            return "grown"

        await session.prompt("none")
        session.register(grow)
        model._script[:] = [[call("grow")], "done"]
        await session.prompt("in mid-turn")
        session.unregister("add")
        await session.prompt("none again")
        assert names(model) == [[], ["grow"], ["add"], []]


@pytest.mark.req("S0-08")
async def test_what_is_no_tool_and_what_conflicts(store: Any) -> None:
    async def add(a: str) -> str:
        return a

    def stars(*args: int) -> int:
        return 0

    async with talk(None, default="ok") as (session, _):
        session.register(plain)
        session.register(plain)  # the same again
        other = Tool(name="plain", fn=add, parameters={"type": "object", "properties": {"z": {}}})
        with pytest.raises(ToolConflict):
            session.register(other)
        bad: list[Any] = [5, None, "name", stars, Tool(name="x", fn=stars)]
        for each in bad:
            with pytest.raises(InvalidTool):
                session.register(each)
        with pytest.raises(InvalidTool):
            Tool(name="", fn=add)
        assert [d.name for d in session.tool_descriptors()] == ["plain"]


@pytest.mark.req("S0-10", "S0-10b")
async def test_stats_agree_with_the_transcript(store: Any) -> None:
    clock = FakeClock()
    script = [
        [call("add", a=1, b=2)],
        "3",
        ["text first", call("add", a=0, b=0)],
        hold("end"),
        default_answer(),
    ]
    async with talk(store, *script, tools=[add], clock=clock) as (session, model):
        empty = await session.stats()
        assert (empty.total_entries, empty.last_updated_at, empty.cost) == (0, None, None)
        assert empty.pending_breakdown == {"prompt_follow_up": 0, "steer": 0, "follow_up": 0}
        await session.prompt("sum")
        stats = await session.stats()
        assert (stats.user_messages, stats.assistant_messages, stats.tool_calls, stats.tool_results) == (
            1,
            1,
            1,
            1,
        )
        assert stats.total_entries == len(await session.transcript()) == 4
        assert (stats.usage.requests, stats.usage.input_tokens) == (2, 2)
        assert (stats.conversation_id, stats.session_id) == (session.root.id, session.id)
        seen = [stats.last_updated_at]
        waiting = model._script[1]
        running = asyncio.ensure_future(session.prompt("more"))
        await waiting.until_reached()
        seen.append((await session.stats()).last_updated_at)
        waiting.release()
        await running
        stats = await session.stats()
        seen.append(stats.last_updated_at)
        assert seen == sorted(set(seen), key=lambda ts: ts or 0)
        assert (stats.user_messages, stats.assistant_messages, stats.tool_calls) == (2, 3, 2)
        assert stats.last_updated_at == (await session.transcript())[-1].ts
        before = stats.last_updated_at
        await session.rename("no entry")
        assert (await session.stats()).last_updated_at == before


def default_answer() -> str:
    return "ok"


@pytest.mark.req("S0-09", "S0-09b", "S4-01b", "S4-05a")
async def test_events_of_the_transcript_carry_their_entry(store: Any) -> None:
    script = ["plain", ["looking", call("add", a=1, b=2), call("add", a=3, b=4)], "done"]
    async with talk(store, *script, tools=[add]) as (session, _), EventRecorder(session) as live:
        await session.prompt("one")
        await session.prompt("two")
        await live.wait_for("done", count=2)
        transcript = await session.transcript()
        events = await session.transcript_events()
        for name in ("message", "tool_call", "tool_result"):
            assert {e.entry_index for e in events if e.type == name} == {
                n for n, entry in enumerate(transcript) if entry.type == name
            }
        assert {event.source for event in events} == {"transcript"}
        assert {event.type for event in events} == {
            "iteration_start", "text", "message", "tool_call", "tool_result",
        }  # fmt: skip
        for event in (*events, *live.events):
            if event.source == "transcript":
                assert event.entry_index is not None
                assert transcript[event.entry_index].turn == event.turn_id
            else:
                assert (event.source, event.entry_index) == ("session", None)
        durable = [event for event in events if event.seq is not None]
        assert [e for e in live.events if e.source == "transcript" and e.seq is not None] == durable
        for event in durable:
            assert event.seq == transcript[event.entry_index or 0].seq
        calls = [e.call_id for e in transcript if e.type == "tool_call"]
        results = [e for e in transcript if e.type == "tool_result"]
        assert sorted(calls) == sorted(e.call_id for e in results)
        assert sorted(calls) == sorted(e.tool_call_id for e in live.of("tool_result"))  # type: ignore[union-attr]
        assert {(r.tool_name, r.status) for r in results} == {("add", "ok")}
