"""Client ids: the same id with the same input is the same item, also after a restart."""

from collections.abc import Callable, Sequence

from ..models.names import missing_hint
from ..records.codec import decode_lenient
from ..records.errors import (
    AuthenticationFailed,
    BadModelRequest,
    ConfigError,
    ContextFull,
    EmptyReply,
    IdConflict,
    InternalError,
    InvalidInput,
    ModelConnectionError,
    ModelError,
    OutputInvalid,
    Overloaded,
    PromptCancelled,
    RateLimited,
    RequestRefused,
    StorageError,
    TertuliaError,
    TurnTimeout,
    UnknownModelError,
)
from ..records.ids import TurnId, new_item_id
from ..records.parts import AnyPart
from ..records.record import AnyRecord, Message, ToolCall, TurnEnd, TurnStart
from ..store.base import ClientIdRow, PutClientId
from . import rows
from .inbox import Inbox, Item
from .inputs import digest
from .journal import Journal
from .log import Log
from .reply import Reply

ENDS: tuple[type[TertuliaError], ...] = (
    RateLimited, Overloaded, ModelConnectionError, ContextFull, AuthenticationFailed, RequestRefused, BadModelRequest,
    EmptyReply, OutputInvalid, ModelError, TurnTimeout, StorageError, ConfigError, InvalidInput, InternalError,
)  # fmt: skip
"""What a turn may end with, told again by its code."""


class KnownIds:
    """Those used in this process by item; older ones are looked up in the store."""

    def __init__(self, log: Log, journal: Journal) -> None:
        self._log = log
        self._journal = journal
        self._items: dict[str, Item] = {}
        self.parked: Item | None = None  # the input of a turn that a restart has left waiting
        self.fresh = False  # made in this process: the store knows no id of it

    def add(self, item: Item) -> None:
        if item.client_id is not None:
            self._items[item.client_id] = item

    async def find(self, id: str, parts: tuple[AnyPart, ...], inbox: Inbox) -> Item | None:
        """The item that this id stands for; IdConflict when it came with another input."""
        if id in self._items and self._items[id].refused:
            del self._items[id]
        if id not in self._items and not self.fresh:
            row = await self._log.store.client_id(self._log.id, id)
            if row is not None and id not in self._items:
                _same(id, row.digest, parts)
                self._items[id] = await self._found(row, parts, inbox)
        item = self._items.get(id)
        if item is None:
            return None
        if item.outcome is not None:  # its start could not be stored, and it waits again
            item = next((each for each in inbox.items if each.id == item.id), item)
        _same(id, item.digest, parts)
        self._items[id] = item
        return item

    def told(self, keeps: Callable[[Item], bool]) -> list[PutClientId]:
        """For a store that takes the conversation over: the ids that it may have."""
        return [
            rows.put_client_id(self._log.id, item, item.turn_id if item.delivered else None)
            for item in self._items.values()
            if not item.refused and keeps(item)
        ]

    def forget(self, id: str) -> None:
        """The store knows better."""
        self._items.pop(id, None)

    async def _found(self, row: ClientIdRow, parts: tuple[AnyPart, ...], inbox: Inbox) -> Item:
        waiting = next((item for item in inbox.items if item.id == row.item), None)
        if waiting is not None:
            return waiting
        if self.parked is not None and self.parked.turn_id == row.turn and self.parked.outcome is None:
            self.parked.client_id, self.parked.digest = row.client_id, row.digest
            return self.parked
        item = Item(row.item or new_item_id(), "prompt", parts, row.turn or TurnId(""), row.client_id)
        item.digest = row.digest
        item.delivered = row.turn is not None
        item.outcome = await self._outcome(row)
        item.status = "failed" if isinstance(item.outcome, BaseException) else "resolved"
        return item

    async def _outcome(self, row: ClientIdRow) -> Reply | TertuliaError:
        """What the turn ended with, read from the log, which holds it under the retention's rules."""
        if row.turn is None:
            return PromptCancelled("this input was dropped before it ran")
        records = await self._turn(row.turn)
        end = next((record for record in records if isinstance(record, TurnEnd)), None)
        if end is None or end.status == "cancelled":
            return PromptCancelled("this input was cancelled")
        if end.status != "completed":
            return _failed(end)
        said = [r for r in records if isinstance(r, Message) and r.role == "assistant" and r.status == "ok"]
        return Reply(
            text=said[-1].text if said else "",
            turn_id=row.turn,
            stop_reason=end.stop_reason or "end",
            usage=end.usage,
            cost=end.cost,
            tool_calls=sum(isinstance(record, ToolCall) for record in records),
            elapsed=end.elapsed,
        )

    async def _turn(self, turn: TurnId) -> Sequence[AnyRecord]:
        """The records of a turn, looked for from the end."""
        found: list[AnyRecord] = []
        before = 0
        while True:
            rows = await self._log.store.read(self._log.everything(), after=before, limit=200, reverse=True)
            for row in rows:
                record = decode_lenient(row.data, row.seq)
                if record.turn == turn:
                    found.append(record)
                    if isinstance(record, TurnStart):
                        return found[::-1]
            if len(rows) < 200:
                return found[::-1]
            before = rows[-1].seq


def _same(id: str, known: bytes | None, parts: tuple[AnyPart, ...]) -> None:
    if known != digest(parts):
        raise IdConflict(
            f"the id {id!r} was used with another input", hint="give each input an id of its own"
        )


def _failed(end: TurnEnd) -> TertuliaError:
    """The error of then, as far as its code tells it."""
    kind = next((kind for kind in ENDS if kind.code == end.code), UnknownModelError)
    return kind(end.error or f"this input failed ({end.code})", code=end.code)


def no_model() -> ConfigError:
    return ConfigError("this conversation has no model", hint=missing_hint())


def receipt_status(item: Item) -> str:
    """As receipts name it."""
    if item.status in ("queued", "held"):
        return "queued"
    return "delivered" if item.delivered else "dropped"
