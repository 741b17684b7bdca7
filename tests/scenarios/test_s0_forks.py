"""Forks, branches and resume: what they hold, and that nothing crosses over."""

import asyncio
from typing import Any

import pytest

from tertulia import Session
from tertulia.records.errors import (
    ConversationBusy,
    IdConflict,
    InvalidForkEntryIndex,
    InvalidInput,
    InvalidSnapshot,
    Overloaded,
)
from tertulia.records.ids import CallId
from tertulia.records.parts import Image, Text
from tertulia.records.record import Message, ToolCall, ToolResult
from tertulia.testing import ScriptedModel, Stream, call, hold
from tests.scenarios.kit import add, asked, shape, talk, texts


async def three_turns(session: Any) -> None:
    for text in ("one", "two", "three"):
        await session.prompt(text)


def answers(*more: Any) -> list[Any]:
    return ["1", [call("add", a=1, b=1)], "2", "3", *more]


@pytest.mark.req("S0-02", "S0-03b", "S0-10b")
@pytest.mark.parametrize("retention", ["full", "none", "headers_only"])
async def test_a_fork_equals_its_source_and_goes_its_own_way(store: Any, retention: str) -> None:
    async with talk(store, *answers("child", "parent"), tools=[add], retention=retention) as (session, model):
        await three_turns(session)
        source = shape(await session.transcript())
        child = await session.fork()
        assert child.id != session.root.id
        assert child.parent is not None
        assert child.parent[0] == session.root.id
        assert session.root.parent is None
        assert shape(await child.transcript()) == source
        stats, parents = await child.stats(), await session.stats()
        assert (stats.conversation_id, parents.conversation_id) == (child.id, session.root.id)
        assert stats.total_entries == parents.total_entries == len(source)
        assert (stats.user_messages, stats.tool_calls, stats.tool_results) == (3, 1, 1)
        await child.prompt("only child")
        await session.prompt("only parent")
        assert asked(model.requests[-2])[:-1] == asked(model.requests[-1])[:-1]  # the same history
        assert [text for _, text in await texts(child)][-2:] == ["only child", "child"]
        assert [text for _, text in await texts(session)][-2:] == ["only parent", "parent"]
        assert shape(await child.transcript())[:-2] == shape(await session.transcript())[:-2] == source


@pytest.mark.req("S0-02", "S0-03b")
@pytest.mark.parametrize("retention", ["full", "none"])
async def test_a_fork_in_mid_run_holds_what_is_complete(store: Any, retention: str) -> None:
    inside, gate, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(n: int) -> str:
        if n == 2:
            inside.set()
            await gate.wait()
        return f"result {n}"

    async def wait_second() -> str:
        second.set()
        await gate.wait()
        return "x"

    script = ["0", [call("slow", n=1)], [call("wait_second"), call("slow", n=2)], "end", "child's"]
    options: dict[str, Any] = {"tools": [slow, wait_second], "retention": retention}
    async with talk(store, *script, **options) as (session, model):
        await session.prompt("before")
        running = asyncio.ensure_future(session.prompt("work"))
        await asyncio.gather(inside.wait(), second.wait())
        child = await session.fork()
        expected = [
            ("message", "before"), ("message", "0"), ("message", "work"), ("tool_call", ""),
            ("tool_result", "result 1"),
        ]  # fmt: skip
        assert [(e.type, e.text) for e in await child.transcript()] == expected
        assert (await child.stats()).total_entries == 5
        assert (await child.stats()).tool_calls == 1
        gate.set()
        await running
        await child.prompt("and now")
        assert len(await session.transcript()) == 10
        assert [e.text for e in await child.transcript()][-2:] == ["and now", "child's"]
        assert asked(model.requests[-1])[-2:] == [("tool", "result 1"), ("user", "and now")]


@pytest.mark.req("S0-02")
async def test_a_fork_while_the_model_speaks_holds_the_question(store: Any) -> None:
    waiting = hold()
    async with talk(store, Stream(["half ", waiting, "whole"])) as (session, model):
        running = asyncio.ensure_future(session.prompt("ask"))
        await waiting.until_reached()
        child = await session.fork()
        assert await texts(child) == [("user", "ask")]
        waiting.release()
        assert (await running).text == "half whole"
        assert await texts(child) == [("user", "ask")]
        assert len(await session.transcript()) == 2


