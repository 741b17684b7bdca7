"""enable_jsonl_persistence takes the queue and the client ids along."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tertulia import Session, ToolContext
from tertulia.records.errors import IdConflict, ModelError, PromptCancelled
from tertulia.session import persisting
from tertulia.testing import ScriptedModel, call, hold
from tests.session.kit import reached

pytestmark = pytest.mark.timeout(60)


async def texts(session: Session) -> list[str]:
    return [entry.text for entry in await session.transcript()]


def on_disk(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def waiting(session: Session) -> list[tuple[str, bool]]:
    return [(item.text, item.held) for item in session.queue.list()]


async def fail_with(session: Session, held: object, *queued: str, **ids: str) -> list[str]:
    """A turn fails, and what waits behind it is held: their ids."""
    prompt = asyncio.create_task(session.prompt("fails"))
    await reached(held)  # type: ignore[arg-type]
    items = [(await session.follow_up(text)).id for text in queued]
    items += [(await session.submit(text, when_busy="follow_up", id=id)).id for id, text in ids.items()]
    held.release()  # type: ignore[attr-defined]
    with pytest.raises(ModelError):
        await prompt
    return items


async def test_held_items_can_be_changed_and_released_after_the_switch(tmp_path: Path) -> None:
    held = hold(RuntimeError("no"))
    async with Session.open(model=ScriptedModel([held], default="ok"), on_error="hold") as session:
        a, b, c = await fail_with(session, held, "a", "b", "c")
        await session.queue.promote(c)
        await session.enable_jsonl_persistence(tmp_path / "c.jsonl")
        assert waiting(session) == [("c", True), ("a", True), ("b", True)]
        await session.queue.edit(a, "a, but better")
        await session.queue.promote(b)
        assert (await session.queue.remove(c)).text == "c"
        assert await session.queue.run() == 2
        await session.wait_idle()
        assert await texts(session) == ["fails", "b", "ok", "a, but better", "ok"]


async def test_held_items_and_their_ids_are_restored_from_the_file(tmp_path: Path) -> None:
    path, held = tmp_path / "c.jsonl", hold(RuntimeError("no"))
    async with Session.open(model=ScriptedModel([held], default="ok"), on_error="hold") as session:
        a, b = await fail_with(session, held, "a", mine="b")
        await session.queue.promote(b)
        await session.enable_jsonl_persistence(path)
        await session.submit("later", id="later")
        await session.wait_idle()
    async with Session.open(model=ScriptedModel(default="then")) as session:
        await session.enable_jsonl_persistence(path)
        assert waiting(session) == [("b", True), ("a", True)]
        with pytest.raises(IdConflict):
            await session.submit("another", id="mine")
        assert str(await session.prompt("b", id="mine")) == "then"
        assert str(await session.prompt("later", id="later")) == "ok"
    async with Session.open(model=ScriptedModel(default="at last")) as session:
        await session.enable_jsonl_persistence(path)
        assert waiting(session) == [("a", True)]
        assert str(await session.prompt("b", id="mine")) == "then"


async def test_ids_from_before_the_switch_outlive_the_process(tmp_path: Path) -> None:
    path, held = tmp_path / "c.jsonl", hold()
    async with Session.open(model=ScriptedModel(["done", held], default="ok")) as session:
        before = await session.prompt("a", id="ran")
        prompt = asyncio.create_task(session.prompt("b", id="cancelled"))
        await reached(held)
        dropped = await session.submit("c", when_busy="follow_up", id="dropped")
        await session.cancel()
        for waits in (prompt, dropped.reply()):
            with pytest.raises(PromptCancelled):
                await waits
        await session.prompt("secret-prompt", id="secret", retention="none")
        await session.enable_jsonl_persistence(path)
        assert await session.prompt("a", id="ran") == before
    written = on_disk(tmp_path)
    assert b"dropped" in written
    assert b"secret" not in written
    model = ScriptedModel(default="again")
    async with Session.open(model=model) as session:
        await session.enable_jsonl_persistence(path)
        after = await session.prompt("a", id="ran")
        assert (after.text, after.turn_id) == ("done", before.turn_id)
        for text, id in (("b", "cancelled"), ("c", "dropped")):
            with pytest.raises(PromptCancelled):
                await session.prompt(text, id=id)
        assert model.requests == []


async def test_a_conversation_with_a_queue_is_not_empty(tmp_path: Path) -> None:
    """What waits would be lost in the file of another."""
    path, held = tmp_path / "c.jsonl", hold(RuntimeError("no"))
    async with Session.open(model=ScriptedModel(default="ok")) as session:
        await session.prompt("mine")
        await session.enable_jsonl_persistence(path)
    async with Session.open(model=ScriptedModel([held], default="ok"), on_error="hold") as session:
        await fail_with(session, held, "a")
        await session.resume([])
        with pytest.raises(IdConflict, match="holds a conversation already"):
            await session.enable_jsonl_persistence(path)
        assert waiting(session) == [("a", True)]
        assert await session.queue.run() == 1
        await session.wait_idle()


@pytest.mark.parametrize("store", [None, "sqlite"])
@pytest.mark.parametrize("moment", ["_found", "stored", "_copy_blobs", "_copy"])
async def test_what_comes_during_the_switch_is_in_the_file(
    tmp_path: Path, store: str | None, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, changes = tmp_path / "c.jsonl", []
    step = getattr(persisting, moment)
    async with Session.open(model=ScriptedModel(default="ok"), store=store and tmp_path / "s.db") as session:

        async def busy() -> None:
            record = f"{session.root.id}:1"
            changes.append(asyncio.ensure_future(session.label(record, "meanwhile")))
            changes.extend(asyncio.ensure_future(session.follow_up(text)) for text in "ab")
            for _ in range(20):
                await asyncio.sleep(0)

        async def watched(*args: Any, **options: Any) -> Any:
            await busy()
            found = await step(*args, **options)
            await busy()
            return found

        await session.prompt("before")
        await session.flush()
        monkeypatch.setattr(persisting, moment, watched)
        await session.enable_jsonl_persistence(path)
        monkeypatch.undo()
        await asyncio.gather(*changes)
        await session.wait_idle()
        records = [(r.seq, r.type) for r in await session.records()]
    types = [kind for _, kind in records]
    assert types.count("label") * 2 == types.count("turn_end") - 1 == 4
    async with Session.open(model=ScriptedModel(default="ok")) as session:
        await session.enable_jsonl_persistence(path)
        assert [(r.seq, r.type) for r in await session.records()] == records
        assert session.queue.list() == []


async def test_an_id_used_in_vain_stays_used_and_the_files_own_win(tmp_path: Path) -> None:
    """What was cancelled before it ran leaves a conversation empty, and its id is not to run later."""
    path, held = tmp_path / "c.jsonl", hold()
    async with Session.open(model=ScriptedModel(default="from the file")) as session:
        await session.prompt("a", id="both")
        await session.enable_jsonl_persistence(path)
    model = ScriptedModel([held], default="again")
    async with Session.open(model=model) as session:
        other = await session.open_conversation()
        running = asyncio.create_task(other.prompt("takes the slot"))
        await reached(held)
        for id in ("both", "mine"):
            dropped = asyncio.create_task(session.prompt("a", id=id))
            await asyncio.sleep(0)
            assert session.cancel_active_prompt().active
            with pytest.raises(PromptCancelled):
                await dropped
        held.release()
        await running
        await session.enable_jsonl_persistence(path)
        assert str(await session.prompt("a", id="both")) == "from the file"
        with pytest.raises(PromptCancelled):
            await session.prompt("a", id="mine")
    async with Session.open(model=model) as session:
        await session.enable_jsonl_persistence(path)
        with pytest.raises(PromptCancelled):
            await session.prompt("a", id="mine")
        assert len(model.requests) == 1


async def test_a_turn_that_waited_for_the_switch_keeps_its_bytes_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, prompts = persisting._copy, []

    async def keep(context: ToolContext) -> str:
        return await context.put_blob(b"bytes")

    async with Session.open(model=ScriptedModel([[call("keep")], "kept"]), tools=[keep]) as session:

        async def watched(*args: Any, **options: Any) -> None:
            prompts.append(asyncio.ensure_future(session.prompt("go")))
            await asyncio.sleep(0)
            await copy(*args, **options)

        monkeypatch.setattr(persisting, "_copy", watched)
        await session.enable_jsonl_persistence(tmp_path / "c.jsonl")
        assert str(await prompts[0]) == "kept"
