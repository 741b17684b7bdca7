"""Turns that are kept out of the store: everybody counts, in memory and in the store, what is there."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertulia import Session
from tertulia.records.errors import StorageError, StoreFull
from tertulia.session.conversation import Conversation
from tertulia.testing import ScriptedModel, call
from tests.session.kit import store_of

pytestmark = [pytest.mark.req("S2-12a", "S2-11a"), pytest.mark.timeout(60)]

STORES = ("memory", "sqlite", "jsonl")


async def look() -> str:
    """Look around."""
    return "seen"


def answer(request: Any) -> Any:
    """A tool call for inputs that want one, then text."""
    last = request.messages[-1]
    return [call("look")] if last.role == "user" and "look" in last.text else f"about {last.text}"


@contextlib.asynccontextmanager
async def opened(place: Any, id: str | None = None) -> AsyncIterator[Session]:
    model = ScriptedModel(default=answer)
    async with Session.open(id=id, model=model, tools=[look], store=place) as session:
        yield session


def place_of(store: str, folder: Path) -> Any:
    return {"memory": None, "sqlite": folder / "s.db", "jsonl": f"jsonl:{folder / 'j'}"}[store]


async def check(conversation: Conversation, *, forks: bool = True) -> list[str]:
    """Positions, totals and cuts agree; what was said."""
    entries = list(await conversation.transcript())
    assert [entry.index for entry in entries] == list(range(len(entries)))
    stats = await conversation.stats()
    assert stats.total_entries == len(entries)
    assert stats.tool_calls == stats.tool_results == sum(entry.type == "tool_call" for entry in entries)
    assert stats.user_messages == sum(entry.role == "user" for entry in entries if entry.type == "message")
    events = await conversation.transcript_events()
    assert {event.entry_index for event in events} == set(range(len(entries)))
    for each in await conversation.forkable_user_messages():
        assert entries[each.entry_index].text == each.text
        if forks:
            child = await conversation.fork(from_user_entry_index=each.entry_index)
            assert len(await check(child, forks=False)) == each.entry_index
            await child.close()
    return [entry.text for entry in entries]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("retention", ["none", "headers_only"])
async def test_after_a_turn_that_is_not_stored(tmp_path: Path, store: str, retention: str) -> None:
    place = place_of(store, tmp_path)
    async with opened(place) as session:
        await session.prompt("one")
        await session.prompt("look at the secret", retention=retention)
        await session.prompt("look at three")
        said = await check(session.root)
        assert said[2] == "look at the secret"
        child = await session.fork()
        assert await check(child) == said
        await child.prompt("four")
        assert (await check(child))[: len(said)] == said
        ids = session.id, child.id
    if place is None:
        return
    async with opened(place, ids[0]) as session:
        kept = await check(session.root)
        assert len(kept) == (6 if retention == "none" else len(said))
        assert "secret" not in "".join(kept)
        await session.prompt("five")
        await check(session.root)
        assert await check(session.conversation(ids[1])) == [*kept, "four", "about four"]


@pytest.mark.parametrize("store", STORES)
async def test_a_branch_from_behind_it(tmp_path: Path, store: str) -> None:
    place = place_of(store, tmp_path)
    async with opened(place) as session:
        await session.prompt("one")
        await session.prompt("secret", retention="none")
        end = (await session.records())[-1]
        await session.prompt("three")
        await session.branch(f"{session.root.id}:{end.seq}")
        assert await check(session.root) == ["one", "about one", "secret", "about secret"]
        await session.prompt("look, four")
        await check(session.root)
        id = session.id
    if place is not None:
        async with opened(place, id) as session:
            assert (await check(session.root))[:3] == ["one", "about one", "look, four"]


async def test_what_could_not_be_stored_is_not_held_in_the_place_of_another(tmp_path: Path) -> None:
    async with store_of("sqlite", tmp_path) as store:
        model = ScriptedModel(default=answer)
        async with Session.open(model=model, store=store) as session:
            await session.prompt("one")
            store.fail(StoreFull("the disk is full"))
            with pytest.raises(StorageError):
                await session.prompt("secret", retention="headers_only")
            await session.prompt("two")
            records = list(await session.records())
            assert [record.seq for record in records] == list(range(1, len(records) + 1))
            assert [entry.text for entry in await session.transcript()] == [
                "one",
                "about one",
                "two",
                "about two",
            ]
            assert [entry.text for entry in records if entry.is_entry] == [
                "one",
                "about one",
                "two",
                "about two",
            ]


STEPS = st.lists(
    st.sampled_from(
        [
            "say",
            "look",
            "say none",
            "look none",
            "say headers_only",
            "fork",
            "branch",
            "resume",
            "rename",
            "reopen",
        ]
    ),
    min_size=1,
    max_size=12,
)


@given(steps=STEPS, store=st.sampled_from(["sqlite", "jsonl"]))
@settings(max_examples=25)
def test_any_order_of_turns_forks_and_branches(steps: list[str], store: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_walk(steps, place_of(store, Path(folder))))


async def _walk(steps: list[str], place: Any) -> None:
    async with opened(place) as session:
        await session.prompt("begin")
        id, current = session.id, ""
    rest = iter(enumerate(steps))
    more = True
    while more:
        async with opened(place, id) as session:
            more = False
            found = {conversation.id: conversation for conversation in session.conversations}
            conversation = found.get(current, session.root)
            for number, step in rest:
                if step == "reopen":
                    more = True
                    break
                conversation = await _step(conversation, step, number)
                await check(conversation)
            current = conversation.id
    async with opened(place, id) as session:
        for conversation in session.conversations:
            await check(conversation)


async def _step(conversation: Conversation, step: str, number: int) -> Conversation:
    what, _, retention = step.partition(" ")
    if what in ("say", "look"):
        await conversation.prompt(f"{what} {number}", **({"retention": retention} if retention else {}))
    elif what == "fork":
        return await conversation.fork()
    elif what == "branch":
        ends = [record for record in await conversation.records() if record.type == "turn_end"]
        if ends:
            await conversation.branch(f"{conversation.id}:{ends[len(ends) // 2].seq}")
    elif what == "resume":
        await conversation.resume((await conversation.transcript())[:2])
    else:
        await conversation.rename(f"title {number}")
    return conversation


@pytest.mark.parametrize("retention", ["none", "headers_only"])
async def test_no_summary_tells_what_is_kept_out(tmp_path: Path, retention: str) -> None:
    place = tmp_path / "s.db"
    async with opened(place) as session:
        await session.prompt("SECRET", retention=retention)
        for number in range(10):
            await session.prompt(f"more {number}")
        assert "SECRET" in await session.compact()
        await session.prompt("and now?")
        await check(session.root)
    assert b"SECRET" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())  # noqa: ASYNC240
    async with opened(place, session.id) as session:
        await session.prompt("later")
        await check(session.root)


@pytest.mark.parametrize("format", ["jsonl", "md", "html"])
async def test_no_export_has_it(tmp_path: Path, format: str) -> None:
    async with opened(tmp_path / "s.db") as session:
        await session.prompt("SECRET", retention="none")
        await session.prompt("plain")
        text = await session.export(format)
        assert "SECRET" not in text
        assert "plain" in text


async def test_nor_has_the_file_of_a_fork(tmp_path: Path) -> None:
    async with opened(None) as session:
        await session.prompt("one")
        await session.enable_jsonl_persistence(tmp_path / "a.jsonl")
        await session.prompt("SECRET", retention="none")
        child = await session.fork()
        await child.enable_jsonl_persistence(tmp_path / "b.jsonl")
        await child.prompt("two")
        assert await check(child) == ["one", "about one", "SECRET", "about SECRET", "two", "about two"]
    for name in ("a.jsonl", "b.jsonl"):
        assert "SECRET" not in (tmp_path / name).read_text()


@pytest.mark.parametrize("retention", ["none", "headers_only"])
async def test_the_end_that_is_owed_tells_no_more(tmp_path: Path, retention: str) -> None:
    async with store_of("sqlite", tmp_path) as store:
        async with Session.open(model=ScriptedModel(default=answer), tools=[look], store=store) as session:
            await session.prompt("one")
            store.fail(StoreFull("no room at SECRETPATH"), after=2, count=3)
            with pytest.raises(StorageError):
                await session.prompt("look", retention=retention)
            store.heal()
            await session.prompt("two")
        async with Session.open(
            id=session.id, model=ScriptedModel(default=answer), tools=[look], store=store
        ) as session:
            await check(session.root)
            assert "SECRETPATH" not in repr([each for each in await session.records()])


async def test_a_branch_that_was_left_stays_left(tmp_path: Path) -> None:
    """What it hid is counted in its own entries, and in no others; in a file it does not come back."""
    async with opened(None) as session:
        await session.prompt("one")
        end = (await session.records())[-1]
        await session.prompt("SECRET", retention="none")
        await session.branch(f"{session.root.id}:{end.seq}")
        await session.prompt("three")
        async with session.root.events(since=0) as events:
            seen = {}
            async for event in events:
                if event.type == "message":
                    seen[event.data["text"]] = event.entry_index
                if event.type == "done" and "three" in seen:
                    break
        assert (seen["SECRET"], seen["three"]) == (2, 2)
        await session.enable_jsonl_persistence(tmp_path / "c.jsonl")
        said = ["one", "about one", "three", "about three"]
        assert [each.text for each in await session.records() if each.is_entry] == said
        assert await check(session.root) == said


async def test_another_file_is_taken_over_as_it_is(tmp_path: Path) -> None:
    async with opened(None) as session:
        await session.prompt("in the file")
        await session.enable_jsonl_persistence(tmp_path / "c.jsonl")
    async with opened(None) as session:
        await session.prompt("HIDDEN", retention="none")
        await session.resume([])
        await session.enable_jsonl_persistence(tmp_path / "c.jsonl")
        assert len({each.turn for each in await session.records()} - {None}) == 1
        assert await check(session.root) == ["in the file", "about in the file"]
