"""`conv.queue`: the waiting items, and what can be done to them by hand."""

from collections.abc import Callable
from typing import Any

from ..records.errors import PromptCancelled
from .desk import Desk
from .inbox import PendingMessage
from .inputs import parse_input


class Queue:
    """Items are named by id. Each change is durable when its call returns."""

    def __init__(self, desk: Desk, pump: Callable[[], None], check: Callable[..., None]) -> None:
        self._desk = desk
        self._pump = pump
        self._check = check  # raises when the conversation is closed; with `runs`, when it has no model

    def list(self, max_length: int = 120) -> list[PendingMessage]:
        """All that waits, in order, held items and direct prompts found at opening included."""
        self._desk.shared.check_thread()
        return self._desk.inbox.all(max_length)

    async def edit(self, id: str, input: Any) -> None:
        """Say something else. ItemNotFound when it has begun, or is gone."""
        self._check()
        await self._desk.edit(id, parse_input(input))

    async def remove(self, id: str) -> PendingMessage:
        """Take an item out; its waiter raises PromptCancelled. What it said is in the answer."""
        self._check()
        item = self._desk.inbox.get(id)
        shown = self._desk.inbox.show(item)
        self._desk.drop([item], PromptCancelled("removed from the queue"), "dropped")
        self._desk.changed()
        await self._desk.journal.flush()
        return shown

    async def reorder(self, id: str, index: int) -> None:
        """To the place `index` of the list."""
        self._check()
        await self._desk.place(id, index)

    async def promote(self, id: str) -> None:
        """To the head of the list."""
        self._check()
        await self._desk.place(id, 0)

    async def run(self) -> int:
        """Release the held items, in order; how many there were."""
        self._check(runs=True)
        released = self._desk.release_held()
        self._pump()
        await self._desk.journal.flush()
        return released
