"""Conformance: what commit promises. Atomicity, fences, sequence, order, cancellation."""

import asyncio
import gc
from typing import Any

import msgspec

from ..records.codec import decode
from ..records.errors import (
    ConversationNotFound,
    IdConflict,
    InvalidId,
    InvalidInput,
    ItemNotFound,
    SequenceConflict,
    SessionHeld,
    SessionNotFound,
    StaleFence,
    StoreClosed,
)
from ..records.ids import ConversationId, ItemId, SessionId
from ..records.record import Totals
from ..store.base import (
    Append,
    ChangeInbox,
    ConversationRow,
    Fence,
    GrantRow,
    PutConversation,
    PutGrant,
    PutSession,
    Rewrite,
)
from .store_kit import (
    A,
    B,
    C,
    Case,
    Opener,
    S,
    append,
    branch,
    case,
    create,
    fork,
    item,
    kinds,
    listed,
    opened,
    read,
    refused,
    row,
    rows,
    same,
    seqs,
    settled,
    writer,
)

CASES: list[Case] = []

ODD_IDS = (
    "..",
    ".",
    "a/b",
    "/etc/passwd",
    "\\",
    "A",
    "CON",
    "nul.txt",
    "%2e%2e",
    "-rf",
    " x ",
    "🦜 ñ 雪",
    "e\u0301",
    "\u00e9",
    "x" * 128,
    "🦜" * 128,
)


@case(CASES)
async def a_conversation_is_there_after_its_commit(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A, title="first"), append(A, 1, 3, ts=11))
        found = await store.open(A)
        same((found.last, found.conversation.title, found.inbox), (3, "first", ()), "what open() answers")
        same(found.conversation.updated, 11, "updated, after an append with a later ts")
        tip = found.branches[0]
        same((tip.last, tip.totals), (3, Totals(entries=3)), "the end and the totals of the branch")
        same(await read(store, A), list(rows(1, 3)), "the records")
        same((await store.session(S)).root, A, "the root of the session")
        same(await store.client_id(A, "x"), None, "a client id nobody used")


@case(CASES)
async def what_is_not_there_is_said_by_name(opener: Opener) -> None:
    async with opened(opener) as store:
        await refused(SessionNotFound, store.session(S), "a session nobody made")
        w = await writer(store)
        await refused(SessionNotFound, store.session(S), "a session that was claimed and never put")
        await refused(ConversationNotFound, store.open(A), "open")
        await refused(ConversationNotFound, w.commit(append(A, 1, 1)), "an append")
        await refused(ConversationNotFound, store.commit((item(A, "i"),)), "an inbox row")
        await w.commit(*create(A))
        await refused(ConversationNotFound, w.commit(append(A, 1, 1, branch=4)), "an append to no branch")
        gone = ChangeInbox(conversation=A, item=ItemId("i"), rank=1.0)
        await refused(ItemNotFound, w.commit(gone), "a change of no item")


@case(CASES)
async def a_batch_over_several_conversations_is_all_or_nothing(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), *create(B), append(A, 1, 2), append(B, 1, 1))
        await store.commit((item(A, "kept", client_id="c", digest=b"1"),))
        before = [await store.open(id) for id in (A, B)]
        changes = await store.changes(S, 0)
        grant = PutGrant(row=GrantRow(id="g", session=S, body=b"{}"))
        doomed = w.commit(
            append(A, 3, 4, ts=99),
            item(B, "new", client_id="d", digest=b"2"),
            grant,
            branch(A, 1, 2),
            *fork(A, C, 2),
            PutConversation(row=ConversationRow(id=B, session=S, title="changed")),
            append(B, 3, 3),
        )
        await refused(SequenceConflict, doomed, "a batch whose last op is wrong")
        same([await store.open(id) for id in (A, B)], before, "what was there before a refused batch")
        same(await seqs(store, A), [1, 2], "the records")
        await refused(ConversationNotFound, store.open(C), "a fork of a refused batch")
        same(list(await store.grants(S)), [], "the grants")
        same(await store.client_id(B, "d"), None, "its client id")
        same(await store.changes(S, 0), changes, "the changes")
        await w.commit(append(A, 3, 3), append(B, 2, 2), branch(A, 1, 2), item(B, "new", client_id="d"))
        same(await seqs(store, A), [1, 2, 3], "the records after a batch that is right")


