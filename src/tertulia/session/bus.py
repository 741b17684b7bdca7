"""The bus of a Session: every event goes to every subscriber that wants it, and none can make it wait.

A subscriber's buffer is bounded. When it is full, adjacent deltas merge; a durable event that finds no room marks the
subscription as behind, and its reader reads on from the log (`session/reader.py`).
"""

import asyncio
from collections import deque
from collections.abc import Iterable

import msgspec

from ..records.event import AnyEvent, TextDelta, ThoughtDelta
from ..records.ids import ConversationId

BUFFER = 1024
_WITHIN = 20


def cursor_at(commit: int, within: int) -> int:
    """A place in the Session's stream: a commit of the store, and how many of its durable events came before."""
    return commit << _WITHIN | within


def place_of(cursor: int) -> tuple[int, int]:
    return cursor >> _WITHIN, cursor & (1 << _WITHIN) - 1


class Subscription:
    """The events of one conversation, or (None) of the whole Session. Owned by one reader."""

    def __init__(self, bus: "Bus", conversation: ConversationId | None, limit: int) -> None:
        self.conversation = conversation
        self.limit = max(2, limit)
        self.buffer: deque[tuple[AnyEvent, int | None]] = (
            deque()
        )  # each with the cursor after it, if it moves it
        self.behind = False
        self.base: int | None = None  # the cursor before the first durable event that came
        self.closed = False
        self._bus = bus
        self._waiter: asyncio.Future[None] | None = None

    def push(self, event: AnyEvent) -> None:
        if self.base is None and event.seq is not None:
            self.base = (self._cursor(event) or 1) - 1
        if self.behind:
            return
        buffer = self.buffer
        if len(buffer) < self.limit:
            buffer.append((event, self._cursor(event)))
            self._wake()
        elif not self._merge(event) and event.seq is not None:
            self.behind = True

    def _cursor(self, event: AnyEvent) -> int | None:
        """A conversation is read on from a seq, a Session from a commit of the store."""
        if event.seq is None:
            return None
        return event.seq if self.conversation is not None else self._bus.cursor

    def _merge(self, event: AnyEvent) -> bool:
        """Whether a full buffer took it in: text into the text before it. Other deltas of a full buffer are lost."""
        if not isinstance(event, TextDelta | ThoughtDelta):
            return False
        last, cursor = self.buffer[-1]
        if type(last) is type(event) and last.message_id == event.message_id:
            self.buffer[-1] = (msgspec.structs.replace(event, text=last.text + event.text), cursor)
            return True
        return False

    async def wait(self) -> None:
        """Until something is in the buffer, or there will never be."""
        if self.buffer or self.behind or self.closed:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def finish(self, *last: AnyEvent) -> None:
        """No more events after these; what is in the buffer can still be read."""
        self.buffer.extend((event, None) for event in last)
        self.closed = True
        self._wake()

    def close(self) -> None:
        self._bus.drop(self)
        self.finish()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Bus:
    def __init__(self) -> None:
        self._of: dict[ConversationId | None, list[Subscription]] = {}
        self.cursor = 0  # where the Session's stream stands: see cursor_at

    def at_commit(self, commit: int) -> None:
        """The events that follow are those of this commit of the store."""
        self.cursor = max(self.cursor, cursor_at(commit, 0))

    def subscribe(self, conversation: ConversationId | None, limit: int = BUFFER) -> Subscription:
        subscription = Subscription(self, conversation, limit)
        self._of.setdefault(conversation, []).append(subscription)
        return subscription

    def drop(self, subscription: Subscription) -> None:
        of = self._of.get(subscription.conversation, [])
        if subscription in of:
            of.remove(subscription)
        if not of:
            self._of.pop(subscription.conversation, None)

    def wanted(self, conversation: ConversationId) -> bool:
        """Whether anyone would see an event of it; transient ones need not be made when not."""
        return conversation in self._of or None in self._of

    def publish(self, event: AnyEvent) -> None:
        if event.seq is not None:
            self.cursor += 1
        of = self._of
        if not of:
            return
        for subscription in of.get(event.conversation_id, ()) if event.conversation_id else ():
            subscription.push(event)
        for subscription in of.get(None, ()):
            subscription.push(event)

    def publish_all(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self.publish(event)

    def finish(self, conversation: ConversationId | None, *last: AnyEvent) -> None:
        """End the streams of one conversation, or (None) of the Session itself."""
        for subscription in self._of.pop(conversation, []):
            subscription.finish(*last)

    def finish_all(self) -> None:
        for conversation in list(self._of):
            self.finish(conversation)