@pytest.mark.req("S0-02", "S0-06")
@pytest.mark.parametrize("retention", ["full", "none"])
async def test_a_fork_of_a_fork(store: Any, retention: str) -> None:
    async with talk(store, default="ok", retention=retention) as (session, model):
        await three_turns(session)
        child = await session.fork()
        await child.prompt("four")
        grandchild = await child.fork()
        await grandchild.prompt("five")
        early = await grandchild.fork(from_user_entry_index=2)  # in what the grandparent wrote
        last = await early.fork()
        await last.prompt("end")
        assert [t for r, t in await texts(grandchild) if r == "user"] == [
            "one",
            "two",
            "three",
            "four",
            "five",
        ]
        assert await texts(early) == [("user", "one"), ("assistant", "ok")]
        assert [t for r, t in await texts(last) if r == "user"] == ["one", "end"]
        assert grandchild.parent is not None
        assert grandchild.parent[0] == child.id
        for each in (session.root, child, grandchild, early, last):
            assert (await each.stats()).total_entries == len(await each.transcript())


@pytest.mark.req("S0-05")
async def test_forkable_messages_are_the_users_own(store: Any) -> None:
    async with talk(store, *answers("seen", "both"), tools=[add]) as (session, model):
        await three_turns(session)
        await session.prompt(Image(media="image/png", data=b"x"))
        await session.prompt(["  first", "second  "])
        found = await session.forkable_user_messages()
        assert [(each.entry_index, each.text) for each in found] == [
            (0, "one"), (2, "two"), (6, "three"), (8, "[image]"), (10, "first\nsecond"),
        ]  # fmt: skip
        transcript = await session.transcript()
        assert all(transcript[each.entry_index].role == "user" for each in found)


@pytest.mark.req("S0-06", "S0-20")
async def test_a_fork_from_a_message_keeps_what_stands_before_it(store: Any) -> None:
    async with talk(store, *answers("other two", "four"), tools=[add]) as (session, model):
        await three_turns(session)
        source = shape(await session.transcript())
        for each in await session.forkable_user_messages():
            child = await session.fork(from_user_entry_index=each.entry_index)
            assert shape(await child.transcript()) == source[: each.entry_index]
            assert (await child.stats()).total_entries == each.entry_index
        second = await session.fork(from_user_entry_index=2)
        await second.prompt("another two")
        assert asked(model.requests[-1]) == [("user", "one"), ("assistant", "1"), ("user", "another two")]
        await session.prompt("four")
        assert shape(await session.transcript())[: len(source)] == source
        assert [text for _, text in await texts(second)] == ["one", "1", "another two", "other two"]


@pytest.mark.req("S0-20")
async def test_an_index_that_is_no_user_message_forks_nothing(store: Any) -> None:
    async with talk(store, *answers(), tools=[add]) as (session, model):
        await three_turns(session)
        before = len(session.conversations)
        records = len(await session.records())
        bad: list[Any] = [1, 3, 4, 5, 8, 99, -1, True, 2.0, "2", ""]
        for index in bad:
            with pytest.raises(InvalidForkEntryIndex) as raised:
                await session.fork(from_user_entry_index=index)
            assert raised.value.index is index
        assert len(session.conversations) == before
        assert len(await session.records()) == records


@pytest.mark.req("S0-20", "S0-05")
async def test_a_user_message_without_content_is_no_place_to_fork(store: Any) -> None:
    async with talk(store) as (session, model):
        blank = Message(seq=1, ts=1, role="user", parts=(Text(text="x"),))
        await session.resume([blank])
        assert [each.entry_index for each in await session.forkable_user_messages()] == [0]
        child = await session.fork(from_user_entry_index=0)
        assert list(await child.transcript()) == []


@pytest.mark.req("S0-21")
async def test_a_fork_has_nothing_pending(store: Any) -> None:
    waiting = hold("end")
    async with talk(store, "first", Overloaded("no"), waiting, default="ok") as (session, model):
        await session.follow_up("good")
        await session.wait_idle()
        await session.follow_up("bad")
        await session.wait_idle()
        running = asyncio.ensure_future(session.prompt("now"))
        await waiting.until_reached()
        await session.follow_up("waits")
        assert len(session.pending_messages(include_resolved=True)) == 3
        child = await session.fork()
        assert child.pending_messages(include_resolved=True) == []
        assert child.pending_message_count() == (await child.stats()).pending_messages == 0
        waiting.release()
        await running
        await session.wait_idle()


