"""Conformance: retention's rewrites and ranges, blobs, and deleting where forks are alive."""

from ..records.errors import BlobMissing, ConversationNotFound, IdConflict, SessionNotFound, StaleFence
from ..records.ids import ConversationId, ItemId, SessionId
from ..store.base import (
    AddBlobs,
    DeleteConversation,
    DropInbox,
    DropRange,
    GrantRow,
    PutGrant,
    Rewrite,
    Row,
)
from ..store.blobs import ref_of
from ..transcript.path import Segment
from .store_kit import (
    A,
    B,
    C,
    Case,
    Opener,
    S,
    Writer,
    append,
    branch,
    case,
    create,
    fork,
    item,
    listed,
    opened,
    path,
    read,
    refused,
    row,
    rows,
    same,
    seqs,
    tombstone,
    writer,
)

CASES: list[Case] = []

D = ConversationId("d")
A2 = ConversationId("a2")


def rewrite(id: ConversationId, *new: Row, branch: int = 0) -> Rewrite:
    return Rewrite(conversation=id, branch=branch, rows=new)


def drop(id: ConversationId, first: int, through: int, branch: int = 0) -> DropRange:
    return DropRange(
        conversation=id, branch=branch, first=first, through=through, tombstone=tombstone(first, through)
    )


def delete(id: ConversationId) -> DeleteConversation:
    return DeleteConversation(conversation=id)


def own(id: ConversationId, seq: int, *refs: str, branch: int = 0) -> AddBlobs:
    return AddBlobs(conversation=id, branch=branch, seq=seq, refs=refs)


@case(CASES)
async def a_rewrite_changes_bytes_and_nothing_else(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), append(A, 1, 4, ts=3), branch(A, 1, 2), append(A, 5, 5, branch=1))
        before = await store.open(A)
        await w.commit(rewrite(A, row(2, "x"), row(4, "y")), rewrite(A, row(5, "z" * 5000), branch=1))
        same(await read(store, A), [row(1), row(2, "x"), row(3), row(4, "y")], "branch 0")
        same(await read(store, A, 1), [row(1), row(2, "x"), row(5, "z" * 5000)], "branch 1")
        same(await store.open(A), before, "what open() answers")
        await w.commit(rewrite(A, row(3, "3"), row(9, "9"), row(5, "5")), rewrite(A))
        same(await seqs(store, A), [1, 2, 3, 4], "the seqs after rewriting what does not stand")
        await refused(ConversationNotFound, w.commit(rewrite(C, row(1))), "a rewrite of no conversation")
        await w.commit(append(A, 6, 6))
        same(await seqs(store, A), [1, 2, 3, 4, 6], "an append afterwards")


@case(CASES)
async def a_range_leaves_one_tombstone(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), append(A, 1, 6), branch(A, 1, 5), append(A, 7, 8, branch=1))
        before = await store.open(A)
        await w.commit(drop(A, 2, 4))
        expected = [row(1), Row(2, tombstone(2, 4)), row(5), row(6)]
        same(await read(store, A), expected, "the branch")
        same(await seqs(store, A, 1), [1, 2, 5, 7, 8], "a branch of it")
        same(await store.open(A), before, "what open() answers")
        await w.commit(drop(A, 1, 5), drop(A, 8, 8, branch=1))
        same(await read(store, A), [Row(1, tombstone(1, 5)), row(6)], "a range over a range")
        same(await seqs(store, A, 1), [1, 7, 8], "the other branch")
        await w.commit(drop(A, 1, 6), append(A, 9, 9))
        same(await seqs(store, A), [1, 9], "all of it gone, and an append")


@case(CASES)
async def a_fork_sees_what_retention_did_above_it(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 6)
        await w.commit(*fork(A, B, 4), append(B, 5, 5), *fork(B, C, 5), append(C, 6, 6))
        await w.commit(rewrite(A, row(1, "erased"), row(6, "erased")))
        same(await read(store, C), [row(1, "erased"), *rows(2, 6)], "a rewrite")
        await w.commit(drop(A, 2, 3))
        expected = [row(1, "erased"), Row(2, tombstone(2, 3)), *rows(4, 6)]
        same(await read(store, C), expected, "a range")
        await w.commit(drop(A, 4, 6))
        expected = [row(1, "erased"), Row(2, tombstone(2, 3)), Row(4, tombstone(4, 6)), *rows(5, 6)]
        same(await read(store, C), expected, "a range beyond the cut")
        same(await seqs(store, A), [1, 2, 4], "the parent")


