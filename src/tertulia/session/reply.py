"""What callers get back: the reply of a turn, the receipt of an item, a handle on both."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ..records.ids import ItemId, TurnId
from ..records.record import Usage


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn that completed; as a string it is its text. `output` is the value that `output=` asked for.

    `context_tokens`: about how many tokens the next request carries.
    """

    text: str
    turn_id: TurnId
    stop_reason: str = "end"
    usage: Usage = Usage()
    cost: float | None = None
    tool_calls: int = 0
    elapsed: float = 0.0
    trace_id: str | None = None
    output: Any = None
    context_tokens: int | None = None

    def __str__(self) -> str:
        return self.text


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is queued, delivered or dropped; `durable` says whether it outlives the process."""

    id: ItemId
    status: str
    durable: bool


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """`active`: a running prompt was cancelled. `dropped`: the texts of queued items that went with it."""

    active: bool
    dropped: tuple[str, ...] = ()


class ClearResult(msgspec.Struct, frozen=True, kw_only=True):
    queued_removed: int
    resolved_removed: int
    active_prompt_cancelled: bool = False
    texts: tuple[str, ...] = ()


class Handle:
    """One submitted input: where it stands, and what comes of it."""

    def __init__(self, item: Any, check: Callable[[], None]) -> None:
        self._item = item
        self._check = check  # raises where waiting would never end

    @property
    def id(self) -> ItemId:
        id: ItemId = self._item.id
        return id

    @property
    def turn_id(self) -> TurnId:
        """Of the turn that runs it; a steer takes that of the turn it was delivered into."""
        turn: TurnId = self._item.turn_id
        return turn

    @property
    def status(self) -> str:
        return str(self._item.status)

    async def reply(self) -> Reply:
        """The Reply, or what the turn failed with. Cancelling who waits here leaves the item where it is."""
        if self._item.outcome is None:
            self._check()
        return await reply_of(self._item)


async def reply_of(item: Any) -> Reply:
    """The Reply of an item of the queue, once it is settled."""
    if item.outcome is None:
        if item.reply is None:
            item.reply = asyncio.get_running_loop().create_future()
        await asyncio.shield(item.reply)
    if isinstance(item.outcome, BaseException):
        raise item.outcome
    reply: Reply = item.outcome
    return reply


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TurnId
    conversation_id: str
    started_at: int
    status: str
