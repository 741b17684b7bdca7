"""The journal: the only writer of a conversation.

Commit, apply to memory, emit, in that order, in the store's completion callback: whoever waits may be cancelled, and
memory still sees what was committed. One batch of a conversation is in flight at a time; what is put meanwhile goes
together in the next. So what is not in flight can be withdrawn, and a batch that fails takes along what is behind it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from ..records.clock import Clock, next_ts
from ..records.codec import encode
from ..records.errors import InvalidInput, PromptCancelled, StaleFence, StorageError
from ..records.event import AnyEvent, IterationStart, TextDelta
from ..records.record import AnyRecord, Compaction, Queue, Totals, TurnStart
from ..store.base import AddBlobs, Append, Op, PutConversation, Row
from ..transcript.path import BranchRow
from ..transcript.replay import Envelope, events
from ..transcript.retention import Retention, project
from ..transcript.stats import count
from .bus import Bus
from .log import Log, Withheld
from .owner import Owner

Committed = asyncio.Future[tuple[AnyRecord, ...]]


class Mirror(Protocol):
    """Something that keeps a copy of the log, on its own account."""

    def follow(self) -> None: ...

    async def aclose(self) -> None: ...


class Put:
    """Drafts (records with seq 0) and other changes that belong in one commit.

    `output`: what a model said, which a cancel withdraws and which was streamed already. `ride`: starts no commit of
    its own. `branch`: the drafts begin this new branch, which becomes the active one, with the totals `kept` in the
    store where they are not the same there. `row`: what it changes in the conversation's row. `before` and `after`:
    transient events that go out around the records' own. `undo` takes back what memory did ahead of a commit, at once
    when that fails.
    """

    __slots__ = (
        "after", "before", "branch", "committed", "drafts", "kept", "ops", "output", "ride", "row", "turn", "undo",
    )  # fmt: skip

    def __init__(
        self,
        drafts: Sequence[AnyRecord] = (),
        ops: Sequence[Op] = (),
        *,
        turn: str | None = None,
        output: bool = False,
        ride: bool = False,
        branch: BranchRow | None = None,
        row: Mapping[str, Any] | None = None,
    ) -> None:
        self.drafts = tuple(drafts)
        self.ops = tuple(ops)
        self.turn = turn
        self.output = output
        self.ride = ride
        self.branch = branch
        self.kept: Totals | None = None
        self.undo: Callable[[], None] | None = None
        self.row = {"active": branch.n} if branch is not None else dict(row or {})
        self.before: tuple[AnyEvent, ...] = ()
        self.after: tuple[AnyEvent, ...] = ()
        self.committed: Committed = asyncio.get_running_loop().create_future()


class Journal:
    def __init__(self, log: Log, owner: Owner, bus: Bus, clock: Clock, retention: Retention) -> None:
        self.log = log
        self.retention = retention
        self.turn_retention: dict[str, Retention] = {}  # a stricter one, for one turn only
        self.creation: tuple[Op, ...] = ()  # what the first commit has to create before all else
        self.owed: tuple[AnyRecord, ...] = ()  # ends of turns whose own commit failed
        self.commits = 0
        self.mirror: Mirror | None = None
        self.owner = owner
        self.session_id = owner.session
        self._bus = bus
        self._clock = clock
        self._pending: list[Put] = []
        self._flying: list[Put] = []
        self._paused = False
        self._alone = False  # put one at a time: a group was refused because of one of its members
        self._message: str | None = None  # the msg of the last record

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.session_id, self.log.id)

    def put(self, item: Put) -> Committed:
        """Fixes its place in the order at once. The future is settled when it is durable and memory shows it."""
        self._pending.append(item)
        if not item.ride:
            self._flush()
        return item.committed

    def mend(self, item: Put) -> None:
        """Ahead of everything that waits: what a crash left open is closed before anything new."""
        self._pending.insert(0, item)

    def withdraw(self, turn: str) -> None:
        """Take back what this turn's model said and no commit has taken yet; everything else stays."""
        kept = []
        for item in self._pending:
            if item.turn == turn and item.output:
                _settle(item, PromptCancelled("withdrawn by a cancel"))
            else:
                kept.append(item)
        self._pending = kept

    def in_flight(self, committed: Committed) -> bool:
        return any(item.committed is committed for item in self._flying)

    async def flush(self) -> None:
        """Until everything put so far is durable, or has failed: then the first failure is raised."""
        for committed in await self.settled():
            if not isinstance(committed.exception(), PromptCancelled):  # withdrawn is no failure
                committed.result()

    async def settled(self) -> list[Committed]:
        """Until everything put so far is durable, or has failed."""
        waiting = [item.committed for item in (*self._flying, *self._pending)]
        self._flush()
        if waiting:
            await asyncio.wait(waiting)
        return waiting

    async def pause(self) -> None:
        """What was put before this is through; what is put from now on waits for `go_on`."""
        while self._flying or self._pending:
            await self.settled()
        self._paused = True

    def go_on(self) -> None:
        self._paused = False
        self._flush()

    def publish(self, event: AnyEvent) -> None:
        self._bus.publish(event)

    @property
    def wanted(self) -> bool:
        return self._bus.wanted(self.log.id)

    def _flush(self) -> None:
        if self._flying or not self._pending or self._paused:
            return
        fence = self.owner.fence
        if fence is None:
            self.owner.claim().add_done_callback(self._claimed)
            return
        taken = self._pending[:1] if self._alone else self._pending
        self._pending = self._pending[1:] if self._alone else []
        batch = _Batch(self, taken)
        if not batch.puts:
            self._flush()
            return
        self._flying = batch.puts
        self.commits += 1
        done = self.owner.store.commit(tuple(batch.ops), fence)
        done.add_done_callback(lambda done: self._landed(batch, done))

    def _claimed(self, claim: "asyncio.Task[None]") -> None:
        if claim.cancelled() or claim.exception() is not None:
            error = None if claim.cancelled() else claim.exception()
            self._fail([], error or StorageError("the claim of the session was cancelled"))
        else:
            self._flush()

    def _landed(self, batch: "_Batch", done: "asyncio.Future[int]") -> None:
        self._flying = []
        error = StorageError("the store gave the commit up") if done.cancelled() else done.exception()
        if error is not None:
            self._refused(batch.puts, error)
            return
        self.creation = ()
        paid(self)
        self._message = batch.message
        self._bus.at_commit(done.result())
        batch.apply()
        for item, records in zip(batch.puts, batch.records, strict=True):
            self._emit(item, records)
            _settle(item, records)
        self._alone = self._alone and bool(self._pending)
        if self.mirror is not None:
            self.mirror.follow()
        self._flush()

    def _refused(self, puts: list[Put], error: BaseException) -> None:
        if isinstance(error, StaleFence):
            self.owner.lost()
        if isinstance(error, StorageError):
            self._fail(puts, error)
        elif len(puts) > 1:
            # One of them does not fit the state of things (a client id in use, an item gone): find out which.
            self._alone = True
            self._pending = puts + self._pending
            self._flush()
        else:
            _settle(puts[0], error)
            self._flush()

    def _fail(self, puts: list[Put], error: BaseException) -> None:
        behind, self._pending = self._pending, []
        self._alone = False
        failed = (*puts, *behind)
        for item in reversed(failed):  # the last that was done is undone first
            if item.undo is not None:
                item.undo()
                item.undo = None
        for item in failed:
            _settle(item, error)

    def _emit(self, item: Put, records: tuple[AnyRecord, ...]) -> None:
        if not self.wanted:
            self._bus.cursor += len(records)
            return
        self._bus.publish_all(item.before)
        envelope = self.envelope
        for record in records:
            for event in events(record, envelope):
                # What was streamed has shown its text and its beginning already.
                if not (item.output and isinstance(event, IterationStart | TextDelta)):
                    self._bus.publish(event)
        self._bus.publish_all(item.after)

    def stamp(self, draft: AnyRecord, seq: int, ts: int, index: int, message: str | None) -> AnyRecord:
        changes: dict[str, Any] = {"seq": seq, "ts": next_ts(self._clock, ts)}
        if isinstance(draft, Queue) and draft.state == "delivered":
            changes["delivered"] = seq + 1  # the message that it became follows it
        if draft.is_entry:
            changes["index"] = index
        if draft.msg is not None and draft.msg != message:
            changes["first"] = True
        return msgspec.structs.replace(draft, **changes)

    def retention_of(self, turn: str | None) -> Retention:
        return self.turn_retention.get(turn, self.retention) if turn is not None else self.retention

    def stored(self, record: AnyRecord) -> AnyRecord | None:
        """What the retention lets the store have of it."""
        retention = self.retention_of(record.turn)
        if isinstance(record, Compaction) and any(seq <= record.through for seq in self.log.withheld):
            return None  # it tells in other words what is kept out of the store
        if retention.bodies:
            return record
        return project(record, retention, record.ts)


