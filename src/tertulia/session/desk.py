"""The desk of one conversation: its inbox, and the records, rows and events that each change of it makes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ..records.errors import PromptCancelled
from ..records.event import State, WarningEvent
from ..records.ids import new_turn_id
from ..records.parts import AnyPart
from ..records.record import AnyRecord, Queue
from ..store.base import InboxRow, Op
from ..transcript.retention import Retention
from . import rows
from .engine import Turn
from .inbox import Inbox, Item
from .journal import Journal, Put
from .log import Log
from .shared import Shared


class Desk:
    def __init__(self, shared: Shared, log: Log, journal: Journal) -> None:
        self.shared = shared
        self.log = log
        self.journal = journal
        self.inbox = Inbox()
        self.changed: Callable[[], None] = lambda: None  # called when the queue may have become empty
        self.moving: asyncio.Task[Any] | None = None  # a change of the active path, under way

    @property
    def keeps_bodies(self) -> bool:
        """Whether the store may have what a queued item says."""
        return self.journal.retention.bodies

    def keeps_bodies_of(self, item: Item) -> bool:
        """The same of one item, whose turn may be under a stricter retention."""
        own: Retention | None = item.overrides.get("retention")
        return self.keeps_bodies and (own is None or own.bodies)

    def keep(self, item: Item) -> None:
        """An item that has to wait is durable before it is acknowledged, where the retention allows that."""
        item.announced = True
        drafts: list[AnyRecord] = [self.queue_record(item, "queued")]
        ops: list[Op] = []
        if self.keeps_bodies_of(item):
            item.row = True
            ops.append(rows.put_inbox(self.log.id, item, self.shared.clock.now()))
        put = Put(drafts, ops)
        put.after = (self.state("queued", item),)
        self.journal.put(put).add_done_callback(partial(self._kept, item))

    def _kept(self, item: Item, committed: "asyncio.Future[Any]") -> None:
        error = committed.exception()
        if error is None:
            resolve(item.receipt, None)
            return
        # Never acknowledged: it leaves the queue, unless a turn has taken it in the meantime.
        item.row = False
        if item in self.inbox.items:
            self.inbox.items.remove(item)
            resolve(item.receipt, error)
            self.settle(item, error)
        resolve(item.receipt, error)
        self.changed()

    def delivered(self, item: Item, ops: list[Op]) -> list[AnyRecord]:
        """The queue's record of an item that had to wait, and the end of its row."""
        item.delivered = True
        if item.row:
            ops.append(rows.drop_inbox(self.log.id, item.id))
        return [self.queue_record(item, "delivered")] if item.announced else []

    def settle(self, item: Item, outcome: Any) -> None:
        """The item's own end: its waiters are told, and the history remembers it."""
        self.inbox.leaving.discard(item.id)
        failed = isinstance(outcome, BaseException)
        item.status = "failed" if failed else "resolved"
        item.outcome = outcome
        resolve(item.reply, outcome)
        if not item.announced:  # its first commit has told, unless it never came to that
            told = failed and not isinstance(outcome, PromptCancelled)
            resolve(item.receipt, outcome if told else None)
        elif not item.row:  # else the commit of its row tells
            resolve(item.receipt, None)
        self.inbox.remember(item)

    def drop(
        self, items: Iterable[Item], error: BaseException, state: Any, remember: bool = True
    ) -> list[Item]:
        """Take items out of the queue for good; each of their waiters raises the error."""
        gone = list(items)
        drafts: list[AnyRecord] = []
        ops: list[Op] = []
        for item in gone:
            self.inbox.take(item)
            drafts.append(self.queue_record(item, state))
            if item.row:
                ops.append(rows.drop_inbox(self.log.id, item.id))
            self.settle(item, error)
            if not remember and item in self.inbox.history:
                self.inbox.history.remove(item)
        if drafts:
            leaving = {item.id for item in gone if item.row}
            self.inbox.leaving |= leaving
            done = self.journal.put(Put(drafts, ops))
            done.add_done_callback(lambda _: self.inbox.leaving.difference_update(leaving))
        return gone

    def hold(self, items: Iterable[Item]) -> None:
        """They stay, and run only when `queue.run()` says so."""
        drafts: list[AnyRecord] = []
        ops: list[Op] = []
        for item in list(items):
            item.status = "held"
            drafts.append(self.queue_record(item, "held"))
            if item.row:
                ops.append(rows.change_inbox(self.log.id, item.id, state="held"))
        if drafts:
            self.journal.put(Put(drafts, ops))

    def put_back(self, item: Item) -> None:
        """Its turn could not be begun. Where the store still has it, it waits there, and so it does here."""
        if not item.row or (item.receipt is not None and not item.receipt.done()) or item.refused:
            return
        again = Item(item.id, item.source, item.parts, new_turn_id(), item.client_id)
        again.digest, again.overrides, again.rank = item.digest, item.overrides, item.rank
        again.row = again.announced = True
        self.inbox.items.insert(0, again)
        self.hold([again])

    def queue_record(self, item: Item, state: Any) -> Queue:
        return Queue(seq=0, ts=0, item=item.id, state=state, source=item.source)

    def state(self, state: Any, item: Item | None, turn: Turn | None = None) -> State:
        return State(
            state=state,
            item_id=item.id if item is not None else None,
            turn_id=turn.id if turn is not None else None,
            session_id=self.shared.session_id,
            conversation_id=self.log.id,
            ts=self.shared.clock.now(),
        )

    def warn(self, code: str, message: str) -> None:
        self.journal.publish(
            WarningEvent(
                code=code, message=message, session_id=self.shared.session_id, conversation_id=self.log.id,
                ts=self.shared.clock.now(),
            )
        )  # fmt: skip

    # ── by hand ──

    async def edit(self, id: str, parts: tuple[AnyPart, ...]) -> None:
        item = self.inbox.get(id)
        before, item.parts = item.parts, parts

        def undo() -> None:
            if item.parts is parts:
                item.parts = before

        if item.row:
            await self._change([rows.change_inbox(self.log.id, item.id, body=rows.body_of(item))], undo)

    async def place(self, id: str, index: int) -> None:
        """Move an item. All rows get their place as rank: what comes later ranks by its arrival, which is higher."""
        order = self.inbox.order()
        self.inbox.move(id, index)
        ops: list[Op] = []
        for place, item in enumerate(self.inbox.items, 1):
            item.rank = float(place)
            if item.row:
                ops.append(rows.change_inbox(self.log.id, item.id, rank=item.rank))
        if ops:
            await self._change(ops, partial(self.inbox.restore, order))

    async def _change(self, ops: Sequence[Op], undo: Callable[[], None]) -> None:
        """Memory has it already, in the order of the calls; what could not be stored is undone."""
        put = Put(ops=ops)
        put.undo = undo
        await asyncio.shield(self.journal.put(put))

    def release_held(self, *only: Item) -> int:
        """Held items are to run, in order; how many there are."""
        held = [item for item in only or self.inbox.items if item.status == "held"]
        drafts: list[AnyRecord] = []
        ops: list[Op] = []
        for item in held:
            item.status = "queued"
            drafts.append(self.queue_record(item, "queued"))
            if item.row:
                ops.append(rows.change_inbox(self.log.id, item.id, state="queued"))
        if drafts:
            self.journal.put(Put(drafts, ops))
        return len(held)

    async def adopt(self, found: Iterable[InboxRow]) -> None:
        """Rows that the store holds and memory does not know: whoever waited for them is gone, so they are held."""
        known = {item.id for item in self.inbox.items} | self.inbox.leaving
        for row in found:
            if row.item not in known:
                id = row.client_id
                used = await self.log.store.client_id(self.log.id, id) if id is not None else None
                self.inbox.items.append(rows.item_of(row, used))


def resolve(future: "asyncio.Future[Any] | None", outcome: Any) -> None:
    if future is None or future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
        future.exception()  # whoever waits still gets it; nobody has to
    else:
        future.set_result(outcome)
