"""enable_jsonl_persistence and export, at the surface."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tertulia import Session, tool
from tertulia.records.errors import (
    ConversationBusy,
    IdConflict,
    InvalidInput,
    SessionHeld,
    StoragePolicyViolation,
)
from tertulia.session import persisting
from tertulia.testing import ScriptedModel, call, hold

Seen = list[tuple[object, ...]]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def model(*script: object) -> ScriptedModel:
    return ScriptedModel(script, default="answer")


async def seen(session: Session) -> Seen:
    return [(e.type, e.role, e.text, e.call_id, e.name, e.args, e.status) for e in await session.transcript()]


def on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def written(path: Path) -> Seen:
    """A file with a call in it, and what it holds."""
    script = model(["I add", call("add", a=1, b=2)], "three")
    async with Session.open(model=script, tools=[add]) as session:
        await session.prompt("first")
        await session.enable_jsonl_persistence(path)
        await session.prompt("second")
        return await seen(session)


@pytest.mark.req("S3-04", "S3-04b", "S0-03b")
async def test_what_a_file_holds_is_restored_into_an_empty_conversation(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "c.jsonl"
    before = await written(path)
    asked = model()
    async with Session.open(model=asked) as session:
        await session.enable_jsonl_persistence(path)
        assert await seen(session) == before
        stats = await session.stats()
        assert stats.total_entries == len(before)
        await session.prompt("third")
        assert [message.text for message in asked.requests[0].messages][-1] == "third"
        assert len(asked.requests[0].messages) == len(before)
        after = await seen(session)
    async with Session.open(model=model()) as session:
        await session.enable_jsonl_persistence(path)
        assert await seen(session) == after


@pytest.mark.req("S3-04")
async def test_a_person_can_read_the_file_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    await written(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    texts = [part["text"] for line in lines if line["type"] == "message" for part in line["parts"]]
    assert texts == ["first", "I add", "three", "second", "answer"]


@pytest.mark.req("S3-04")
@pytest.mark.parametrize("damage", ["torn tail", "unknown type", "bad line", "no final newline"])
async def test_damage_to_a_line_never_loses_the_rest(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.jsonl"
    before = await written(path)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b'"second"' in line)
    if damage == "torn tail":
        path.write_bytes(data + b'{"type":"message","seq":99,"ts"')
    elif damage == "no final newline":
        path.write_bytes(data.rstrip(b"\n"))
    elif damage == "unknown type":
        lines[place] = lines[place].replace(b'"type":"message"', b'"type":"novelty"')
        path.write_bytes(b"".join(lines))
    else:
        lines[place] = b"#" * (len(lines[place]) - 1) + b"\n"
        path.write_bytes(b"".join(lines))
    async with Session.open(model=model()) as session:
        await session.enable_jsonl_persistence(path)
        texts = [text for _, _, text, *_ in await seen(session)]
        expected = [text for _, _, text, *_ in before]
        if damage in ("unknown type", "bad line"):
            expected.remove("second")
        assert texts == expected
        await session.prompt("still works")
        assert (await seen(session))[-1][2] == "answer"


@pytest.mark.req("S3-04b")
async def test_both_filled_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    await written(path)
    data = path.read_bytes()
    async with Session.open(model=model()) as session:
        await session.prompt("mine")
        before = await seen(session)
        with pytest.raises(IdConflict, match="holds a conversation already"):
            await session.enable_jsonl_persistence(path)
        assert await seen(session) == before
        await session.prompt("goes on in memory")
        assert len(await seen(session)) == len(before) + 2
    assert path.read_bytes() == data


async def test_two_conversations_of_a_process_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    async with Session.open(model=model()) as one, Session.open(model=model()) as two:
        await one.prompt("hello")
        await one.enable_jsonl_persistence(path)
        with pytest.raises(SessionHeld):
            await two.enable_jsonl_persistence(path)
        await two.prompt("hello from memory")
        await one.prompt("still mine")
    assert "still mine" in path.read_text()


@pytest.mark.parametrize("retention", ["none", "headers_only"])
async def test_what_may_not_be_stored_is_written_to_no_file(tmp_path: Path, retention: str) -> None:
    async with Session.open(model=model(), retention=retention) as session:
        await session.prompt("secret")
        with pytest.raises(StoragePolicyViolation):
            await session.enable_jsonl_persistence(tmp_path / "c.jsonl")
        with pytest.raises(StoragePolicyViolation):
            await session.export("md")
    assert os.listdir(tmp_path) == []


@pytest.mark.req("S2-12a")
@pytest.mark.parametrize("store", [None, "sqlite"])
@pytest.mark.parametrize("retention", ["none", "headers_only"])
async def test_a_turn_that_is_not_stored_is_in_no_file_either(
    tmp_path: Path, store: str | None, retention: str
) -> None:
    path = tmp_path / "c.jsonl"
    script = ["reply-plain", "reply-kept-out-1", "reply-kept-out-2", "reply-late"]
    async with Session.open(model=model(*script), store=store and tmp_path / "s.db") as session:
        await session.prompt("ask-plain")
        await session.prompt("ask-kept-out-1", retention=retention)
        await session.enable_jsonl_persistence(path)
        await session.prompt("ask-kept-out-2", retention=retention)
        await session.prompt("ask-late")
        said = [entry.text for entry in await session.transcript()]
        assert said == [
            f"{who}-{what}"
            for what in ("plain", "kept-out-1", "kept-out-2", "late")
            for who in ("ask", "reply")
        ]
        await session.flush()
    assert b"kept-out" not in on_disk(tmp_path)
    assert "reply-late" in path.read_text()
    async with Session.open(model=model()) as session:
        await session.enable_jsonl_persistence(path)
        said = [entry.text for entry in await session.transcript()]
        assert (said[:2], said[-2:]) == (["ask-plain", "reply-plain"], ["ask-late", "reply-late"])


@pytest.mark.req("S2-12a", "S2-12b")
@pytest.mark.parametrize("retention", ["none", "headers_only"])
async def test_a_title_is_content(tmp_path: Path, retention: str) -> None:
    path = tmp_path / "s.db"
    async with Session.open(model=model(), store=path, retention=retention) as session:
        await session.rename("before-the-first")
        await session.prompt("hello")
        await session.rename("the-title")
        assert session.root.title == "the-title"
        await session.branch(f"{session.root.id}:{(await session.records())[-1].seq}")
        assert session.root.title == "the-title"
    assert b"the-title" not in on_disk(tmp_path)
    assert b"before-the-first" not in on_disk(tmp_path)


async def test_while_a_prompt_runs_it_is_refused(tmp_path: Path) -> None:
    waiting = hold()
    async with Session.open(model=model(waiting)) as session:
        prompt = asyncio.create_task(session.prompt("slow"))
        async with asyncio.timeout(10):
            await waiting.reached.wait()
        with pytest.raises(ConversationBusy):
            await session.enable_jsonl_persistence(tmp_path / "c.jsonl")
        waiting.release()
        await prompt
    assert os.listdir(tmp_path) == []


async def test_a_second_file_and_a_path_that_is_none_are_refused(tmp_path: Path) -> None:
    async with Session.open(model=model()) as session:
        for bad in ("", "a\0b", 7):
            with pytest.raises(InvalidInput):
                await session.enable_jsonl_persistence(bad)  # type: ignore[arg-type]
        await session.enable_jsonl_persistence(tmp_path / "a.jsonl")
        with pytest.raises(IdConflict, match="in a file already"):
            await session.enable_jsonl_persistence(tmp_path / "b.jsonl")


async def test_a_fork_of_a_conversation_in_a_file_is_isolated_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    async with Session.open(model=model()) as session:
        await session.enable_jsonl_persistence(path)
        await session.prompt("first")
        child = await session.fork()
        assert await seen(child) == await seen(session)  # type: ignore[arg-type]
        await child.prompt("only in the child")
        await session.prompt("only in the parent")
        assert "only in the child" not in path.read_text()
        assert "only in the parent" not in [e.text for e in await child.transcript()]
        grandchild = await child.fork(from_user_entry_index=2)
        assert [e.text for e in await grandchild.transcript()] == ["first", "answer"]


async def test_beside_a_store_the_file_is_an_export_that_follows(tmp_path: Path) -> None:
    path, store = tmp_path / "c.jsonl", tmp_path / "s.db"
    async with Session.open(model=model(), store=store) as session:
        id = session.id
        await session.prompt("first")
        await session.enable_jsonl_persistence(path)
        await session.prompt("second")
    assert "second" in path.read_text()
    async with Session.open(model=model(), store=store, id=id) as session:
        await session.prompt("third, before the export goes on")
        await session.enable_jsonl_persistence(path)
        await session.prompt("fourth")
        expected = await seen(session)
    async with Session.open(model=model()) as session:
        await session.enable_jsonl_persistence(path)
        assert await seen(session) == expected


async def test_an_export_follows_to_another_branch(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    async with Session.open(model=model(), store=tmp_path / "s.db") as session:
        await session.prompt("one")
        end = (await session.records())[-1]
        await session.enable_jsonl_persistence(path)
        await session.prompt("left")
        await session.branch(f"{session.root.id}:{end.seq}")
        await session.prompt("three")
        await session.resume((await session.transcript())[:2])
        await session.prompt("four")
        expected = await seen(session)
    async with Session.open(model=model()) as session:
        await session.enable_jsonl_persistence(path)
        assert await seen(session) == expected
        assert [entry.index for entry in await session.transcript()] == [0, 1, 2, 3]
        assert (await session.stats()).total_entries == 4


async def test_an_export_loses_nothing_that_came_while_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "c.jsonl", asyncio.Event()
    async with Session.open(model=model(), store=tmp_path / "s.db") as session:
        await session.enable_jsonl_persistence(path)
        original = persisting.stored

        async def slow(*given: Any) -> Any:
            found = await original(*given)
            await read.wait()
            return found

        monkeypatch.setattr(persisting, "stored", slow)
        await session.prompt("one")
        await session.prompt("hidden", retention="none")
        await session.prompt("two")
        read.set()
    text = path.read_text()
    assert '"two"' in text
    assert "hidden" not in text
    async with Session.open(model=model()) as session:
        await session.enable_jsonl_persistence(path)
        assert [e.text for e in await session.transcript()] == ["one", "answer", "two", "answer"]


async def test_an_export_does_not_go_on_in_the_file_of_another(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    await written(path)
    data = path.read_bytes()
    async with Session.open(model=model(), store=tmp_path / "s.db") as session:
        await session.prompt("mine")
        with pytest.raises(IdConflict, match="another conversation"):
            await session.enable_jsonl_persistence(path)
    assert path.read_bytes() == data


async def test_exports_show_the_conversation_and_escape_it() -> None:
    script = model(["<b>bold</b> ```", call("add", a=1, b=2)], "three")
    async with Session.open(model=script, tools=[add]) as session:
        await session.prompt("<script>alert(1)</script>")
        lines = (await session.export("jsonl")).splitlines()
        assert [json.loads(line)["type"] for line in lines] == [r.type for r in await session.records()]
        page = await session.export("html")
        assert "<script>alert" not in page
        assert "&lt;script&gt;" in page
        text = await session.export("md")
        assert text.index("## user") < text.index("## call add") < text.index("## result of add: ok")
        with pytest.raises(InvalidInput, match="no export format"):
            await session.export("pdf")
