"""A turn whose calls all wait for people is parked: it gives its slot back, and has it again when one is answered.

With a durable store it outlives the process: at opening it is found in the log and waits on, and the answer takes it up
at its calls.
"""

import asyncio
from functools import partial

from ..records.errors import PromptCancelled
from ..records.event import State
from ..records.ids import new_item_id
from ..records.record import Message, ModelUsage, ToolCall, Usage
from ..transcript.repair import Parked, parked, unanswered
from . import calls
from .desk import resolve
from .engine import Turn
from .inbox import Item
from .log import Log
from .scheduler import Scheduler, Ticket

KEPT = "the conversation was closed while this waits for an approval: open it again and answer"
ELSEWHERE = "this went on in another process"


class Parking:
    """For the turn that a conversation runs. `drained` is done when it is parked while the conversation closes."""

    def __init__(self, scheduler: Scheduler, ticket: Ticket) -> None:
        self._scheduler = scheduler
        self._ticket = ticket
        self._back: asyncio.Future[None] | None = None
        self._gave = False  # a borrowed slot is not ours to give
        self.drained: asyncio.Future[None] | None = None

    @property
    def wants(self) -> bool:
        """Whether a parked turn has asked for its slot."""
        return self._back is not None

    def watch(self, turn: Turn) -> None:
        turn.waits = partial(self._look, turn)
        turn.slot = partial(self._slot, turn)

    def granted(self, turn: Turn | None) -> bool:
        """The slot is there. Whether a parked turn takes it."""
        back, self._back = self._back, None
        if turn is None or back is None:
            return False
        self._go_on(turn)
        resolve(back, None)
        return True

    def forget(self) -> None:
        """The turn is over."""
        self._back, self._gave = None, False
        self._scheduler.withdraw(self._ticket)

    def take_up(self, turn: Turn) -> None:
        """One that was found parked has no slot."""
        turn.parked = self._gave = True
        self.watch(turn)

    def _look(self, turn: Turn) -> None:
        if turn.parked or turn.cancelled or not turn.waiting or not turn.waiting >= turn.open_calls.keys():
            return
        turn.parked, self._gave = True, self._ticket.holds
        turn.emit(State(state="waiting_approval", **turn.common()))
        resolve(self.drained, None)
        self._scheduler.release(self._ticket)

    async def _slot(self, turn: Turn) -> None:
        if not turn.parked:
            return
        if not self._gave:
            self._go_on(turn)
            return
        if self._back is None:
            self._back = asyncio.get_running_loop().create_future()
            back = self._back
            self._scheduler.request(self._ticket, front=True)
        else:
            back = self._back
        await asyncio.shield(back)

    @staticmethod
    def _go_on(turn: Turn) -> None:
        turn.parked = False
        turn.emit(State(state="running", **turn.common()))


def item_of(left: Parked) -> Item:
    """The input of a turn that was found parked, for whoever asks what becomes of it."""
    said = next((r for r in left.records if isinstance(r, Message) and r.role == "user"), None)
    assert left.start.turn is not None
    item = Item(left.start.item or new_item_id(), "prompt", said.parts if said else (), left.start.turn)
    item.status, item.delivered = "running", True
    return item


def restore(turn: Turn, left: Parked) -> None:
    """How far the turn had come, as its records tell."""
    turn.started = asyncio.get_running_loop().create_future()
    turn.started.set_result(())
    turn.started_at = left.start.ts
    turn.began = turn.clock.monotonic() - max(0.0, (turn.clock.now() - left.start.ts) / 1e6)
    numbers = [r.msg.rpartition(".")[2] for r in left.records if r.msg is not None]
    turn.messages = max((int(number) for number in numbers if number.isdecimal()), default=0)
    turn.tool_calls = sum(isinstance(r, ToolCall) for r in left.records)
    turn.usage, turn.cost = Usage(), None
    for record in left.records:
        if isinstance(record, ModelUsage):
            turn.usage += record.usage
            turn.cost = turn.cost if record.cost is None else (turn.cost or 0.0) + record.cost
        elif isinstance(record, Message) and record.role == "assistant" and record.text.strip():
            turn.said = record.text
    calls = unanswered(left.records)
    turn.open_calls = {call.call_id: call for call in calls}
    turn.unfinished = tuple(calls)


def go_on(log: Log, turn: Turn) -> bool:
    """Whether a turn that was found parked is still open, now that the log is ours; then it is up to date."""
    left = parked(log.tail or (), log.branch.at)
    if left is None or left.start.turn != turn.id:
        leave(turn, ELSEWHERE)
        return False
    restore(turn, left)
    if turn.cancelled:
        raise asyncio.CancelledError
    return True


async def finish_calls(turn: Turn) -> None:
    """The calls that a restart has left open, before the engine goes on behind them."""
    await calls.run(turn, turn.unfinished)
    delivered = turn.deliver()
    if delivered is not None:
        await asyncio.shield(delivered)


def leave(turn: Turn, why: str) -> None:
    """Nothing more of it is written here."""
    turn.left = True
    turn.outcome = PromptCancelled(why)
    turn.ended = asyncio.get_running_loop().create_future()
    turn.ended.set_result(())
