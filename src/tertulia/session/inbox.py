"""The queue of one conversation, and the recent history of what became of its items. Data only: nothing is run here."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from ..records.errors import InvalidInput, ItemNotFound
from ..records.ids import ItemId, TurnId
from ..records.parts import AnyPart, describe
from ..records.record import ItemSource

HISTORY = 20

LISTED: dict[ItemSource, str] = {
    "prompt_follow_up": "prompt_follow_up",
    "steer": "steer",
    "follow_up": "follow_up",
    "send_message": "follow_up",
}
"""The source as pending lists name it. A direct prompt stands in none of them."""

ItemStatus = Literal["queued", "held", "running", "resolved", "failed", "dropped"]


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the queue as callers see it; `text` is whole, the preview cut."""

    id: ItemId
    source: str
    text_preview: str
    status: Literal["queued", "resolved", "failed"]
    text: str
    held: bool = False


class Item:
    """One input on its way. `reply` is settled once, with the Reply of its turn or an error."""

    __slots__ = (
        "announced", "client_id", "delivered", "digest", "id", "outcome", "overrides", "parts", "rank", "receipt",
        "reply", "row", "source", "status", "turn_id", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        id: ItemId,
        source: ItemSource,
        parts: tuple[AnyPart, ...],
        turn_id: TurnId,
        client_id: str | None = None,
    ) -> None:
        self.id = id
        self.source = source
        self.parts = parts
        self.turn_id = turn_id
        self.client_id = client_id
        self.digest: bytes | None = None  # with a client id: of what came with it, also after an edit
        self.status: ItemStatus = "queued"
        self.overrides: dict[str, Any] = {}
        self.rank: float | None = None
        self.announced = False  # whether a record says that it is queued
        self.delivered = False  # whether a turn has taken it in
        self.row = False  # whether the store has an inbox row of it
        self.receipt: asyncio.Future[Any] | None = None  # done when it is accepted for good
        self.reply: asyncio.Future[Any] | None = None  # made when somebody asks
        self.outcome: Any = None  # the Reply or the error, once it is settled
        self.waiters = 0  # callers for whose sake it runs: without them nobody wants it any more

    @property
    def text(self) -> str:
        return describe(self.parts)

    @property
    def refused(self) -> bool:
        """Whether it was never accepted: nothing of it is stored."""
        return self.receipt is not None and self.receipt.done() and self.receipt.exception() is not None


class Inbox:
    def __init__(self) -> None:
        self.items: list[Item] = []  # queued and held, in order
        self.history: list[Item] = []  # see HISTORY; a list, as an empty deque takes 700 bytes
        self.leaving: set[ItemId] = set()  # taken out, while the store still has their rows

    def runnable(self) -> Iterator[Item]:
        return (item for item in self.items if item.status == "queued")

    def take(self, item: Item) -> None:
        """Out of the queue. Its row goes with the commit that says why."""
        self.items.remove(item)
        if item.row:
            self.leaving.add(item.id)

    def next(self) -> Item | None:
        return next(self.runnable(), None)

    def next_steer(self) -> Item | None:
        return next((item for item in self.runnable() if item.source == "steer"), None)

    def listed(self) -> list[Item]:
        return [item for item in self.items if item.source in LISTED]

    def get(self, id: str) -> Item:
        for item in self.items:
            if item.id == id:
                return item
        raise ItemNotFound(
            f"no item {id} is waiting", hint="it was delivered, dropped, or never here", item=id
        )

    def move(self, id: str, index: int) -> Item:
        """To another place in the order; places are those of the listed items."""
        item = self.get(id)
        if type(index) is not int:
            raise InvalidInput(f"{index!r} is no place in the queue", hint="0 is the head")
        self.items.remove(item)
        self.items.insert(max(0, min(index, len(self.items))), item)
        return item

    def order(self) -> list[tuple[Item, float | None]]:
        return [(item, item.rank) for item in self.items]

    def restore(self, order: Sequence[tuple[Item, float | None]]) -> None:
        """The items that are still there, as they stood; what has come since follows them."""
        known = [item for item, _ in order]
        for item, rank in order:
            item.rank = rank
        here = [item for item in known if item in self.items]
        self.items[:] = [*here, *(item for item in self.items if item not in known)]

    def remember(self, item: Item) -> None:
        if item.source in LISTED:
            self.history.append(item)
            del self.history[:-HISTORY]

    def breakdown(self) -> dict[str, int]:
        counts = {"prompt_follow_up": 0, "steer": 0, "follow_up": 0}
        for item in self.listed():
            counts[LISTED[item.source]] += 1
        return counts

    def all(self, max_length: int) -> list[PendingMessage]:
        _check_length(max_length)
        return [self.show(item, max_length) for item in self.items]

    def show(self, item: Item, max_length: int = 120) -> PendingMessage:
        return _shown(item, max_length)

    def pending(self, max_length: int, include_resolved: bool) -> list[PendingMessage]:
        _check_length(max_length)
        items = [_shown(item, max_length) for item in self.listed()]
        if include_resolved:
            items.extend(_shown(item, max_length) for item in self.history)
        return items


def _check_length(value: object) -> None:
    if type(value) is not int:
        raise InvalidInput(f"max_length is {value!r}", hint="a number of characters")


def preview(text: str, max_length: int) -> str:
    """At most `max_length` code points, then "..."; line ends read as LF."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    limit = max(1, max_length)
    return text if len(text) <= limit else text[:limit] + "..."


def _shown(item: Item, max_length: int) -> PendingMessage:
    status: Literal["queued", "resolved", "failed"] = "queued"
    if item.status == "resolved":
        status = "resolved"
    elif item.status in ("failed", "dropped"):
        status = "failed"
    return PendingMessage(
        id=item.id,
        source=LISTED.get(item.source, item.source),
        text_preview=preview(item.text, max_length),
        status=status,
        text=item.text,
        held=item.status == "held",
    )
