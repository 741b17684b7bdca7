"""Ids and numbers that nobody means, and two things at once: a typed error, or the right answer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tertulia import Host, Session
from tertulia.records.errors import (
    ConversationClosed,
    ConversationNotFound,
    IdConflict,
    InvalidId,
    InvalidInput,
    StorageError,
)
from tertulia.testing import ScriptedModel

pytestmark = pytest.mark.timeout(60)


def model() -> ScriptedModel:
    return ScriptedModel(default="ok")


@pytest.mark.parametrize("seq", ["9" * 5000, "0" * 5000 + "1", "١", "²", "-1", "1e3", ""])
async def test_a_record_id_with_an_odd_number_is_invalid(seq: str) -> None:
    async with Session.open(model=model()) as session:
        await session.prompt("hello")
        for method in (session.branch, lambda id: session.label(id, "a")):
            with pytest.raises(InvalidInput):
                await method(f"{session.root.id}:{seq}")


@pytest.mark.parametrize("id", [[1], {}, 5, None, "", "a" * 200])
async def test_what_is_no_id_is_invalid(id: Any) -> None:
    async with Session.open(model=model()) as session:
        with pytest.raises(InvalidId):
            session.conversation(id)
        with pytest.raises(InvalidId):
            await session.close_conversation(id)
        with pytest.raises(InvalidId):
            await session.delete_conversation(id)
        with pytest.raises(ConversationNotFound):
            session.conversation("nothing")


async def test_a_length_that_is_no_number_is_invalid() -> None:
    async with Session.open(model=model()) as session:
        for wrong in ("x", None, 1.5, True):
            with pytest.raises(InvalidInput):
                session.pending_messages(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidInput):
                session.queue.list(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [None, "sqlite"])
async def test_a_fork_by_id_that_was_closed_is_the_same_fork(tmp_path: Path, kind: str | None) -> None:
    store = kind and tmp_path / "s.db"
    async with Session.open(model=model(), store=store) as session:
        await session.prompt("one")
        first = await session.fork(id="conv_mine")
        await first.prompt("in the fork")
        await session.close_conversation("conv_mine")
        second = await session.fork(id="conv_mine")
        assert second is not first
        assert [e.text for e in await second.transcript()] == ["one", "ok", "in the fork", "ok"]
        await second.close()
        again = await asyncio.gather(*(session.fork(id="conv_mine") for _ in range(3)))
        assert len(set(again)) == 1
        with pytest.raises(IdConflict):
            await again[0].fork(id=session.root.id)
        await session.close_conversation("conv_mine")
        with pytest.raises(IdConflict):
            await session.fork(from_user_entry_index=0, id="conv_mine")
        await session.close_conversation("conv_mine")
        other = await session.open_conversation()
        with pytest.raises(IdConflict):
            await other.fork(id="conv_mine")
    if store is not None:
        async with Session.open(model=model(), store=store) as stranger:
            with pytest.raises(IdConflict):
                await stranger.fork(id="conv_mine")


async def test_deleting_beside_closing_is_done_or_says_that_it_is_not(tmp_path: Path) -> None:
    """At whatever moment the close comes."""
    async with await Host.open(store=tmp_path / "s.db", model=model()) as host:
        for steps in range(0, 60, 3):
            conversation = await host.create()
            await conversation.prompt("one")
            id = conversation.id

            async def delete(id: str = id) -> None:
                await host.delete(id)

            deleting = asyncio.create_task(delete())
            for _ in range(steps):
                await asyncio.sleep(0)
            await host.close(id)
            (raised,) = await asyncio.gather(deleting, return_exceptions=True)
            assert raised is None or isinstance(raised, ConversationClosed | StorageError), raised
            if raised is None:
                with pytest.raises(ConversationNotFound):
                    await host.load(id)
            else:
                await host.delete(id)


async def test_deleting_what_is_closed_at_that_moment_is_a_typed_error(tmp_path: Path) -> None:
    async with await Host.open(store=tmp_path / "s.db", model=model()) as host:
        conversation = await host.create()
        await conversation.prompt("one")
        load = host.load

        async def closed_meanwhile(id: str) -> Any:
            found = await load(id)
            await host.close(id)
            return found

        host.load = closed_meanwhile  # type: ignore[method-assign, assignment]
        with pytest.raises(ConversationClosed):
            await host.delete(conversation.id)
        host.load = load  # type: ignore[method-assign]
        await host.delete(conversation.id)
        with pytest.raises(ConversationNotFound):
            await host.load(conversation.id)
