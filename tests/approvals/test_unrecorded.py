"""Answers whose commit failed: nothing of them holds, and no question stays open in the log."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import StorageError
from tests.approvals.kit import asked, asking, decisions, results, session, start, writes
from tests.session.kit import store_of

pytestmark = [pytest.mark.req("S2-08a", "S2-08b"), pytest.mark.timeout(30)]

FULL = StorageError("disk full")


@pytest.mark.parametrize("scope", ["always", "session", "turn"])
@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_no_grant_is_left_of_it(tmp_path: Path, decision: Any, scope: Any) -> None:
    ran: list[str] = []
    script = [writes("a"), writes("b"), "end"]
    async with (
        store_of("sqlite", tmp_path) as store,
        session(script, [asking(ran)], store=store) as (made, seen),
    ):
        prompt = start(made)
        approval = await asked(made, seen)
        store.fail(FULL)
        await made.approvals.answer(approval.id, decision=decision, scope=scope)
        again = await asked(made, seen, 2)
        assert made.approvals.grants() == []
        await made.approvals.answer(again.id, "allow_once")
        await prompt
        assert ran == ["b"]
        assert await decisions(made) == [("cancelled", "once", "cancel"), ("allow", "once", "user")]
        assert await results(made) == [("error", "disk full"), ("ok", "wrote b")]
        assert await store.grants(made.id) == []


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_the_end_of_the_turn_closes_its_question(tmp_path: Path, decision: Any) -> None:
    ran: list[str] = []
    async with (
        store_of("sqlite", tmp_path) as store,
        session([writes("a"), "end"], [asking(ran)], store=store) as (made, seen),
    ):
        prompt = start(made)
        approval = await asked(made, seen)
        store.fail(FULL, count=2)  # of the answer, and of what became of the call
        await made.approvals.answer(approval.id, decision=decision, scope="once")
        with pytest.raises(StorageError):
            await prompt
        assert ran == []
        assert await decisions(made) == [("cancelled", "once", "cancel")]


async def test_what_it_replaced_holds_again(tmp_path: Path) -> None:
    ran: list[str] = []
    async with (
        store_of("sqlite", tmp_path) as store,
        session([writes("a", "b", "c"), "end"], [asking(ran)], store=store) as (made, seen),
    ):
        prompt = start(made)
        await asked(made, seen, 3)
        questions = made.approvals.pending()
        store.hold()
        for each in questions:
            await made.approvals.answer(each.id, "allow_session")
        await store.waiting()
        for _ in range(20):
            await asyncio.sleep(0)
        (latest,) = made.approvals.grants()
        store.fail(FULL, after=1)  # one answer is stored; the others go together behind it
        store.let_go()
        await prompt
        (stored,) = [each for each in questions if each.args["path"] in ran]
        (grant,) = made.approvals.grants()
        assert grant.id.partition("_")[2] == stored.id.partition("_")[2]
        assert grant != latest
        assert [row.id for row in await store.grants(made.id)] == [grant.id]
        await made.approvals.revoke(grant.id)
        assert await store.grants(made.id) == []


async def test_of_two_conversations_neither_brings_back_what_failed_of_the_other(tmp_path: Path) -> None:
    ran: list[str] = []
    async with (
        store_of("sqlite", tmp_path) as store,
        session([writes("a"), writes("b"), "end", "end"], [asking(ran)], store=store) as (made, seen),
    ):
        other = await made.open_conversation()
        prompts = [start(made.root), start(other)]
        await asked(made, seen, 2)
        store.hold()
        for each in made.approvals.pending():
            await made.approvals.answer(each.id, "allow_session")
        await store.waiting(2)
        store.fail(FULL, count=2)  # the second replaces the first, whose commit fails before its own
        store.let_go()
        await asyncio.gather(*prompts)
        assert ran == []
        assert made.approvals.grants() == []
        assert await store.grants(made.id) == []