@case(CASES)
async def a_later_claim_makes_a_fence_stale(opener: Opener) -> None:
    async with opened(opener) as store:
        old = await writer(store)
        await old.commit(*create(A), append(A, 1, 1))
        new = await writer(store)
        same(new.fence.epoch > old.fence.epoch, True, "the epoch rises with each claim")
        await refused(StaleFence, old.commit(append(A, 2, 2)), "a batch under the older claim")
        await new.commit(PutSession(session=S, root=A))
        await store.release(old.fence)  # someone else's by now
        same((await store.session(S)).holder is None, False, "that the later claim still stands")
        await new.commit(append(A, 2, 2))
        unknown = Fence(session=S, epoch=new.fence.epoch + 1)
        await refused(StaleFence, store.commit((append(A, 3, 3),), unknown), "an epoch nobody was given")
        never = Fence(session=SessionId("never"), epoch=0)
        batch = create(B, session=SessionId("never"))
        await refused(StaleFence, store.commit(batch, never), "a session nobody claimed")
        same(await seqs(store, A), [1, 2], "the records")


@case(CASES)
async def a_session_says_who_holds_it(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A))
        held = await store.session(S)
        same(held.epoch, w.fence.epoch, "the epoch")
        same(held.holder is None, False, "that someone holds it")
        await store.release(w.fence)
        await store.release(w.fence)
        same((await store.session(S)).holder, None, "the holder after release")
        later = await store.claim(S)
        same(later.epoch > w.fence.epoch, True, "the epoch after a release")


@case(CASES)
async def only_inbox_rows_need_no_fence(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A))
        await store.commit((item(A, "i"),))
        await refused(StaleFence, store.commit((append(A, 1, 1),)), "an append without a fence")
        await refused(StaleFence, store.commit((item(A, "j"), append(A, 1, 1))), "an append behind an item")
        await refused(StaleFence, store.commit(create(B)), "a conversation without a fence")
        same([each.item for each in (await store.open(A)).inbox], ["i"], "the inbox")
        same(type(await store.commit(())), int, "the commit number of an empty batch")


@case(CASES)
async def a_fence_covers_its_own_session_only(opener: Opener) -> None:
    other = SessionId("other")
    async with opened(opener) as store:
        w = await writer(store)
        x = await writer(store, other)
        await w.commit(*create(A))
        await x.commit(*create(B, session=other))
        await refused(StaleFence, x.commit(append(A, 1, 1)), "an append to another session's conversation")
        theirs = PutConversation(row=ConversationRow(id=A, session=other))
        await refused(StaleFence, x.commit(theirs), "taking over a conversation")
        foreign = PutConversation(row=ConversationRow(id=C, session=S))
        await refused(StaleFence, x.commit(foreign), "a new conversation in another session")
        await refused(StaleFence, x.commit(PutSession(session=S, root=A)), "another session's row")
        grant = PutGrant(row=GrantRow(id="g", session=S, body=b"{}"))
        await refused(StaleFence, x.commit(grant), "a grant for another session")
        await refused(StaleFence, x.commit(item(A, "i")), "an item under the wrong fence")
        change = Rewrite(conversation=A, branch=0, rows=())
        await refused(StaleFence, x.commit(change), "a rewrite of another session's records")
        await x.commit(*fork(A, C, 0, session=other))  # reading another's records is free


@case(CASES)
async def a_seq_is_taken_once_over_all_branches(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 3)
        for first in (1, 3, 5):
            await refused(SequenceConflict, w.commit(append(A, first, first)), f"an append at {first}")
        await w.commit(branch(A, 1, 2), append(A, 4, 5, branch=1))
        await refused(SequenceConflict, w.commit(append(A, 4, 4)), "a seq that another branch took")
        await w.commit(append(A, 6, 6))
        await w.commit(append(A, 7, 7, branch=1))
        same(await seqs(store, A, 0), [1, 2, 3, 6], "branch 0")
        same(await seqs(store, A, 1), [1, 2, 4, 5, 7], "branch 1")
        same((await store.open(A)).last, 7, "the last seq")
        await w.commit(*fork(A, B, 5, n=1))
        await refused(SequenceConflict, w.commit(append(B, 1, 1)), "a fork that begins at 1")
        await w.commit(append(B, 6, 6))
        await refused(SequenceConflict, w.commit(branch(A, 1, 2)), "a branch that is there already")
        await refused(SequenceConflict, w.commit(*fork(A, C, 8)), "a fork beyond the end")


