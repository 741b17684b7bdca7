"""Client ids: the same id with the same input is the same item, whatever became of it."""

import asyncio
from pathlib import Path

import pytest

from tertulia import Session, tool
from tertulia.records.errors import (
    Overloaded,
    PromptCancelled,
    RateLimited,
    StoreFull,
    TertuliaError,
    TurnTimeout,
    UnknownModelError,
)
from tertulia.testing import FakeClock, ScriptedModel, call, hold
from tests.session.kit import reached, world
from tests.session.stores import GatedStore

pytestmark = pytest.mark.timeout(60)

FULL = StoreFull("the disk is full")


@tool
def look() -> str:
    """Look."""
    return "seen"


def place_of(kind: str, folder: Path) -> str:
    return {"sqlite": str(folder / "s.db"), "jsonl": f"jsonl:{folder / 'j'}"}[kind]


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
async def test_a_delivered_steer_is_known_after_a_restart(tmp_path: Path, kind: str) -> None:
    place, asking = place_of(kind, tmp_path), hold([call("look")])
    async with Session.open(model=ScriptedModel([asking, "final"]), tools=[look], store=place) as session:
        first = asyncio.create_task(session.prompt("go", id="P"))
        await reached(asking)
        steer = await session.submit("and be short", when_busy="steer", id="S")
        asking.release()
        before = await steer.reply()
        assert (str(before), before.turn_id) == ("final", (await first).turn_id)
        assert await session.prompt("and be short", id="S") == before
    model = ScriptedModel(default="again")
    async with Session.open(id=session.id, model=model, store=place) as session:
        after = await session.prompt("and be short", id="S")
        assert (after.text, after.turn_id) == ("final", before.turn_id)
        assert model.requests == []


async def test_a_steer_whose_turn_was_cut_off_is_known_after_a_restart(tmp_path: Path) -> None:
    """Its turn began to read it: it is not to be said a second time."""
    place, asking, reading = tmp_path / "s.db", hold([call("look")]), hold()
    async with Session.open(model=ScriptedModel([asking, reading]), tools=[look], store=place) as session:
        first = asyncio.create_task(session.prompt("go"))
        await reached(asking)
        await session.submit("and be short", when_busy="steer", id="S")
        asking.release()
        await reached(reading)
        await session.cancel()
        with pytest.raises(PromptCancelled):
            await first
    model = ScriptedModel(default="again")
    async with Session.open(id=session.id, model=model, store=place) as session:
        with pytest.raises(PromptCancelled, match="was cancelled"):
            await session.prompt("and be short", id="S")
        assert model.requests == []


@pytest.mark.parametrize("how", ["prompt", "submit"])
async def test_what_was_never_stored_can_be_asked_again(store: GatedStore, how: str) -> None:
    async with world(store, []) as made:
        await made.conv.prompt("before")
        await made.conv.flush()
        store.fail(FULL)
        with pytest.raises(StoreFull):
            await getattr(made.conv, how)("go", id="Z")
        await made.conv.wait_idle()
        assert str(await made.conv.prompt("go", id="Z")) == "ok"
        assert str(await made.conv.prompt("go", id="Z")) == "ok"
        assert [e.text for e in await made.conv.transcript()].count("go") == 1
        await made.verify(unseen=0)


async def test_a_place_in_the_queue_that_was_never_stored_can_be_asked_for_again(store: GatedStore) -> None:
    held = hold("one")
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        await made.conv.flush()
        store.fail(FULL)
        with pytest.raises(StoreFull):
            await made.conv.submit("two", when_busy="follow_up", id="Z")
        queued = await made.conv.submit("two", when_busy="follow_up", id="Z")
        held.release()
        await prompt
        assert str(await queued.reply()) == "ok"
        await made.verify()