@case(CASES)
async def deleting_leaves_nothing(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), *create(B), append(A, 1, 3), branch(A, 1, 1), append(A, 4, 4, branch=1))
        await w.commit(append(B, 1, 1), item(A, "i", client_id="c", digest=b"1"))
        grants = [GrantRow(id=id, session=S, conversation=of, body=b"") for id, of in (("a", A), ("s", None))]
        await w.commit(*(PutGrant(row=grant) for grant in grants))
        ways = [path(await store.open(A), n) for n in (0, 1)]
        await w.commit(delete(A))
        await refused(ConversationNotFound, store.open(A), "open")
        same(await listed(store, archived=None), [B], "the list")
        for way in ways:
            same(await store.read(way), [], "its records")
        same(await store.client_id(A, "c"), None, "its client id")
        same([each.id for each in await store.grants(S)], ["s"], "the grants")
        same({each.segment.conversation for each in await store.changes(S, 0)}, {B}, "the changes")
        await refused(ConversationNotFound, w.commit(append(A, 5, 5)), "an append")
        await refused(ConversationNotFound, store.commit((item(A, "j"),)), "an inbox row")
        await refused(ConversationNotFound, w.commit(delete(A)), "deleting it again")
        await w.commit(DropInbox(conversation=A, item=ItemId("i")))
        await w.commit(*create(A), append(A, 1, 1, text="anew"))
        same(await read(store, A), [row(1, "anew")], "a new one of that name")
        same((await store.open(A)).inbox, (), "its inbox")
        same(await store.client_id(A, "c"), None, "its client ids")


@case(CASES)
async def a_session_goes_with_its_last_conversation(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), *fork(A, B, 0))
        grants = [GrantRow(id="s", session=S, body=b""), GrantRow(id="all", session=None, body=b"")]
        await w.commit(*(PutGrant(row=grant) for grant in grants))
        await w.commit(delete(A))
        same((await store.session(S)).root, A, "the session, while a conversation is left")
        await w.commit(delete(B))
        await refused(SessionNotFound, store.session(S), "the session afterwards")
        same([each.id for each in await store.grants(S)], ["all"], "the grants")
        await w.commit(*create(C))  # the claim outlives the rows
        again = await writer(store)
        same(again.fence.epoch > w.fence.epoch, True, "the epoch of a new claim")
        await refused(StaleFence, w.commit(append(C, 1, 1)), "the old claim")
        await again.commit(append(C, 1, 1))


@case(CASES)
async def a_living_fork_keeps_what_it_reaches(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 6)
        whole = path(await store.open(A))
        await w.commit(*fork(A, B, 4), append(B, 5, 6, text="b"), *fork(A, C, 2), append(C, 3, 3, text="c"))
        await w.commit(item(A, "i", client_id="c", digest=b"1"), delete(A))
        await refused(ConversationNotFound, store.open(A), "the deleted parent")
        same(await store.client_id(A, "c"), None, "its client id")
        same(sorted(await listed(store)), [B, C], "the list")
        same(await read(store, B), [*rows(1, 4), *rows(5, 6, "b")], "the first fork")
        same(await read(store, C), [*rows(1, 2), row(3, "c")], "the second fork")
        beyond = [each.seq for each in await store.read(whole) if each.seq > 4]
        same(beyond, [], "what no fork reaches")
        await refused(IdConflict, w.commit(*create(A)), "a new conversation of that id")
        await w.commit(append(B, 7, 7), delete(B))
        same(await read(store, C), [*rows(1, 2), row(3, "c")], "the second fork, after the first one went")
        await w.commit(*fork(C, D, 1), append(D, 2, 2, text="d"), delete(C))
        same(await read(store, D), [row(1), row(2, "d")], "a fork of a fork, after both parents went")
        await w.commit(delete(D))
        same(await store.read(whole), [], "the records when the last fork went")
        await w.commit(*create(A), append(A, 1, 1, text="anew"))
        same(await read(store, A), [row(1, "anew")], "a new conversation of that id")


