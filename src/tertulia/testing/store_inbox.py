"""Conformance: what waits, client ids and grants."""

import asyncio
from collections.abc import Sequence

from ..records.errors import IdConflict, ItemNotFound, StaleFence
from ..records.ids import ConversationId, ItemId, SessionId, TurnId
from ..store.base import (
    ChangeInbox,
    ClientIdRow,
    DropGrant,
    DropInbox,
    GrantRow,
    PutClientId,
    PutGrant,
    Store,
)
from .store_kit import (
    A,
    B,
    Case,
    Opener,
    S,
    append,
    case,
    create,
    fork,
    item,
    opened,
    refused,
    same,
    seqs,
    writer,
)

CASES: list[Case] = []


async def _waiting(store: Store, id: ConversationId = A) -> list[str]:
    return [each.item for each in (await store.open(id)).inbox]


@case(CASES)
async def the_inbox_keeps_the_order_of_arrival(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), *create(B))
        await asyncio.gather(*(store.commit((item(A, f"i{n}"),)) for n in range(20)))
        await store.commit((item(B, "i0"),))  # items of another conversation are others
        same(await _waiting(store), [f"i{n}" for n in range(20)], "the inbox")
        rows = (await store.open(A)).inbox
        numbers = [row.n for row in rows]
        same(numbers, sorted(set(numbers)), "the numbers of arrival")
        put = item(A, "i3").row
        found = (rows[3].body, rows[3].source, rows[3].state, rows[3].ts, rows[3].rank)
        same(found, (put.body, "follow_up", "queued", 7, None), "an item as it was put")
        refusal = await refused(IdConflict, store.commit((item(A, "i3"),)), "an item that waits already")
        same(refusal.details.get("item"), "i3", "the item that the error names")


@case(CASES)
async def items_change_and_go(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), *(item(A, name) for name in "abcd"))
        numbers = [row.n for row in (await store.open(A)).inbox]
        await w.commit(ChangeInbox(conversation=A, item=ItemId("d"), rank=numbers[0] - 1.0))
        same(await _waiting(store), ["d", "a", "b", "c"], "the order after promoting one")
        between = (numbers[0] + numbers[1]) / 2
        await w.commit(ChangeInbox(conversation=A, item=ItemId("c"), rank=between, body=b"new"))
        same(await _waiting(store), ["d", "a", "c", "b"], "the order after moving one between two others")
        await w.commit(ChangeInbox(conversation=A, item=ItemId("c"), state="held"))
        changed = (await store.open(A)).inbox[2]
        same((changed.state, changed.body, changed.rank), ("held", b"new", between), "the changed item")
        await w.commit(ChangeInbox(conversation=A, item=ItemId("c"), body=b""))
        same((await store.open(A)).inbox[2].body, b"", "an empty body")
        await w.commit(DropInbox(conversation=A, item=ItemId("a")), append(A, 1, 1))
        await w.commit(DropInbox(conversation=A, item=ItemId("a")))
        same(await _waiting(store), ["d", "c", "b"], "the inbox after a drop")
        again = ChangeInbox(conversation=A, item=ItemId("a"), state="held")
        await refused(ItemNotFound, w.commit(append(A, 2, 2), again), "a change of what is gone")
        same(await seqs(store, A), [1], "the records")
        unfenced = DropInbox(conversation=A, item=ItemId("b"))
        await refused(StaleFence, store.commit((unfenced,)), "a drop without a fence")
        await store.commit((item(A, "e"),))
        same(await _waiting(store), ["d", "c", "b", "e"], "the inbox after one more came")


@case(CASES)
async def a_client_id_is_used_once(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), *create(B))
        await store.commit((item(A, "i", client_id="c", digest=b"1"),))
        for digest in (b"1", b"2"):
            twin = item(A, "j", client_id="c", digest=digest)
            refusal = await refused(IdConflict, store.commit((twin,)), "a client id that was used")
            same(refusal.details.get("item"), "i", "the item that the error names")
        same(await _waiting(store), ["i"], "the inbox")
        found = await store.client_id(A, "c")
        row = ClientIdRow(conversation=A, client_id="c", digest=b"1", item=ItemId("i"))
        same(found, row, "what is known of it")
        await store.commit((item(B, "i", client_id="c", digest=b"9"),))  # per conversation
        await w.commit(DropInbox(conversation=A, item=ItemId("i")))
        same(await store.client_id(A, "c"), row, "what is known of it when the item has gone")
        pair = [item(A, "k", client_id="d", digest=b"1"), item(A, "l", client_id="d", digest=b"1")]
        results = await asyncio.gather(*(store.commit((one,)) for one in pair), return_exceptions=True)
        same([isinstance(each, IdConflict) for each in results], [False, True], "two at the same time")
        await refused(IdConflict, store.commit((item(A, "m", client_id="e"), pair[1])), "one of two")
        same(await store.client_id(A, "e"), None, "the other one, which was refused with it")


@case(CASES)
async def a_client_id_learns_what_became_of_it(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), item(A, "i", client_id="c", digest=b"1"))
        row = ClientIdRow(
            conversation=A,
            client_id="c",
            digest=b"1",
            item=ItemId("i"),
            turn=TurnId("t"),
            outcome=b"reply \xff",
        )
        await w.commit(PutClientId(row=row), append(A, 1, 1))
        same(await store.client_id(A, "c"), row, "its outcome")
        other = ClientIdRow(conversation=A, client_id="c", digest=b"2")
        await refused(IdConflict, w.commit(append(A, 2, 2), PutClientId(row=other)), "another digest")
        direct = ClientIdRow(conversation=A, client_id="new", digest=b"3", turn=TurnId("u"))
        await w.commit(PutClientId(row=direct))
        same(await store.client_id(A, "new"), direct, "one that came without an item")
        used = item(A, "j", client_id="new", digest=b"3")
        refusal = await refused(IdConflict, store.commit((used,)), "an item with that client id")
        same(refusal.details.get("turn"), "u", "the turn that the error names")
        await w.commit(*fork(A, B, 1))
        same(await store.client_id(B, "c"), None, "a fork has client ids of its own")


@case(CASES)
async def grants_are_kept_as_given(opener: Opener) -> None:
    other = SessionId("other")
    async with opened(opener) as store:
        w = await writer(store)
        x = await writer(store, other)
        await w.commit(*create(A))
        mine = GrantRow(id="mine", session=S, conversation=A, expires=1, body=b"\x00\xff{}")
        all_ = GrantRow(id="all", session=None, expires=None, body=b"{}")
        theirs = GrantRow(id="theirs", session=other, body=b"{}")
        await w.commit(PutGrant(row=mine), PutGrant(row=all_))
        await x.commit(PutGrant(row=theirs))
        same(_by_id(await store.grants(S)), [all_, mine], "the grants; one that expired is not filtered")
        same(_by_id(await store.grants(other)), [all_, theirs], "those of another session")
        same(_by_id(await store.grants(SessionId("new"))), [all_], "those of a session nobody made")
        changed = GrantRow(id="mine", session=S, body=b"2")
        await w.commit(PutGrant(row=changed))
        same(_by_id(await store.grants(S)), [all_, changed], "after a change")
        await refused(StaleFence, w.commit(DropGrant(id="theirs")), "dropping another session's grant")
        await w.commit(DropGrant(id="mine"), DropGrant(id="mine"), DropGrant(id="never"))
        await x.commit(DropGrant(id="all"))
        same(list(await store.grants(S)), [], "after dropping them")


def _by_id(rows: Sequence[GrantRow]) -> list[GrantRow]:
    return sorted(rows, key=lambda row: row.id)
