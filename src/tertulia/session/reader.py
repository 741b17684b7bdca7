"""A stream of events: what was, then what is, without a gap and without a double.

The subscription and the look at where the log stands happen at one moment, so that all that the buffer gets comes
after all that is read. A reader that fell behind is told so (`resync`) and reads on from the log by itself.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Self

from ..records.errors import InvalidInput
from ..records.event import AnyEvent, IterationStart, Resync, TextDelta
from ..records.ids import TurnId
from ..transcript.path import Segment
from ..transcript.replay import Envelope, events
from .bus import BUFFER, Subscription, cursor_at, place_of
from .loading import read
from .log import Log
from .shared import Shared

Cursored = tuple[AnyEvent, int]
"""An event, and the cursor after it."""

Replay = Callable[[int | None], AsyncGenerator[Cursored, None]]
"""Called with the cursor to read from (None: from now). What it gives ends where the log stood at the call."""


END = cursor_at(2**32, 0)


def check_cursor(since: object) -> int | None:
    if since is None or (type(since) is int and since >= 0):
        return since
    raise InvalidInput(f"since is {since!r}", hint="a cursor, 0 for the beginning, None for from now on")


class EventStream:
    """An async iterator and a context manager. It ends with the conversation, when closed, or when forgotten.

    `cursor` is where to go on from after the last event that was taken: hand it to `events(since=)`.
    """

    def __init__(
        self,
        shared: Shared,
        log: Log | None,
        since: int | None,
        limit: int = BUFFER,
    ) -> None:
        self.cursor = since
        self._conversation = log.id if log is not None else None
        self._limit = limit
        self._shared = shared
        self._replay = conversation_replay(log, shared) if log is not None else session_replay(shared)
        self._subscription: Subscription | None = None
        self._source: AsyncGenerator[Cursored, None] | None = None

    def start(self) -> Self:
        """Subscribe now, rather than with the first event that is asked for."""
        if self._subscription is None:
            self._subscription = self._shared.bus.subscribe(self._conversation, self._limit)
            self._source = self._replay(self.cursor)
        return self

    def ended(self) -> Self:
        """A stream that only replays: what it would follow is closed."""
        self.start().close()
        return self

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        source, self._source = self._source, None
        if source is not None:
            with suppress(RuntimeError):  # another task is reading it, and ends it
                await source.aclose()

    def __aiter__(self) -> Self:
        return self.start()

    async def __anext__(self) -> AnyEvent:
        subscription = self._subscription or self.start()._subscription
        assert subscription is not None
        while True:
            if self._source is not None:
                found = await anext(self._source, None)
                if found is not None:
                    event, self.cursor = found
                    return event
                self._source = None
            if subscription.buffer:
                event, cursor = subscription.buffer.popleft()
                if cursor is None:
                    return event
                if self.cursor is None or cursor > self.cursor:  # else the replay has given it already
                    self.cursor = cursor
                    return event
                continue
            if subscription.behind:
                subscription.behind = False
                after = self.cursor if self.cursor is not None else subscription.base or 0
                self._source = self._replay(after)
                shared = self._shared
                return Resync(
                    session_id=shared.session_id,
                    conversation_id=self._conversation,
                    ts=shared.clock.now(),
                    after=after,
                )
            if subscription.closed:
                raise StopAsyncIteration
            await subscription.wait()

    def __del__(self) -> None:
        self.close()


def conversation_replay(log: Log, shared: Shared) -> Replay:
    """The events of one conversation over all its branches, inherited ones first, by seq."""

    def replay(after: int | None) -> AsyncGenerator[Cursored, None]:
        until, live, envelope = log.last, _so_far(log, shared), Envelope(shared.session_id, log.id)
        path = () if after is None else clip(log.everything(), until)

        async def generate() -> AsyncGenerator[Cursored, None]:
            async with aclosing(read(log, log.store, path, after or 0)) as chunks:
                async for chunk in chunks:
                    for record in chunk:
                        before = max(after or 0, record.seq - 1)
                        for event in events(record, envelope):
                            yield event, record.seq if event.seq is not None else before
            for event in live:
                yield event, until

        return generate()

    return replay


def session_replay(shared: Shared) -> Replay:
    """The events of all conversations of the Session, in the order of their commits."""

    def replay(after: int | None) -> AsyncGenerator[Cursored, None]:
        here = shared.bus.cursor
        until = here or END  # nothing was committed here yet: then all that the store has
        live = [event for log in shared.logs.values() for event in _so_far(log, shared)]

        async def generate() -> AsyncGenerator[Cursored, None]:
            if after is not None:
                async with aclosing(_between(shared, after, until)) as between:
                    async for found in between:
                        yield found
            for event in live:
                yield event, here

        return generate()

    return replay


async def _between(shared: Shared, after: int, until: int) -> AsyncGenerator[Cursored, None]:
    """The events behind one place of the Session's stream, up to another."""
    (commit, seen), (last, _) = place_of(after), place_of(until)
    at, within = (commit - 1 if seen else commit), 0
    while at < last:
        changes = await shared.store.changes(shared.session_id, at)
        if not changes:
            return
        for change in changes:
            if change.commit > last:
                return
            if change.commit != at:
                at, within = change.commit, 0
            async with aclosing(_changed(shared, change.segment)) as changed:
                async for event in changed:
                    within += event.seq is not None
                    place = cursor_at(at, within)
                    if place > after:
                        yield event, place


async def _changed(shared: Shared, segment: Segment) -> AsyncGenerator[AnyEvent, None]:
    log = shared.logs.get(segment.conversation)
    envelope = Envelope(shared.session_id, segment.conversation)
    async with aclosing(read(log, shared.store, (segment,))) as chunks:
        async for chunk in chunks:
            for record in chunk:
                for event in events(record, envelope):
                    yield event


def clip(path: tuple[Segment, ...], until: int) -> tuple[Segment, ...]:
    """The same path, without what came after `until`."""
    return tuple(
        part if part.until <= until else Segment(part.conversation, part.branch, part.after, until)
        for part in path
        if part.after < until
    )


def _so_far(log: Log, shared: Shared) -> list[AnyEvent]:
    """What a joiner missed of the message that is being streamed, and what nobody was there to be told."""
    live, notice = log.live, log.notice
    log.notice = None
    if live is None:
        return [] if notice is None else [notice]
    turn = TurnId(live.turn_id)
    session, ts, message = shared.session_id, shared.clock.now(), live.message_id
    start = IterationStart(
        session_id=session, conversation_id=log.id, turn_id=turn, ts=ts, message_id=message
    )
    text = "".join(live.texts)
    if not text.strip():
        return [start]
    delta = TextDelta(
        session_id=session, conversation_id=log.id, turn_id=turn, ts=ts, message_id=message, text=text
    )
    return [start, delta]