@case(CASES)
async def an_append_may_leave_records_out(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A))
        sparse = append(A, 1, 6)
        await w.commit(msgspec.structs.replace(sparse, rows=(row(2), row(5))))
        await w.commit(msgspec.structs.replace(append(A, 7, 9), rows=()))
        nothing = Append(conversation=A, branch=0, first=10, last=9, rows=(), totals=Totals(entries=2), ts=5)
        await w.commit(nothing)
        await w.commit(append(A, 10, 10))
        same(await seqs(store, A), [2, 5, 10], "the records that were stored")
        same((await store.open(A)).last, 10, "the last seq")
        same(len(await store.changes(S, 0)), 3, "the changes: those appends that took a seq")
        await w.commit(branch(A, 1, 5), msgspec.structs.replace(nothing, branch=1, first=11, last=10))
        same((await store.open(A)).branches[1].last, 5, "the end of a branch after an append of nothing")


@case(CASES)
async def a_batch_that_makes_no_sense_is_refused(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 2)
        good = append(A, 3, 4)
        for wrong in ((row(4), row(3)), (row(3), row(3)), (row(2),), (row(5),)):
            batch = msgspec.structs.replace(good, rows=wrong)
            await refused(InvalidInput, w.commit(batch), f"rows {[each.seq for each in wrong]} in 3 to 4")
        await refused(InvalidInput, w.commit(append(A, 3, 1)), "an append of 3 to 1")
        for bad in ("", "  ", "a\0b", "\n", "x" * 129):
            await refused(InvalidId, w.commit(*create(ConversationId(bad))), f"the id {bad!r}")
            await refused(InvalidId, store.claim(SessionId(bad)), f"the session id {bad!r}")
        await w.commit(good)
        same(await seqs(store, A), [1, 2, 3, 4], "the records")


@case(CASES)
async def odd_ids_are_ids(opener: Opener) -> None:
    ids = [ConversationId(id) for id in ODD_IDS] + [A]
    async with opened(opener) as store:
        for id in ids:
            w = await writer(store, SessionId(id))
            await w.commit(*create(id, session=SessionId(id)), append(id, 1, 2, text=id))
            await w.commit(item(id, id, client_id=id))
        for id in ids:
            same(await read(store, id), list(rows(1, 2, id)), f"the records of {id!r}")
            found = await store.open(id)
            same((found.conversation.id, found.inbox[0].item), (id, id), "the ids")
            same((await store.session(SessionId(id))).root, id, f"the session {id!r}")
            same(await store.client_id(id, id) is None, False, f"the client id {id!r}")
        same(sorted(await listed(store)), sorted(ids), "the list")


@case(CASES, "durable")
async def odd_ids_are_there_after_reopening(opener: Opener) -> None:
    ids = [ConversationId(id) for id in ODD_IDS] + [A]
    async with opened(opener) as store:
        w = await writer(store)
        for id in ids:
            await w.commit(*create(id), append(id, 1, 2, text=id))
    async with opened(opener) as store:
        same(sorted(await listed(store)), sorted(ids), "the list")
        for id in ids:
            same(await read(store, id), list(rows(1, 2, id)), f"the records of {id!r}")


@case(CASES)
async def a_cancelled_waiter_changes_nothing(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A))
        dropped = w.commit(append(A, 1, 1))
        dropped.cancel()

        async def wait() -> None:
            await w.commit(append(A, 2, 2))

        waiter = asyncio.get_running_loop().create_task(wait())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        await w.commit(append(A, 3, 3))
        same(await seqs(store, A), [1, 2, 3], "the records of commits whose waiters were cancelled")


