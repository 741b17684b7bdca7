"""A store against a plain model: any order of commits, forks, erasures and reopenings leaves both equal.

In the model a branch holds its parent as an object: what a fork reaches is alive because Python keeps it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tertulia.records.errors import (
    BlobMissing,
    IdConflict,
    ItemNotFound,
    SequenceConflict,
    StaleFence,
    TertuliaError,
)
from tertulia.records.ids import ConversationId, ItemId, TurnId
from tertulia.records.record import Totals
from tertulia.store.base import (
    AddBlobs,
    Append,
    Change,
    ChangeInbox,
    ClientIdRow,
    DeleteConversation,
    DropInbox,
    DropRange,
    Fence,
    Op,
    PutClientId,
    Rewrite,
    Row,
    Store,
)
from tertulia.store.memory import MemoryStore
from tertulia.store.open import open_store
from tertulia.testing import store_kit as kit
from tertulia.transcript.path import Segment

SEED = st.integers(0, 10_000)
Refusal = type[TertuliaError] | tuple[type[TertuliaError], ...]


@dataclass(eq=False)
class Branch:
    parent: Branch | None = None
    at: int = 0
    last: int = 0
    entries: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    blobs: dict[int, set[str]] = field(default_factory=dict)

    def seen(self, until: int) -> Iterator[tuple[Branch, int]]:
        if self.parent is not None:
            yield from self.parent.seen(min(self.at, until))
        for seq in sorted(self.rows):
            if self.at < seq <= until:
                yield self, seq


@dataclass(eq=False)
class Conversation:
    branches: list[Branch]
    last: int = 0
    updated: int = 0
    inbox: list[tuple[float, int, str]] = field(default_factory=list)  # rank, number of arrival, item
    client_ids: dict[str, ClientIdRow] = field(default_factory=dict)


class StoreMachine(RuleBasedStateMachine):
    """Subclasses say how the store is opened."""

    def opening(self) -> Awaitable[Store]:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store: Store = self.run(self.opening)
        self.fence: Fence = self.run(lambda: self.store.claim(kit.S))
        self.stale = Fence(session=kit.S, epoch=0)
        self.living: dict[ConversationId, Conversation] = {}
        self.changes: list[Change] = []
        self.refs: set[str] = set()
        self.number = 0  # of the last commit
        self.made = 0  # names given out

    def teardown(self) -> None:
        self.run(self.store.aclose)
        self.runner.close()

    # ── helpers ──

    def run(self, doing: Callable[[], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            return await doing()

        return self.runner.run(main())

    def commit(self, *ops: Op) -> int:
        number: int = self.run(lambda: self.store.commit(ops, self.fence))
        taken = any(isinstance(op, Append) and op.last >= op.first for op in ops)
        assert number > self.number if taken else number >= self.number
        self.number = number
        return number

    def refused(self, error: Refusal, *ops: Op, fence: Fence | None = None) -> None:
        with pytest.raises(error):
            self.run(lambda: self.store.commit(ops, fence or self.fence))

    def name(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def pick(self, seed: int) -> tuple[ConversationId, Conversation, int, Branch]:
        """A conversation and a branch of it, chosen by a number that can shrink."""
        ids = list(self.living)
        id = ids[seed % len(ids)]
        found = self.living[id]
        n = seed // len(ids) % len(found.branches)
        return id, found, n, found.branches[n]

    # ── rules ──

    @precondition(lambda self: len(self.living) < 6)
    @rule(updated=st.integers(0, 50))
    def create(self, updated: int) -> None:
        id = ConversationId(self.name("c"))
        self.commit(*kit.create(id, updated=updated))
        self.living[id] = Conversation([Branch()], updated=updated)

    def append(
        self, seed: int, count: int, keep: Callable[[int], bool]
    ) -> tuple[Append, Callable[[int], None]]:
        """An append, and what it does to the model once it has a commit number."""
        id, found, n, branch = self.pick(seed)
        first, last, ts = found.last + 1, found.last + count, seed % 60
        new = [row for row in kit.rows(first, last, self.name("text ")) if keep(row.seq)]
        op = Append(
            conversation=id,
            branch=n,
            first=first,
            last=last,
            rows=tuple(new),
            totals=Totals(entries=last),
            ts=ts,
        )

        def apply(number: int) -> None:
            branch.rows.update({row.seq: row for row in new})
            branch.entries = last
            found.updated = max(found.updated, ts)
            if count:
                branch.last = found.last = last
                self.changes.append(Change(number, Segment(id, n, first - 1, last)))

        return op, apply

    @precondition(lambda self: self.living)
    @rule(seed=SEED, count=st.integers(0, 4), sparse=st.booleans())
    def append_one(self, seed: int, count: int, sparse: bool) -> None:
        op, apply = self.append(seed, count, lambda seq: not sparse or seq % 2 == 0)
        apply(self.commit(op))

    @precondition(lambda self: self.living)
    @rule(seed=SEED, count=st.integers(1, 3))
    def append_to_all(self, seed: int, count: int) -> None:
        pairs = [self.append(n, count, lambda _: True) for n in range(len(self.living))]
        number = self.commit(*(op for op, _ in pairs))
        for _, apply in pairs:
            apply(number)

    @precondition(lambda self: self.living)
    @rule(seed=SEED, at=SEED)
    def add_branch(self, seed: int, at: int) -> None:
        id, found, n, parent = self.pick(seed)
        cut = at % (parent.last + 1)
        self.commit(kit.branch(id, len(found.branches), cut, parent=n))
        found.branches.append(Branch(parent, cut, cut, cut))

    @precondition(lambda self: self.living and len(self.living) < 6)
    @rule(seed=SEED, at=SEED)
    def fork(self, seed: int, at: int) -> None:
        id, _, n, parent = self.pick(seed)
        cut = at % (parent.last + 1)
        new = ConversationId(self.name("f"))
        self.commit(*kit.fork(id, new, cut, n=n))
        self.living[new] = Conversation([Branch(parent, cut, cut, cut)], last=cut)

    @precondition(lambda self: self.living)
    @rule(seed=SEED, step=st.integers(1, 3))
    def rewrite(self, seed: int, step: int) -> None:
        id, found, n, branch = self.pick(seed)
        text = self.name("rewritten ")
        new = [kit.row(seq, text) for seq in range(1, found.last + 3, step)]
        self.commit(Rewrite(conversation=id, branch=n, rows=tuple(new)))
        for row in new:
            if row.seq in branch.rows:
                branch.rows[row.seq] = row
                branch.blobs.pop(row.seq, None)

    @precondition(lambda self: self.living)
    @rule(seed=SEED, first=SEED, length=st.integers(1, 4))
    def drop_range(self, seed: int, first: int, length: int) -> None:
        id, _, n, branch = self.pick(seed)
        if not branch.rows:
            return
        first = sorted(branch.rows)[first % len(branch.rows)]
        through = min(branch.last, first + length - 1)
        stone = kit.tombstone(first, through)
        self.commit(DropRange(conversation=id, branch=n, first=first, through=through, tombstone=stone))
        for seq in range(first, through + 1):
            branch.rows.pop(seq, None)
            branch.blobs.pop(seq, None)
        branch.rows[first] = Row(first, stone)

    @precondition(lambda self: self.living)
    @rule(seed=SEED)
    def delete(self, seed: int) -> None:
        id, *_ = self.pick(seed)
        self.commit(DeleteConversation(conversation=id))
        del self.living[id]
        self.changes = [change for change in self.changes if change.segment.conversation != id]

    @precondition(lambda self: self.living)
    @rule(seed=SEED, content=st.integers(0, 3))
    def add_blob(self, seed: int, content: int) -> None:
        id, _, n, branch = self.pick(seed)
        if not branch.rows:
            return
        seq = sorted(branch.rows)[seed % len(branch.rows)]
        ref: str = self.run(lambda: self.store.put_blob(bytes([content]) * 50))
        self.commit(AddBlobs(conversation=id, branch=n, seq=seq, refs=(ref,)))
        branch.blobs.setdefault(seq, set()).add(ref)
        self.refs.add(ref)

    @precondition(lambda self: self.living)
    @rule(seed=SEED, client_id=st.sampled_from([None, None, "x", "y"]))
    def put_item(self, seed: int, client_id: str | None) -> None:
        id, found, *_ = self.pick(seed)
        op = kit.item(id, self.name("i"), client_id=client_id, digest=b"1")
        if client_id in found.client_ids:
            self.refused(IdConflict, op)
            return
        self.run(lambda: self.store.commit((op,)))
        number = next(row.n for row in self.run(lambda: self.store.open(id)).inbox if row.item == op.row.item)
        found.inbox.append((number, number, op.row.item))
        if client_id is not None:
            found.client_ids[client_id] = ClientIdRow(
                conversation=id, client_id=client_id, digest=b"1", item=op.row.item
            )

    @precondition(lambda self: self.living)
    @rule(seed=SEED, rank=st.floats(-5, 15))
    def move_item(self, seed: int, rank: float) -> None:
        id, found, *_ = self.pick(seed)
        if not found.inbox:
            self.refused(ItemNotFound, ChangeInbox(conversation=id, item=ItemId("none"), rank=rank))
            return
        place = seed % len(found.inbox)
        _, number, item = found.inbox[place]
        self.commit(ChangeInbox(conversation=id, item=ItemId(item), rank=rank))
        found.inbox[place] = (rank, number, item)

    @precondition(lambda self: self.living)
    @rule(seed=SEED)
    def drop_item(self, seed: int) -> None:
        id, found, *_ = self.pick(seed)
        if found.inbox:
            _, _, item = found.inbox.pop(seed % len(found.inbox))
            self.commit(DropInbox(conversation=id, item=ItemId(item)))

    @precondition(lambda self: self.living)
    @rule(seed=SEED, client_id=st.sampled_from("xyz"), digest=st.sampled_from([b"1", b"2"]))
    def put_client_id(self, seed: int, client_id: str, digest: bytes) -> None:
        id, found, *_ = self.pick(seed)
        turn = TurnId(self.name("t"))
        row = ClientIdRow(conversation=id, client_id=client_id, digest=digest, turn=turn, outcome=b"\xff")
        known = found.client_ids.get(client_id)
        if known is not None and known.digest != digest:
            self.refused(IdConflict, PutClientId(row=row))
            return
        self.commit(PutClientId(row=row))
        found.client_ids[client_id] = row

    @precondition(lambda self: self.living)
    @rule(seed=SEED, off=st.sampled_from([-1, 1, 5]))
    def wrong_batch(self, seed: int, off: int) -> None:
        id, found, n, branch = self.pick(seed)
        good, _ = self.append(seed, 2, lambda _: True)
        wrong = kit.append(id, found.last + 3 + off, found.last + 3 + off, branch=n)
        whole = Rewrite(conversation=id, branch=n, rows=tuple(kit.row(seq, "no") for seq in branch.rows))
        extra = kit.item(id, "never", client_id="never", digest=b"")
        self.refused(SequenceConflict, extra, whole, good, wrong)
        anew = (DeleteConversation(conversation=id), *kit.create(id), kit.append(id, 999, 999))
        self.refused((SequenceConflict, IdConflict), good, *anew)  # IdConflict where a fork keeps the id
        self.refused(StaleFence, good, fence=self.stale)
        assert self.run(lambda: self.store.client_id(id, "never")) is None

    @rule()
    def claim_again(self) -> None:
        self.stale = self.fence
        self.fence = self.run(lambda: self.store.claim(kit.S))
        assert self.fence.epoch > self.stale.epoch

    @rule()
    def reopen(self) -> None:
        if self.store.durable:
            self.run(self.store.aclose)
            self.store = self.run(self.opening)
            self.claim_again()

    # ── both are equal ──

    @invariant()
    def equal(self) -> None:
        self.run(self._compare)

    async def _compare(self) -> None:
        for id, model in self.living.items():
            found = await self.store.open(id)
            assert (found.last, found.conversation.updated) == (model.last, model.updated)
            ends = [
                (row.n, row.at, row.last, row.totals.entries)
                for row in found.branches
                if row.conversation == id
            ]
            assert ends == [(n, each.at, each.last, each.entries) for n, each in enumerate(model.branches)]
            assert [row.item for row in found.inbox] == [item for *_, item in sorted(model.inbox)]
            for n, branch in enumerate(model.branches):
                expected = [each.rows[seq] for each, seq in branch.seen(branch.last)]
                way = kit.path(found, n)
                assert await self.store.read(way) == expected
                backwards = await self.store.read(way, after=branch.last, limit=3, reverse=True)
                assert backwards == [row for row in expected[::-1] if row.seq < branch.last][:3]
            for client_id in "xyz":
                known = await self.store.client_id(id, client_id)
                assert known == model.client_ids.get(client_id)
        listed = [(row.updated, row.id) for row in (await self.store.list()).rows]
        assert listed == sorted(
            ((m.updated, id) for id, m in self.living.items()), key=lambda x: (-x[0], x[1])
        )
        assert list(await self.store.changes(kit.S, 0)) == self.changes
        await self._compare_blobs()

    async def _compare_blobs(self) -> None:
        alive: set[str] = set()
        for model in self.living.values():
            for branch in model.branches:
                for each, seq in branch.seen(branch.last):
                    alive |= each.blobs.get(seq, set())
        for ref in self.refs:
            try:
                await self.store.get_blob(ref)
            except BlobMissing:
                assert ref not in alive
            else:
                assert ref in alive


class MemoryMachine(StoreMachine):
    async def opening(self) -> Store:
        return MemoryStore()


class FileMachine(StoreMachine):
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class SqliteMachine(FileMachine):
    async def opening(self) -> Store:
        return await open_store(Path(self.folder.name, "store.db"), durability="normal")


class JsonlMachine(FileMachine):
    async def opening(self) -> Store:
        return await open_store(f"jsonl:{self.folder.name}/store")


TORTURE = bool(os.environ.get("TERTULIA_TORTURE"))
SETTINGS = settings(
    max_examples=400 if TORTURE else 40, stateful_step_count=60 if TORTURE else 30, deadline=None
)


@pytest.mark.req("S0-03b", "S2-12a")
@pytest.mark.timeout(1200 if TORTURE else 60)
@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine, JsonlMachine])
def test_a_store_and_its_model_stay_equal(machine: type[StoreMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)
