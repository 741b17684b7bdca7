"""The runner of one conversation: takes items from its inbox, runs each as a turn, settles what came of it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ..records.errors import (
    ConversationClosed,
    InternalError,
    PromptCancelled,
    StorageError,
    TertuliaError,
)
from ..records.ids import new_item_id, new_turn_id
from ..records.parts import AnyPart
from ..records.record import ItemSource
from ..store.base import Op
from . import aftermath, closing, parking, rows, starting
from .desk import Desk, resolve
from .engine import CancelReason, Ending, Spoken, Turn
from .inbox import Item
from .inputs import digest
from .journal import Journal, Put
from .loading import ready
from .log import Log
from .outside import Outside
from .parking import Parking
from .reply import CancelResult
from .scheduler import Ticket
from .shared import Setup, Shared
from .speech import relay

GOES_ON = "send_message"


class Runner:
    def __init__(self, shared: Shared, log: Log, journal: Journal, setup: Setup) -> None:
        self.shared = shared
        self.log = log
        self.journal = journal
        self.setup = setup
        self.desk = Desk(shared, log, journal)
        self.desk.changed = partial(_tell_idle, self)
        self.inbox = self.desk.inbox
        self.turn: Turn | None = None
        self.closed = False
        self.closing: asyncio.Future[None] | None = None
        self.spoken: list[Spoken] = []  # what the engine said by itself and no turn has passed on
        self.outside = Outside(self)
        self.sub_prompt: Callable[..., Any] | None = None
        self._ticket = Ticket(self._granted)
        self.parking = Parking(shared.scheduler, self._ticket)
        self._idle: list[asyncio.Future[None]] = []
        self.turn_over: list[asyncio.Future[None]] = []

    @property
    def busy(self) -> bool:
        """A turn that runs or waits for its slot, or an item that will."""
        return self.turn is not None or self._ticket.waiting or _waits(self)

    # ── accepting ──

    def accept(
        self, source: ItemSource, parts: tuple[AnyPart, ...], client_id: str | None, overrides: dict[str, Any]
    ) -> Item:  # fmt: skip
        """Take an input in: its place is fixed now. It starts at once when nothing is in its way."""
        if self.closed:
            raise ConversationClosed(f"conversation {self.log.id} is closed", hint="load it again to go on")
        item = Item(new_item_id(), source, parts, new_turn_id(), client_id)
        item.overrides = overrides
        item.digest = digest(parts) if client_id is not None else None
        item.receipt = asyncio.get_running_loop().create_future()
        self.inbox.items.append(item)
        self.outside.listen()
        self.pump()
        if item.status == "queued":
            self.desk.keep(item)
            self.outside.offer(item)
        return item

    def start_borrowed(self, parts: tuple[AnyPart, ...], overrides: dict[str, Any]) -> Item:
        """Run an input now, in the slot of the turn whose tool asks for it."""
        item = Item(new_item_id(), "prompt", parts, new_turn_id())
        item.overrides = overrides
        item.receipt = asyncio.get_running_loop().create_future()
        self._start(item)
        if self.turn is not None:
            self.turn.nested = True
        return item

    # ── running ──

    def pump(self) -> None:
        """See that the next item runs as soon as it may."""
        if self.turn is None and not self.closed and _waits(self):
            self.shared.scheduler.request(self._ticket)

    def _granted(self) -> None:
        if self.parking.granted(self.turn):
            return
        item = None if self.spoken else self.inbox.next()
        if not _waits(self) or self.turn is not None or self.closed:
            self.shared.scheduler.release(self._ticket)
            return
        if item is not None:
            self.inbox.take(item)
        self._start(item)

    def _start(self, item: Item | None) -> None:
        turn = starting.make_turn(self.desk, self.setup, item)
        if item is not None:
            item.status = "running"
        elif self.spoken:
            turn.spoken = self.spoken.pop(0)
        self.parking.watch(turn)
        self.hold(turn)
        self.launch(turn)

    def hold(self, turn: Turn) -> None:
        """It is the conversation's turn from now on."""
        turn.sub_prompt = self.sub_prompt
        turn.cancel = self.cancel_turn
        self.turn = turn
        self.shared.turns[turn.id] = (self.log.id, turn)

    def launch(self, turn: Turn) -> None:
        task = asyncio.get_running_loop().create_task(self._drive(turn), name=f"tertulia-{turn.id}")
        turn.task = task
        task.add_done_callback(partial(self._task_done, turn))

    async def _drive(self, turn: Turn) -> None:
        timer: asyncio.Task[None] | None = None
        outcome: Ending | BaseException
        try:
            await ready(self.desk)
            if not _begun(self, turn):
                return
            if turn.limits.turn_timeout is not None:
                timer = asyncio.create_task(starting.expire(turn, self.cancel_turn))
            outcome = await _ran(self, turn)
        except asyncio.CancelledError:
            outcome = closing.cancellation(turn)
        except Exception as error:  # noqa: BLE001 - the turn ends with it, typed
            outcome = closing.cancellation(turn) if turn.cancelled else _typed(error)
        if timer is not None:
            timer.cancel()
        if turn.cancelled and isinstance(outcome, Ending):
            outcome = closing.cancellation(turn)
        if turn.started is None:
            turn.outcome = outcome  # nothing of it was written, so nothing is
        elif turn.ended is None:
            if turn.cancelled:
                await starting.interrupt(self.desk, self.setup)
            self.finish(turn, outcome)

    # ── ending ──

    def finish(self, turn: Turn, outcome: Ending | BaseException) -> None:
        """Hand over the turn's last commit. Nothing awaits here, so no cancellation can come between."""
        turn.outcome = outcome
        if (
            turn.started is not None
            and turn.started.done()
            and (error := turn.started.exception()) is not None
        ):
            without_end(self, turn, error)  # it never stood in the log
            return
        drafts = closing.drafts(turn, outcome)
        status = closing.status_of(outcome)
        ops: list[Op] = [
            rows.put_client_id(self.log.id, item, turn.id, status)
            for item in turn.items
            if item.client_id is not None and self.desk.keeps_bodies_of(item)
        ]
        put = Put(drafts, ops, turn=turn.id, output=True)
        put.before = (self.desk.state(status, None, turn),)
        turn.ended = self.journal.put(put)
        turn.ended.add_done_callback(partial(self._end_committed, turn))

    def _end_committed(self, turn: Turn, committed: "asyncio.Future[Any]") -> None:
        if committed is turn.ended and (turn.task is None or turn.task.done()):
            self.settle(turn)

    def _task_done(self, turn: Turn, task: "asyncio.Task[None]") -> None:
        if turn.ended is None:
            # Cancelled before its first commit, or a defect of ours: its own code never got to the end.
            error = None if task.cancelled() else task.exception()
            outcome = turn.outcome or (
                _typed(error) if isinstance(error, Exception) else closing.cancellation(turn)
            )
            if turn.started is not None:
                self.finish(turn, outcome)
                return
            turn.outcome = outcome
            self._never_began(turn, outcome)
        if turn.ended is not None and turn.ended.done():
            self.settle(turn)

    def _never_began(self, turn: Turn, outcome: Ending | BaseException) -> None:
        """What was cancelled leaves the queue for good; what failed stays in a store that has it."""
        item = turn.item
        if isinstance(outcome, BaseException) and not isinstance(outcome, PromptCancelled):
            without_end(self, turn, outcome)
        elif item is not None and item.row:
            ops = (rows.drop_inbox(self.log.id, item.id),)
            turn.ended = self.journal.put(Put([self.desk.queue_record(item, "dropped")], ops))
            turn.ended.add_done_callback(partial(self._end_committed, turn))
        else:
            turn.ended = asyncio.get_running_loop().create_future()
            turn.ended.set_result(())

    def settle(self, turn: Turn) -> None:
        """The last commit is through, or failed, and the task is gone: settle everything, free the slot."""
        if self.turn is not turn:
            return
        assert turn.ended is not None
        assert turn.outcome is not None
        error = turn.ended.exception()
        if (
            error is not None
            and not isinstance(error, StorageError)
            and not isinstance(turn.outcome, Exception)
        ):
            self.finish(turn, error)  # what it said cannot be stored: that is how the turn ends
            return
        if error is not None:
            turn.outcome = error
            aftermath.storage_failed(self.desk, self.setup, turn, error)
        self.turn = None
        self.parking.forget()
        for end in turn.at_end:
            end()
        self.log.live = None
        self.shared.turns.pop(turn.id, None)
        if all(record.turn != turn.id for record in self.journal.owed):
            self.journal.turn_retention.pop(turn.id, None)
        outcome = turn.outcome
        for item in turn.items:
            if _undelivered(turn, item):
                self.desk.put_back(item)
            self.desk.settle(item, closing.reply(turn, outcome) if isinstance(outcome, Ending) else outcome)
        aftermath.queue_after(self.desk, self.setup, outcome)
        self.shared.scheduler.release(self._ticket)
        waiting, self.turn_over = self.turn_over, []
        for future in waiting:
            resolve(future, None)
        self.pump()
        _tell_idle(self)

    # ── cancelling ──

    def cancel(self, *, keep_queue: bool = False) -> CancelResult:
        active = self.cancel_turn("cancelled")
        waiting = list(self.inbox.runnable())
        if keep_queue:  # a prompt that waits for its slot is what runs: no list of the queue shows it
            direct = [item for item in waiting if item.source == "prompt"]
            waiting = direct[:1] if self.turn is None else []
        active = active or any(item.source == "prompt" for item in waiting)
        dropped = self.desk.drop(waiting, PromptCancelled("cancelled while it was queued"), "dropped")
        self.withdraw_ticket()
        return CancelResult(active=active, dropped=tuple(item.text for item in dropped))

    def cancel_turn(self, reason: CancelReason) -> bool:
        """Whether a turn was there to cancel; one whose last commit is taken already completes."""
        turn = self.turn
        if turn is None:
            return False
        if turn.cancelled is not None:
            return True
        if turn.ended is not None:
            return self._cancel_end(turn, turn.ended, reason)
        turn.cancelled = reason
        self.journal.withdraw(turn.id)
        if turn.task is not None:
            turn.task.cancel()
        elif turn.parked:
            self.launch(turn)  # it was found in the log: to end there it has to be claimed
        return True

    def _cancel_end(self, turn: Turn, ended: "asyncio.Future[Any]", reason: CancelReason) -> bool:
        """The turn's end is handed over. When no commit has taken it yet, it is taken back."""
        if not ended.done() and not self.journal.in_flight(ended):
            self.journal.withdraw(turn.id)
        if not (ended.done() and isinstance(ended.exception(), PromptCancelled)):
            return False
        turn.cancelled = reason
        self.finish(turn, closing.cancellation(turn))
        return True

    def abandon(self, item: Item) -> None:
        """Its caller was cancelled: it leaves the queue, or its run is cancelled and the queue goes on."""
        if item in self.inbox.items:
            self.desk.drop([item], PromptCancelled("its caller was cancelled"), "dropped")
            if not self.busy or self.inbox.next() is None:
                self.withdraw_ticket()
            _tell_idle(self)
        elif self.turn is not None and self.turn.item is item:
            self.cancel_turn("cancelled")

    def withdraw_ticket(self) -> None:
        if self.inbox.next() is None and not self.parking.wants:
            self.shared.scheduler.withdraw(self._ticket)
            _tell_idle(self)

    # ── waiting ──

    def idle(self) -> "asyncio.Future[None]":
        future = asyncio.get_running_loop().create_future()
        if not self.busy:
            future.set_result(None)
        else:
            self._idle.append(future)
        return future