@case(CASES)
async def the_longest_of_several_forks_keeps_most(opener: Opener) -> None:
    """Also where it has nothing of its own, and whichever was made first."""
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(A), *fork(A, B, 0), append(A, 1, 5), *fork(A, D, 5), *fork(A, C, 2))
        await w.commit(append(C, 3, 3, text="c"), delete(A))
        for id, expected in ((B, []), (C, [*rows(1, 2), row(3, "c")]), (D, list(rows(1, 5)))):
            same(await read(store, id), expected, f"the fork {id}")
            same((await store.open(id)).last, len(expected), "its last seq")
        await w.commit(*fork(D, A2, 4), delete(D))
        same(await read(store, A2), list(rows(1, 4)), "a fork of a fork that had nothing of its own")


@case(CASES)
async def a_fork_of_a_fork_keeps_what_it_reaches(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 6)
        whole = path(await store.open(A))
        await w.commit(*fork(A, B, 4), append(B, 5, 5), *fork(B, C, 2), append(C, 3, 3, text="c"))
        await w.commit(delete(B))
        await w.commit(delete(A))
        same(await read(store, C), [*rows(1, 2), row(3, "c")], "the fork that is left")
        same([each.seq for each in await store.read(whole) if each.seq > 2], [], "what it does not reach")


@case(CASES)
async def a_fork_reaches_no_further_than_what_it_stands_on(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 6)
        whole = path(await store.open(A))
        await w.commit(*fork(A, B, 3), append(B, 4, 6, text="b"), *fork(B, C, 5), delete(B), delete(A))
        same(await read(store, C), [*rows(1, 3), *rows(4, 5, "b")], "the fork that is left")
        same([each.seq for each in await store.read(whole) if each.seq > 3], [], "what it does not reach")


@case(CASES)
async def kept_records_obey_retention(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 5)
        await w.commit(*fork(A, B, 4), delete(A), *fork(B, C, 3))
        await w.commit(rewrite(A, row(1, "erased")), drop(A, 3, 4))
        same(await read(store, B), [row(1, "erased"), row(2), Row(3, tombstone(3, 4))], "a fork")
        same(await read(store, C), [row(1, "erased"), row(2), Row(3, tombstone(3, 4))], "a fork of it")


@case(CASES)
async def a_commit_number_outlives_what_it_counted(opener: Opener) -> None:
    """Whoever follows the changes from a number on misses none."""
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(B))
        numbers = [await w.commit(*create(A), append(A, 1, 1)), await w.commit(delete(A))]
        numbers.append(await w.commit(append(B, 1, 1)))
        numbers.append(await w.commit(*create(A), append(A, 1, 1), delete(A)))
        numbers.append(await w.commit(append(B, 2, 2)))
        same(numbers[0] < numbers[2] < numbers[4], True, f"that {numbers} rise with each append")
        same(sorted(numbers), numbers, "the commit numbers, which never fall")
        found = [each.segment for each in await store.changes(S, numbers[3])]
        same(found, [Segment(B, 0, 1, 2)], "the changes after the last deletion")


