"""A conversation's row has several writers: none undoes what another has done."""

import asyncio
from pathlib import Path

import pytest

from tertulia import Session
from tertulia.records.errors import StorageError, StoreFull
from tertulia.testing import ScriptedModel, call, hold
from tests.session.kit import store_of

pytestmark = pytest.mark.timeout(60)


@pytest.mark.req("S0-03")
@pytest.mark.parametrize("ticks", range(0, 40, 3))
@pytest.mark.parametrize("kind", ["branch", "resume"])
async def test_a_title_given_while_the_path_changes_keeps_both(tmp_path: Path, kind: str, ticks: int) -> None:
    path = tmp_path / "s.db"
    async with Session.open(model=ScriptedModel(default="ok"), store=path) as session:
        for text in ("one", "two"):
            await session.prompt(text)
        end = next(record for record in await session.records() if record.type == "turn_end")
        entries = (await session.transcript())[:2]
        change = (
            session.branch(f"{session.root.id}:{end.seq}") if kind == "branch" else session.resume(entries)
        )
        moving = asyncio.ensure_future(change)
        for _ in range(ticks):
            await asyncio.sleep(0)
        await asyncio.gather(session.rename("title"), session.archive(), moving)
        await session.prompt("three")
        said = [entry.text for entry in await session.transcript()]
        assert (said, session.root.title) == (["one", "ok", "three", "ok"], "title")
    async with Session.open(id=session.id, model=ScriptedModel(), store=path) as session:
        assert [entry.text for entry in await session.transcript()] == said
        assert session.root.title == "title"


async def test_a_title_that_could_not_be_stored_is_none(tmp_path: Path) -> None:
    async with store_of("sqlite", tmp_path) as store:
        async with Session.open(model=ScriptedModel(default="ok"), store=store) as session:
            await session.prompt("one")
            await session.rename("first")
            store.fail(StoreFull("the disk is full"))
            with pytest.raises(StorageError):
                await session.rename("second")
            assert session.root.title == "first"
            await session.archive()
            assert session.root.title == "first"
        assert [row.title for row in (await store.list(archived=None)).rows] == ["first"]


async def test_changes_of_the_queue_that_could_not_be_stored_are_none(tmp_path: Path) -> None:
    held = hold("a")
    async with store_of("sqlite", tmp_path) as store:
        model = ScriptedModel([held], default="ok")
        async with Session.open(model=model, store=store) as session:
            running = asyncio.ensure_future(session.prompt("first"))
            async with asyncio.timeout(10):
                await held.reached.wait()
            items = [await session.follow_up(text) for text in ("one", "two", "three")]
            await session.queue.promote(items[2].id)
            for change in (session.queue.edit(items[0].id, "EDITED"), session.queue.promote(items[1].id)):
                store.fail(StoreFull("the disk is full"))
                with pytest.raises(StorageError):
                    await change
            assert [item.text for item in session.queue.list()] == ["three", "one", "two"]
            held.release()
            await running
            await session.wait_idle()
            said = [entry.text for entry in await session.transcript() if entry.role == "user"]
            assert said == ["first", "three", "one", "two"]


async def test_changes_that_fail_together_are_all_undone(tmp_path: Path) -> None:
    held = hold("a")
    async with (
        store_of("sqlite", tmp_path) as store,
        Session.open(model=ScriptedModel([held], default="ok"), store=store) as session,
    ):
        running = asyncio.ensure_future(session.prompt("first"))
        async with asyncio.timeout(10):
            await held.reached.wait()
        a, b, c = [(await session.follow_up(text)).id for text in "ABC"]
        store.hold()
        changes = [
            session.queue.edit(a, "A1"), session.queue.edit(a, "A2"), session.queue.reorder(c, 0),
            session.queue.reorder(b, 2),
        ]  # fmt: skip
        tasks = [asyncio.ensure_future(change) for change in changes]
        await store.waiting()
        store.refuse_one(StoreFull("the disk is full"))
        store.let_go()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, StorageError) for each in found)
        assert [item.text for item in session.queue.list()] == ["A", "B", "C"]
        held.release()
        await running


async def test_a_steer_that_could_not_be_delivered_waits(tmp_path: Path) -> None:
    looking, ready = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        """Look."""
        looking.set()
        await ready.wait()
        return "seen"

    async with store_of("sqlite", tmp_path) as store:
        model = ScriptedModel([[call("look")]], default="ok")
        async with Session.open(model=model, tools=[look], store=store) as session:
            running = await session.submit("go")
            async with asyncio.timeout(10):
                await looking.wait()
            await session.submit("steer me", when_busy="steer", id="S")
            store.fail(StoreFull("the disk is full"), after=1)
            ready.set()
            with pytest.raises(StorageError):
                await running.reply()
            await session.wait_idle()
            assert [(item.text, item.held) for item in session.queue.list()] == [("steer me", True)]
            assert str(await session.prompt("steer me", id="S")) == "ok"
            assert len(session.queue.list()) == 0