@case(CASES)
async def commits_of_several_conversations_keep_their_order(opener: Opener) -> None:
    ids = [ConversationId(f"c{n}") for n in range(8)]
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*(op for id in ids for op in create(id)))
        futures = [w.commit(append(ids[n % 8], n // 8 + 1, n // 8 + 1)) for n in range(200)]
        numbers = await asyncio.gather(*futures)
        same(numbers, sorted(set(numbers)), "the commit numbers, in order of the calls")
        for id in ids:
            same(await seqs(store, id), list(range(1, 26)), f"the records of {id}")
        changes = await store.changes(S, 0)
        same([change.commit for change in changes], numbers, "the changes, in commit order")
        order = [change.segment.conversation for change in changes]
        same(order, [ids[n % 8] for n in range(200)], "whose they are")


@case(CASES)
async def a_failed_batch_fails_what_counted_on_it(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 2)
        await w.filled(B, 1)
        results = await settled(
            [
                w.commit(append(A, 3, 3), append(B, 9, 9)),
                w.commit(append(A, 4, 4)),
                w.commit(append(B, 2, 2)),
                w.commit(append(A, 3, 3, text="third")),
            ]
        )
        same(kinds(results), ["SequenceConflict", "SequenceConflict", "int", "int"], "four commits in a row")
        same(await read(store, A), [*rows(1, 2), row(3, "third")], "the records")
        same(await seqs(store, B), [1, 2], "the records of another conversation")


@case(CASES)
async def a_failure_nobody_awaits_harms_nothing(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A))
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        handler = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        w.commit(append(A, 7, 7))
        store.commit((append(A, 1, 1),))
        await w.commit(append(A, 1, 1))
        await asyncio.sleep(0)
        gc.collect()
        loop.set_exception_handler(handler)
        same(complaints, [], "what the loop says of exceptions that nobody retrieved")
        same(await seqs(store, A), [1], "the records")


@case(CASES)
async def a_large_record_is_kept_whole(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        large = row(1, "0123456789abcdef" * (5 * 65_536))
        batch = msgspec.structs.replace(append(A, 1, 1), rows=(large,))
        await w.commit(*create(A), batch)
        same(await read(store, A) == [large], True, "that 5 MB come back as they were")
        same(decode((await read(store, A))[0].data).seq, 1, "its seq")


@case(CASES)
async def a_closed_store_says_so(opener: Opener) -> None:
    store = await opener()
    w = await writer(store)
    last = w.commit(*create(A))
    await store.aclose()
    same(last.done() and type(last.result()), int, "a commit that was handed over before the close")
    await store.aclose()
    await refused(StoreClosed, w.commit(append(A, 1, 1)), "a commit")
    await refused(StoreClosed, store.open(A), "open")
    await refused(StoreClosed, store.claim(S), "a claim")
    await refused(StoreClosed, store.list(), "list")


@case(CASES, "durable")
async def reopening_keeps_what_was_acknowledged(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A, title="t", updated=5), append(A, 1, 3), item(A, "i", client_id="c"))
        await w.commit(branch(A, 1, 2), append(A, 4, 4, branch=1), *fork(A, B, 2), append(B, 3, 3))
        grant = GrantRow(id="g", session=None, expires=1, body=b"\x00\xff")
        number = await w.commit(PutGrant(row=grant))
        ref = await store.put_blob(b"bytes")
        before = [await store.open(id) for id in (A, B)]
        read_before = [await read(store, A, 0), await read(store, A, 1), await read(store, B)]
        changes = await store.changes(S, 0)
    async with opened(opener) as store:
        same([await store.open(id) for id in (A, B)], before, "what open() answers")
        same([await read(store, A, 0), await read(store, A, 1), await read(store, B)], read_before, "records")
        same(list(await store.grants(S)), [grant], "the grants")
        same(await store.get_blob(ref), b"bytes", "the blob")
        same(list(await store.changes(S, 0)), list(changes), "the changes")
        found = await store.client_id(A, "c")
        same(found and found.item, "i", "the item of the client id")
        same((await store.session(S)).holder, None, "the holder, after a close")
        await refused(StaleFence, store.commit((append(A, 5, 5),), Fence(session=S, epoch=0)), "epoch 0")
        again = await writer(store)
        same(again.fence.epoch > w.fence.epoch, True, "the epoch after reopening")
        await refused(StaleFence, store.commit((append(A, 5, 5),), w.fence), "a fence from before")
        same(await again.commit(append(A, 5, 5)) > number, True, "the commit number after reopening")
        await refused(IdConflict, store.commit((item(A, "j", client_id="c"),)), "its client id")


@case(CASES, "processes")
async def two_stores_share_one_storage(opener: Opener) -> None:
    async with opened(opener) as one, opened(opener) as two:
        w = await writer(one)
        await w.filled(A, 2)
        same(await seqs(two, A), [1, 2], "what the other reads")
        held = await refused(SessionHeld, two.claim(S), "a claim of what the other holds")
        same(bool(held.details["holder"]), True, "that the error names the holder")
        same((await two.session(S)).holder is None, False, "the holder, seen from the other")
        await two.commit((item(A, "from outside"),))
        same([each.item for each in (await one.open(A)).inbox], ["from outside"], "the inbox")
        x = await writer(two, SessionId("other"))
        await asyncio.gather(
            *(w.commit(append(A, seq, seq)) for seq in range(3, 20)),
            x.commit(*create(B, session=SessionId("other")), append(B, 1, 1)),
        )
        same(await seqs(two, A), list(range(1, 20)), "what the other reads afterwards")
        await one.release(w.fence)
        y = await writer(two)
        await refused(StaleFence, w.commit(append(A, 20, 20)), "the former owner")
        await y.commit(append(A, 20, 20))
        same(len(await seqs(one, A)), 20, "what the former owner reads")