@case(CASES, "durable")
async def a_commit_number_outlives_the_store(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.commit(*create(B))
        number = await w.commit(*create(A), append(A, 1, 1), delete(A))
    async with opened(opener) as store:
        w = await writer(store)
        same(await w.commit(append(B, 1, 1)) > number, True, "that it rises after reopening")


@case(CASES, "durable")
async def what_a_fork_keeps_is_there_after_reopening(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 5)
        await w.commit(*fork(A, B, 4), append(B, 5, 5))
        await w.commit(rewrite(A, row(2, "erased")))
        await w.commit(delete(A))
    async with opened(opener) as store:
        expected = [row(1), row(2, "erased"), *rows(3, 5)]
        same(await read(store, B), expected, "the fork")
        same(await listed(store), [B], "the list")
        again = await writer(store)
        await refused(IdConflict, again.commit(*create(A)), "a new conversation of the id that is kept")
        await again.commit(append(B, 6, 6), delete(B))
        await again.commit(*create(A))


@case(CASES)
async def deleting_across_sessions(opener: Opener) -> None:
    other = SessionId("other")
    async with opened(opener) as store:
        w = await writer(store)
        x = await writer(store, other)
        await w.filled(A, 3)
        await x.commit(*create(B, session=other), *fork(A, C, 2, session=other))
        await refused(StaleFence, x.commit(delete(A)), "deleting another session's conversation")
        await w.commit(delete(A))
        await refused(SessionNotFound, store.session(S), "the session that lost its last conversation")
        same(await seqs(store, C), [1, 2], "a fork in another session")
        await x.commit(delete(C))


@case(CASES)
async def blobs_are_named_by_what_they_hold(opener: Opener) -> None:
    async with opened(opener) as store:
        ref = await store.put_blob(b"some bytes")
        same(ref, ref_of(b"some bytes"), "the ref")
        same(await store.put_blob(b"some bytes"), ref, "the ref of the same bytes")
        same(await store.get_blob(ref), b"some bytes", "the bytes")
        same(await store.get_blob(await store.put_blob(b"")), b"", "no bytes at all")
        large = bytes(range(256)) * 8192
        same(await store.get_blob(await store.put_blob(large)) == large, True, "that 2 MB come back")
        for wrong in ("blob_" + "0" * 64, "", "../x", "blob_../../x", "nonsense", "a\0b"):
            await refused(BlobMissing, store.get_blob(wrong), f"the ref {wrong!r}")


@case(CASES)
async def blobs_live_as_long_as_their_owners(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 4)
        refs = [await store.put_blob(bytes([n]) * 100) for n in range(3)]
        first, second, third = refs
        await w.commit(own(A, 1, first), own(A, 3, third))
        await w.commit(own(A, 1, second))
        same(await _alive(w, refs), refs, "after a record got a second blob")
        await w.commit(own(A, 2, first))
        await w.commit(rewrite(A, row(1, "x")))
        same(await _alive(w, refs), [first, third], "after a rewrite of one owner of two")
        await w.commit(drop(A, 2, 3))
        same(await _alive(w, refs), [], "after a range")
        missing = own(A, 4, first)
        await refused(BlobMissing, w.commit(append(A, 5, 5), missing), "a blob that is gone")
        same(await seqs(store, A), [1, 2, 4], "the records: that batch was refused")


@case(CASES)
async def a_rewrite_may_keep_its_blobs(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 2)
        ref = await store.put_blob(b"x")
        await w.commit(own(A, 1, ref))
        await w.commit(rewrite(A, row(1, "new")), own(A, 1, ref))
        same(await store.get_blob(ref), b"x", "a blob that is owned again in the same batch")
        again = await store.put_blob(b"x")  # for a record that is yet to be written
        await w.commit(rewrite(A, row(1, "newer")))
        same(await store.get_blob(again), b"x", "a blob that was put again before its owner went")
        await w.commit(own(A, 2, again))
        await w.commit(drop(A, 2, 2))
        same(await _alive(w, [ref]), [], "after its last owner went")


@case(CASES)
async def deleting_takes_blobs_along(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 4)
        refs = [await store.put_blob(bytes([n]) * 10) for n in range(3)]
        kept, beyond, shared = refs
        await w.commit(*fork(A, B, 3))
        await w.commit(*create(D), append(D, 1, 1), own(D, 1, shared))
        await w.commit(own(A, 2, kept), own(A, 4, beyond, shared))
        await w.commit(delete(A))
        same(await _alive(w, refs), [kept, shared], "what a fork and another conversation still own")
        await w.commit(delete(B))
        same(await _alive(w, refs), [shared], "after the fork went")
        await w.commit(delete(D))
        same(await _alive(w, refs), [], "after the last owner went")


@case(CASES)
async def blobs_that_nothing_refers_to_are_collected(opener: Opener) -> None:
    async with opened(opener) as store:
        w = await writer(store)
        await w.filled(A, 1)
        refs = [await store.put_blob(bytes([n])) for n in range(3)]
        await w.commit(own(A, 1, refs[0]))
        same(await store.collect(older_than=3600.0), 0, "how many were old enough")
        same(await _alive(w, refs), refs, "the blobs")
        same(await store.collect(older_than=0.0), 2, "how many nothing refers to")
        same(await _alive(w, refs), refs[:1], "what is left")
        same(await store.collect(older_than=0.0), 0, "how many a second time")
        await store.put_blob(bytes([0]))
        same(await store.collect(older_than=0.0), 0, "how many when one that is owned was put again")
        same(await _alive(w, refs), refs[:1], "what is left")


async def _alive(w: Writer, refs: list[str]) -> list[str]:
    found = []
    for ref in refs:
        try:
            await w.store.get_blob(ref)
        except BlobMissing:
            continue
        found.append(ref)
    return found
