"""What is the memory store's own: its futures, its clock, and what it takes back. The rest is in the suite."""

import msgspec
import pytest

from tertulia.records.errors import BlobMissing, SequenceConflict, StoreCorrupt, TertuliaError
from tertulia.records.ids import ConversationId, ItemId
from tertulia.store import blobs
from tertulia.store.base import (
    AddBlobs,
    ChangeInbox,
    ClientIdRow,
    DeleteConversation,
    DropGrant,
    DropInbox,
    DropRange,
    GrantRow,
    Op,
    PutClientId,
    PutGrant,
    Rewrite,
)
from tertulia.store.memory import MemoryStore
from tertulia.testing.store_kit import (
    A,
    B,
    C,
    Writer,
    append,
    branch,
    create,
    fork,
    item,
    row,
    tombstone,
    writer,
)

WRONG = append(B, 99, 99)


class Hand:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> int:
        return int(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


async def _filled() -> tuple[Writer, str]:
    w = await writer(MemoryStore())
    ref = await w.store.put_blob(b"x")
    await w.commit(*create(A), *create(B), append(A, 1, 5), append(B, 1, 1), branch(A, 1, 3), *fork(A, C, 2))
    await w.commit(
        item(A, "i", client_id="c", digest=b"1"),
        PutGrant(row=GrantRow(id="g", session=w.fence.session, conversation=A, body=b"")),
        AddBlobs(conversation=A, branch=0, seq=4, refs=(ref,)),
    )
    return w, ref


NEW = ConversationId("new")
OPS: dict[str, tuple[Op, ...]] = {
    "create": create(NEW),
    "change": create(A, title="changed")[:2],
    "branch": (branch(A, 2, 1),),
    "fork": fork(A, NEW, 5),
    "append": (append(A, 6, 8), append(A, 9, 9, branch=1, ts=77)),
    "item": (item(A, "j", client_id="d", digest=b"2"),),
    "change item": (ChangeInbox(conversation=A, item=ItemId("i"), rank=0.5, body=b"", state="held"),),
    "drop item": (DropInbox(conversation=A, item=ItemId("i")),),
    "client id": (PutClientId(row=ClientIdRow(conversation=A, client_id="c", digest=b"1", outcome=b"o")),),
    "grant": (PutGrant(row=GrantRow(id="g", session=None, body=b"2")), DropGrant(id="g")),
    "rewrite": (Rewrite(conversation=A, branch=0, rows=(row(1, "x"), row(4, "y"))),),
    "range": (DropRange(conversation=A, branch=0, first=2, through=4, tombstone=tombstone(2, 4)),),
    "delete": (DeleteConversation(conversation=A),),
    "delete all": tuple(DeleteConversation(conversation=id) for id in (A, C, B)),
}


@pytest.mark.parametrize("name", OPS)
async def test_a_refused_batch_leaves_the_very_same_state(name: str) -> None:
    w, _ = await _filled()
    assert isinstance(w.store, MemoryStore)
    before = _picture(w.store)
    wrong = (*create(B)[1:2], WRONG)  # B again, should the batch have deleted it
    with pytest.raises(TertuliaError):
        await w.commit(*OPS[name], *wrong)
    assert _picture(w.store) == before
    await w.commit(*OPS[name])
    assert _picture(w.store) != before


def _picture(store: MemoryStore) -> object:
    """All that it holds, for comparison."""
    return [_plain(getattr(store._open, name)) for name in sorted(vars(store._open))]


def _plain(thing: object) -> object:
    if isinstance(thing, msgspec.Struct):
        return [(name, _plain(getattr(thing, name))) for name in thing.__struct_fields__]
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    return [_plain(each) for each in thing] if isinstance(thing, list) else thing


async def test_a_commit_is_settled_when_the_call_returns() -> None:
    w, _ = await _filled()
    assert w.commit(append(A, 6, 6)).result() > 0
    assert isinstance(w.commit(append(A, 6, 6)).exception(), SequenceConflict)


async def test_the_store_is_not_durable() -> None:
    store = MemoryStore()
    assert store.durable is False
    await store.aclose()


async def test_blobs_are_collected_by_age() -> None:
    clock = Hand()
    store = MemoryStore(clock)
    old = await store.put_blob(b"old")
    clock.seconds += 10
    young = await store.put_blob(b"young")
    clock.seconds += 5
    assert await store.collect(older_than=10.0) == 1
    assert await store.get_blob(young) == b"young"
    with pytest.raises(BlobMissing):
        await store.get_blob(old)
    await store.put_blob(b"young")  # put again: young again
    clock.seconds += 9
    assert await store.collect(older_than=10.0) == 0


@pytest.mark.req("S4-06a", "S4-06b")
async def test_blobs_that_are_not_what_was_stored_are_told_from_missing_ones() -> None:
    store = MemoryStore()
    ref = await store.put_blob(b"right")
    store._open.blobs[ref].data = b"wrong"
    with pytest.raises(StoreCorrupt) as corrupt:
        await store.get_blob(ref)
    assert corrupt.value.details == {"ref": ref}
    with pytest.raises(BlobMissing) as missing:
        await store.get_blob(blobs.ref_of(b"never"))
    assert missing.value.details == {"ref": blobs.ref_of(b"never")}
    assert missing.value.hint


def test_the_name_of_a_blob_is_its_sha256() -> None:
    known = "blob_ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert blobs.ref_of(b"abc") == known
    assert blobs.check(known, b"abc") == b"abc"