async def test_an_accepted_input_that_could_not_begin_waits_again(store: GatedStore) -> None:
    """The store has it and took no harm: it is held as after a restart, and its id lets it run."""
    held = hold("one")
    async with world(store, [held]) as made:
        prompt = made.start("one")
        await reached(held)
        queued = await made.conv.submit("two", when_busy="follow_up", id="Z")
        await made.conv.flush()
        store.fail(FULL, after=1)  # the end of the first turn is stored, the beginning of the second is not
        held.release()
        await prompt
        with pytest.raises(StoreFull):
            await queued.reply()
        await made.conv.wait_idle()
        assert [(item.text, item.held) for item in made.conv.queue.list()] == [("two", True)]
        assert str(await made.conv.prompt("two", id="Z")) == "ok"
        assert made.conv.queue.list() == []
        await made.verify()


@pytest.mark.parametrize("gone", ["first", "second"])
async def test_a_caller_that_goes_away_takes_nothing_from_the_other(store: GatedStore, gone: str) -> None:
    held = hold("the answer")
    async with world(store, [held]) as made:
        first = made.start("go", id="x")
        await reached(held)
        second = made.start("go", id="x")
        await asyncio.sleep(0)
        leaves, stays = (first, second) if gone == "first" else (second, first)
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        held.release()
        assert str(await stays) == "the answer"
        await made.verify()


async def test_the_last_caller_that_goes_away_cancels_the_run(store: GatedStore) -> None:
    held = hold()
    async with world(store, [held]) as made:
        callers = [made.start("go", id="x")]
        await reached(held)
        callers.append(made.start("go", id="x"))
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        await made.conv.wait_idle()
        assert made.ends() == [("cancelled", "cancelled")]
        await made.verify()


async def test_what_was_submitted_runs_whoever_else_gives_up(store: GatedStore) -> None:
    held = hold("the answer")
    async with world(store, [held]) as made:
        handle = await made.conv.submit("go", id="x")
        await reached(held)
        caller = made.start("go", id="x")
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        held.release()
        assert str(await handle.reply()) == "the answer"
        await made.verify()


@pytest.mark.parametrize("error", [RateLimited("slow down"), Overloaded("busy"), KeyError("odd")])
async def test_an_error_has_its_code_after_a_restart(tmp_path: Path, error: Exception) -> None:
    place = tmp_path / "s.db"
    async with Session.open(model=ScriptedModel([error]), store=place) as session:
        with pytest.raises(TertuliaError) as raised:
            await session.prompt("go", id="E")
    async with Session.open(id=session.id, model=ScriptedModel(default="again"), store=place) as session:
        with pytest.raises(type(raised.value)) as told:
            await session.prompt("go", id="E")
        assert (told.value.code, str(told.value)) == (raised.value.code, str(raised.value))


async def test_a_timeout_is_one_after_a_restart(tmp_path: Path) -> None:
    place, clock, silent = tmp_path / "s.db", FakeClock(), hold()
    async with Session.open(model=ScriptedModel([silent]), store=place, clock=clock) as session:
        prompt = asyncio.create_task(session.prompt("go", id="E", turn_timeout=5))
        await reached(silent)
        await clock.asleep()
        await clock.advance(5)
        with pytest.raises(TurnTimeout):
            await prompt
    async with Session.open(id=session.id, model=ScriptedModel(default="again"), store=place) as session:
        with pytest.raises(TurnTimeout):
            await session.prompt("go", id="E")


async def test_what_a_crash_cut_off_says_so(tmp_path: Path) -> None:
    """No class of errors stands for that code: it is in the details."""
    place, held = tmp_path / "s.db", hold()
    session = await Session.open(model=ScriptedModel([held]), store=place)
    prompt = asyncio.create_task(session.prompt("go", id="E"))
    await reached(held)
    await session.flush()
    (tmp_path / "copy.db").write_bytes(place.read_bytes())
    wal = place.with_name("s.db-wal")
    if wal.exists():
        (tmp_path / "copy.db-wal").write_bytes(wal.read_bytes())
    await session.aclose("cancel")
    with pytest.raises(PromptCancelled):
        await prompt
    copy = tmp_path / "copy.db"
    async with Session.open(id=session.id, model=ScriptedModel(default="again"), store=copy) as found:
        await found.rename("claims, and so closes what was open")
        with pytest.raises(UnknownModelError) as told:
            await found.prompt("go", id="E")
        assert told.value.details["code"] == "interrupted"