def _begun(runner: Runner, turn: Turn) -> bool:
    """Hand over the turn's first commit. One that was found in the log goes on, when it is still open there."""
    if turn.started is not None:
        return parking.go_on(runner.log, turn)
    starting.begin(runner.desk, runner.setup, turn)
    return True


def _undelivered(turn: Turn, item: Item) -> bool:
    """Whether this steer could not be stored as a part of the turn: the store still has it in the queue."""
    delivery = turn.deliveries.get(item.id)
    return delivery is not None and delivery.done() and isinstance(delivery.exception(), StorageError)


def _tell_idle(runner: Runner) -> None:
    if not runner.busy:
        waiting, runner._idle = runner._idle, []
        for future in waiting:
            resolve(future, None)


async def _ran(runner: Runner, turn: Turn) -> Ending:
    if turn.spoken:
        return await relay(turn, turn.spoken)
    if turn.unfinished:
        await parking.finish_calls(turn)
    return await runner.setup.engine.run(turn)


def _waits(runner: Runner) -> bool:
    """Whether there is something to run: an item, or what the engine said by itself."""
    return bool(runner.spoken) or runner.inbox.next() is not None


def without_end(runner: Runner, turn: Turn, error: BaseException) -> None:
    """The turn failed and nothing of it is in the log, so it needs no end there."""
    turn.ended = asyncio.get_running_loop().create_future()
    resolve(turn.ended, error)
    turn.ended.add_done_callback(partial(runner._end_committed, turn))


def _typed(error: Exception) -> TertuliaError:
    if isinstance(error, TertuliaError):
        return error
    typed = InternalError(f"the engine raised {type(error).__name__}: {error}")
    typed.__cause__ = error
    return typed