class _Batch:
    """One commit under way: the puts that fit in it, their stamped records, and the ops that the store is given."""

    def __init__(self, journal: Journal, taken: Sequence[Put]) -> None:
        self.puts: list[Put] = []
        self.records: list[tuple[AnyRecord, ...]] = []
        self._journal = journal
        self.ops: list[Op] = [self._op(op) for op in journal.creation]
        self._applies: list[Callable[[], None]] = []
        self.message = journal._message
        log = journal.log
        self._row, self._updated = log.row, log.row.updated
        self._branch = log.branch
        self._seq, self._ts, self._totals = log.last, log.ts, log.totals
        self._kept = log.kept_totals  # of what is stored
        self._begin()
        for record in journal.owed:
            self._add(record)
        for item in taken:
            self._take(item)
        self._end()
        if self._row is not log.row:
            row = msgspec.structs.replace(self._row, updated=self._updated)
            self.ops.append(self._op(PutConversation(row=row)))

    def apply(self) -> None:
        for apply in self._applies:
            apply()

    def _begin(self) -> None:
        self._first = self._seq + 1
        self._appended: list[AnyRecord] = []
        self._rows: list[Row] = []
        self._blobs: list[Op] = []

    def _take(self, item: Put) -> None:
        if item.branch is not None:
            self._end()
        before = (self._seq, self._ts, self._totals, self._kept, self.message, self._branch)
        appended, rows = len(self._appended), len(self._rows)
        blobs, applies = len(self._blobs), len(self._applies)
        if item.branch is not None:
            self._switch(item.branch, item.kept)
        try:
            records = tuple(self._add(draft) for draft in item.drafts)
        except InvalidInput as error:
            self._seq, self._ts, self._totals, self._kept, self.message, self._branch = before
            del self._appended[appended:], self._rows[rows:], self._blobs[blobs:], self._applies[applies:]
            _settle(item, error)
            return
        self.ops.extend(map(self._op, item.ops))
        self.puts.append(item)
        self.records.append(records)
        if item.row:
            self._row = msgspec.structs.replace(self._row, **item.row)
            self._applies.append(partial(self._change, item.row))

    def _change(self, row: dict[str, Any]) -> None:
        """Of a row only what this commit was about: another may have changed the rest since it was put."""
        log = self._journal.log
        log.row = msgspec.structs.replace(log.row, **row)

    def _add(self, draft: AnyRecord) -> AnyRecord:
        journal = self._journal
        if isinstance(draft, TurnStart):
            draft = msgspec.structs.replace(draft, totals=self._totals)
        record = journal.stamp(draft, self._seq + 1, self._ts, self._totals.entries, self.message)
        stored = journal.stored(record)
        if stored is not record:
            branch = (self._branch.conversation, self._branch.n)
            held = Withheld(branch, record, stored is not None)
            self._applies.append(partial(journal.log.withheld.__setitem__, record.seq, held))
        if stored is not None:
            self._store(stored)
        self._appended.append(record)
        self._seq, self._ts = record.seq, record.ts
        same = self._kept is self._totals
        self._totals = count(self._totals, record)
        if stored is not None:
            self._kept = self._totals if same else count(self._kept, stored)
        self.message = record.msg
        return record

    def _store(self, record: AnyRecord) -> None:
        if self._kept is not self._totals:
            if record.is_entry:
                record = msgspec.structs.replace(record, index=self._kept.entries)
            elif isinstance(record, TurnStart):
                record = msgspec.structs.replace(record, totals=self._kept)
        self._rows.append(Row(record.seq, encode(record)))
        if record.refs:
            conversation, branch = self._journal.log.id, self._branch.n
            self._blobs.append(
                AddBlobs(conversation=conversation, branch=branch, seq=record.seq, refs=record.refs)
            )

    def _op(self, op: Op) -> Op:
        """A title is content: where bodies are not stored, it is the conversation's in memory only."""
        if isinstance(op, PutConversation) and op.row.title and not self._journal.retention.bodies:
            return PutConversation(row=msgspec.structs.replace(op.row, title=None))
        return op

    def _switch(self, row: BranchRow, kept: Totals | None) -> None:
        """From here on the records stand in this new branch."""
        log = self._journal.log
        self._branch = row
        self._totals = row.totals
        self._kept = kept = row.totals if kept is None else kept

        def apply() -> None:
            log.branches[log.id, row.n] = row
            if kept is not row.totals:
                log.kept[log.id, row.n] = kept
            log.row = msgspec.structs.replace(log.row, active=row.n)
            log.forget()

        self._applies.append(apply)
        self._begin()

    def _end(self) -> None:
        if not self._appended:
            return
        journal, appended = self._journal, self._appended
        branch = msgspec.structs.replace(self._branch, last=self._seq, totals=self._totals)
        self.ops.append(
            Append(
                conversation=journal.log.id,
                branch=branch.n,
                first=self._first,
                last=self._seq,
                rows=tuple(self._rows),
                totals=self._kept,
                ts=self._ts,
            )
        )
        self.ops.extend(self._blobs)
        self._updated = updated = self._ts
        kept = self._kept if self._kept is not self._totals else None
        self._applies.append(lambda: journal.log.apply(appended, branch, updated, kept))
        self._branch = branch
        self._begin()


def paid(journal: Journal) -> None:
    """Nothing is owed any more."""
    for record in journal.owed:
        journal.turn_retention.pop(record.turn or "", None)
    journal.owed = ()


def _settle(item: Put, outcome: tuple[AnyRecord, ...] | BaseException) -> None:
    if item.committed.done():
        return
    if isinstance(outcome, BaseException):
        if item.undo is not None:
            item.undo()
        item.committed.set_exception(outcome)
        item.committed.exception()  # who does not wait for it is told by the turn's end
    else:
        item.committed.set_result(outcome)