@pytest.mark.req("S0-22")
async def test_tools_of_parent_and_child_are_their_own(store: Any) -> None:
    async def sub(a: int, b: int) -> int:
        return a - b

    async with talk(store, default="ok", tools=[add]) as (session, model):
        child = await session.fork()
        session.unregister("add")
        assert (session.active_tool_names(), child.active_tool_names()) == ((), ("add",))
        child.register(sub)
        assert session.active_tool_names() == ()
        child.unregister("add")
        session.register(add)
        assert (session.active_tool_names(), child.active_tool_names()) == (("add",), ("sub",))
        await session.prompt("x")
        await child.prompt("x")
        assert [[spec.name for spec in request.tools] for request in model.requests] == [["add"], ["sub"]]


@pytest.mark.req("S0-23")
async def test_in_memory_nothing_is_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = [[call("add", a=1, b=1)], "2", "three"]
    async with talk(None, *script, tools=[add]) as (session, model):
        await session.prompt("one")
        child = await session.fork()
        await child.prompt("two")
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.req("S0-03", "S0-03b", "S0-10b")
@pytest.mark.parametrize("retention", ["full", "none"])
async def test_resume_makes_the_transcript_that_of_the_snapshot(store: Any, retention: str) -> None:
    async with talk(None, *answers(), tools=[add]) as (source, _):
        await three_turns(source)
        snapshot = await source.transcript()
    async with talk(store, "old", "new", retention=retention) as (session, model):
        await session.prompt("something else")
        await session.resume(iter(snapshot))
        assert shape(await session.transcript()) == shape(snapshot)
        assert [entry.index for entry in await session.transcript()] == list(range(len(snapshot)))
        assert (await session.stats()).total_entries == len(snapshot)
        await session.prompt("go on")
        assert asked(model.requests[-1])[:3] == [("user", "one"), ("assistant", "1"), ("user", "two")]
        assert asked(model.requests[-1])[-1] == ("user", "go on")
        assert "something else" not in str(asked(model.requests[-1]))
        await session.resume([])
        assert list(await session.transcript()) == []


@pytest.mark.req("S0-03")
async def test_a_malformed_snapshot_changes_nothing(store: Any) -> None:
    user = Message(seq=1, ts=1, role="user", parts=(Text(text="u"),))
    lone = ToolCall(seq=2, ts=2, call_id=CallId("c"), name="add", args={})
    stray = ToolResult(seq=2, ts=2, call_id=CallId("c"), name="add", status="ok")
    bad: list[Any] = [
        [user, lone], [user, stray], [stray, lone], ["text"], [None], 5, None, "abc", [{"role": "user"}],
        [Message(seq=1, ts=1, role="user", parts=())], [Message(seq=1, ts=1, role="boss", parts=user.parts)],  # type: ignore[arg-type]
        [user, lone, stray, stray],
    ]  # fmt: skip
    async with talk(store, "answer", "next") as (session, model):
        await session.prompt("hello")
        before = [record.seq for record in await session.records()]
        for snapshot in bad:
            with pytest.raises(InvalidSnapshot):
                await session.resume(snapshot)
        assert [record.seq for record in await session.records()] == before
        assert (await session.prompt("still there")).text == "next"


@pytest.mark.req("S0-03")
async def test_resume_and_branch_are_refused_while_something_runs(store: Any) -> None:
    waiting = hold()
    async with talk(store, "0", waiting) as (session, model):
        await session.prompt("a")
        point = (await session.forkable_user_messages())[0].record_id
        running = asyncio.ensure_future(session.prompt("b"))
        await waiting.until_reached()
        for change in (session.resume([]), session.branch(point)):
            with pytest.raises(ConversationBusy):
                await change
        waiting.release()
        await running
        assert len(await session.transcript()) == 4


@pytest.mark.req("S0-03")
async def test_a_prompt_that_comes_during_a_resume_sees_what_was_resumed(store: Any) -> None:
    async with talk(None, "kept") as (source, _):
        await source.prompt("snapshot")
        snapshot = await source.transcript()
    async with talk(store, "old", "new") as (session, model):
        await session.prompt("forgotten")
        resuming = asyncio.ensure_future(session.resume(snapshot))
        await asyncio.sleep(0)
        reply = await session.prompt("and now")
        await resuming
        assert reply.text == "new"
        assert asked(model.requests[-1]) == [("user", "snapshot"), ("assistant", "kept"), ("user", "and now")]
        assert [text for _, text in await texts(session)] == ["snapshot", "kept", "and now", "new"]


