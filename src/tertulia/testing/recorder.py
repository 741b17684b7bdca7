"""Keeps the events of a conversation or a Session, and waits for one of them."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ..records.event import AnyEvent


class EventRecorder:
    """`async with EventRecorder(conv) as seen:`; then `seen.types()`, and `await seen.wait_for("done")`."""

    def __init__(self, source: Any, since: int | None = None) -> None:
        self.events: list[AnyEvent] = []
        self._stream = source.events(since)
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._stream.start()
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        assert self._task is not None
        await self._task

    def types(self, *without: str) -> list[str]:
        """The types so far, but for those named."""
        return [event.type for event in self.events if event.type not in without]

    def of(self, *types: str) -> list[AnyEvent]:
        """The events of these types so far."""
        return [event for event in self.events if event.type in types]

    async def wait_for(
        self, wanted: str | Callable[[AnyEvent], bool], count: int = 1, timeout: float = 10.0
    ) -> AnyEvent:
        """The `count`-th event of this type, or for which the function is true; waits until it is there."""
        matches = (lambda event: event.type == wanted) if isinstance(wanted, str) else wanted
        async with asyncio.timeout(timeout):
            while True:
                found = [event for event in self.events if matches(event)]
                if len(found) >= count:
                    return found[count - 1]
                self._changed.clear()
                await self._changed.wait()

    async def _follow(self) -> None:
        async for event in self._stream:
            self.events.append(event)
            self._changed.set()