@pytest.mark.req("S0-03")
async def test_of_two_resumes_at_once_each_is_done_or_refused(store: Any) -> None:
    def said(text: str) -> list[Message]:
        return [Message(seq=0, ts=0, role="user", parts=(Text(text=text),))]

    async with talk(store, default="ok") as (session, model):
        await session.prompt("x")
        results = await asyncio.gather(
            session.resume(said("a")), session.resume(said("b")), return_exceptions=True
        )
        assert all(result is None or isinstance(result, ConversationBusy) for result in results)
        last = "b" if results[1] is None else "a"
        assert [text for _, text in await texts(session)] == [last]
        assert (await session.prompt("y")).text == "ok"


async def test_a_branch_goes_on_from_an_earlier_record(store: Any) -> None:
    async with talk(store, *answers("other", "again"), tools=[add]) as (session, model):
        await three_turns(session)
        whole = shape(await session.transcript())
        records = await session.records()
        end = next(r for r in records if r.type == "turn_end")
        with pytest.raises(InvalidInput):
            await session.branch(f"{session.root.id}:{next(r.seq for r in records if r.type == 'tool_call')}")
        for bad in ("", "x", f"{session.root.id}:999", f"{session.root.id}:0", f"other:{end.seq}", 5):
            with pytest.raises(InvalidInput):
                await session.branch(bad)
        assert shape(await session.transcript()) == whole
        await session.branch(f"{session.root.id}:{end.seq}")
        assert shape(await session.transcript()) == whole[:2]
        assert (await session.stats()).total_entries == 2
        await session.prompt("another two")
        assert asked(model.requests[-1]) == [("user", "one"), ("assistant", "1"), ("user", "another two")]
        seqs = [record.seq for record in await session.records()]
        assert seqs == sorted(set(seqs))
        child = await session.fork()
        assert [t for _, t in await texts(child)] == ["one", "1", "another two", "other"]


async def test_the_active_branch_outlives_the_process(place: str) -> None:
    async with talk(place, default="ok") as (session, _):
        await session.prompt("one")
        await session.prompt("two")
        end = next(r for r in await session.records() if r.type == "turn_end")
        await session.branch(f"{session.root.id}:{end.seq}")
        await session.prompt("instead")
        child = await session.fork()
        await child.prompt("deeper")
        id, child_id = session.id, child.id
        whole, deep = shape(await session.transcript()), shape(await child.transcript())
    async with Session.open(id=id, store=place, model=ScriptedModel(default="ok")) as session:
        assert shape(await session.transcript()) == whole
        child = session.conversation(child_id)
        assert shape(await child.transcript()) == deep
        assert child.parent is not None
        assert child.parent[0] == session.root.id
        await child.prompt("more")
        assert len(await child.transcript()) == len(deep) + 2


async def test_a_fork_with_an_id_is_made_once(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await three_turns(session)
        one, two = await asyncio.gather(session.fork(2, id="mine"), session.fork(2, id="mine"))
        assert one is two
        assert one.id == "mine"
        assert await session.fork(2, id="mine") is one
        assert len(session.conversations) == 2
        with pytest.raises(IdConflict):
            await session.fork(4, id="mine")
        with pytest.raises(IdConflict):
            await one.fork(id=session.root.id)
        with pytest.raises(InvalidInput):
            await session.fork(id="")
        assert (await session.prompt("still")).text == "ok"


async def test_forks_and_prompts_at_once(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await session.prompt("one")
        *forks, reply = await asyncio.gather(*(session.fork() for _ in range(5)), session.prompt("two"))
        assert len({fork.id for fork in forks}) == 5
        for fork in forks:
            assert [t for _, t in await texts(fork)][:2] == ["one", "ok"]
        assert reply.text == "ok"
        assert [t for _, t in await texts(session)] == ["one", "ok", "two", "ok"]


async def test_labels_and_titles(store: Any) -> None:
    async with talk(store, default="ok") as (session, _):
        await session.prompt("one")
        point = (await session.forkable_user_messages())[0].record_id
        await session.label(point, "start")
        await session.rename("A title")
        assert session.root.title == "A title"
        labels = [record for record in await session.records() if record.type == "label"]
        assert [(label.target, label.text) for label in labels] == [(int(point.rpartition(":")[2]), "start")]
        count = len(await session.records())
        for bad in (f"{session.root.id}:999", f"{session.root.id}:0", "x", 5):
            with pytest.raises(InvalidInput):
                await session.label(bad, "x")
        for nothing in (5, None, "\ud800"):
            with pytest.raises(InvalidInput):
                await session.label(point, nothing)
        for title in (5, "\ud800", b"x"):
            with pytest.raises(InvalidInput):
                await session.rename(title)
        with pytest.raises(InvalidInput):
            await session.archive("yes")
        assert len(await session.records()) == count
        assert session.root.title == "A title"
        assert len(await session.transcript()) == 2
