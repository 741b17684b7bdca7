"""A conversation against a plain model of it: whatever callers do, in whatever order, both agree.

The model that answers is stepped by a rule, so that all else can happen while a turn runs.
"""

import asyncio
import os
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tertulia.records.errors import (
    ConversationBusy,
    IdConflict,
    ItemNotFound,
    PromptAlreadyRunning,
    PromptCancelled,
)
from tertulia.records.record import Message
from tertulia.session.conversation import Conversation
from tertulia.session.reply import Handle, Reply
from tertulia.session.session import Session
from tertulia.store.base import Store
from tertulia.store.memory import MemoryStore
from tertulia.store.sqlite import SqliteStore
from tertulia.testing import FakeClock, ScriptedModel, call, hold
from tests.session.kit import assert_stats, check_records, record_of

T = TypeVar("T")
TORTURE = bool(os.environ.get("TERTULIA_TORTURE"))
PLACE = st.integers(0, 6)


class Waiting:
    """An item of the queue, as the plain model has it."""

    def __init__(self, text: str, source: str, handle: Handle | None = None) -> None:
        self.text, self.source, self.handle = text, source, handle
        self.given = text  # before it was edited: what its client id stands for
        self.held = False


class Talk(RuleBasedStateMachine):
    """`said` is the transcript as it should be: (role, text) of messages that are not aborted."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.names = self.texts()
        self.queue: list[Waiting] = []
        self.running: Waiting | None = None
        self.steers: list[Waiting] = []  # delivered into the running turn
        self.held = hold()
        self.known: dict[str, str] = {}
        self.users: list[str] = []
        self.replies: list[tuple[Waiting, Any]] = []
        self.do(self.open_first())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(20):
                return await work

        return self.runner.run(bounded())

    @staticmethod
    def texts() -> Iterator[str]:
        yield from (f"input {n}" for n in range(10**6))

    # ── the world ──

    async def open_first(self) -> None:
        inner: Store = (
            MemoryStore() if self.kind == "memory" else await SqliteStore.at(Path(self.folder.name) / "s.db")
        )
        self.store = inner
        self.clock = FakeClock()
        self.there = asyncio.Event()
        self.model = ScriptedModel(default=self.answer)
        self.session = await Session.open(**self.options())
        self.conv: Conversation = self.session.root

    def options(self) -> dict[str, Any]:
        async def look() -> str:
            return "seen"

        return {"model": self.model, "store": self.store, "clock": self.clock, "tools": [look]}

    async def answer(self, request: Any) -> Any:
        """The model waits here until a rule lets it go on."""
        self.held = hold()
        self.there.set()
        try:
            await self.held.wait()
        finally:
            self.there.clear()
        return self.held.then

    def let_go(self, then: Any) -> None:
        self.held.then = then
        self.held.release()
        self.there.clear()

    async def still(self) -> None:
        """Until nothing more happens by itself: the model waits, or nothing runs."""
        await self.conv.flush()
        waiting = [asyncio.create_task(self.conv.wait_idle()), asyncio.create_task(self.there.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self.conv.flush()

    # ── the plain model ──

    def next(self) -> None:
        """The next item that may run does."""
        if self.running is None:
            waiting = next((item for item in self.queue if not item.held), None)
            if waiting is not None:
                self.queue.remove(waiting)
                self.running = waiting
                self.users.append(waiting.text)

    def put(self, item: Waiting) -> None:
        self.queue.append(item)
        self.next()

    @property
    def busy(self) -> bool:
        return self.running is not None

    # ── rules ──

    @rule(when=st.sampled_from(["reject", "follow_up", "steer"]), named=st.booleans())
    def submit(self, when: str, named: bool) -> None:
        text = next(self.names)
        id = f"id-{len(self.known)}" if named else None

        async def work() -> Handle | None:
            try:
                handle = await self.conv.submit(text, when_busy=when, id=id)
            except PromptAlreadyRunning:
                return None
            await self.still()
            return handle

        handle = self.do(work())
        if self.busy and when == "reject":
            assert handle is None
            return
        assert handle is not None
        if id is not None:
            self.known[id] = text
        source = (
            {"reject": "prompt", "follow_up": "prompt_follow_up"}.get(when, when) if self.busy else "prompt"
        )
        self.put(Waiting(text, source, handle))

    @rule(source=st.sampled_from(["steer", "follow_up", "send_message"]), count=st.integers(1, 3))
    def enqueue(self, source: str, count: int) -> None:
        texts = [next(self.names) for _ in range(count)]

        async def work() -> list[str]:
            receipts = [await getattr(self.conv, source)(text) for text in texts]
            await self.still()
            return [receipt.status for receipt in receipts]

        statuses = self.do(work())
        assert statuses == ["queued" if self.busy else "delivered", *["queued"] * (count - 1)]
        for text in texts:
            self.put(Waiting(text, "follow_up" if source == "send_message" else source))

    @precondition(lambda self: self.known)
    @rule(place=PLACE, other=st.booleans())
    def submit_again(self, place: int, other: bool) -> None:
        id = list(self.known)[place % len(self.known)]

        async def work() -> None:
            if other:
                with pytest.raises(IdConflict):
                    await self.conv.submit("something else", when_busy="follow_up", id=id)
            else:
                await self.conv.submit(self.known[id], when_busy="follow_up", id=id)
            await self.still()

        held = [item for item in self.queue if item.held and item.given == self.known[id]]
        self.do(work())
        if not other:
            for item in held:
                item.held = False
            self.next()

    @precondition(lambda self: self.running)
    @rule(calls=st.booleans())
    def model_answers(self, calls: bool) -> None:
        """The model says something; when it calls a tool, the oldest steer goes in and it is asked again."""

        async def work() -> None:
            self.let_go([call("look")] if calls else "an answer")
            await self.still()

        self.do(work())
        if calls:
            steer = next((i for i in self.queue if i.source == "steer" and not i.held), None)
            if steer is not None:
                self.queue.remove(steer)
                self.steers.append(steer)
                self.users.append(steer.text)
            return
        assert self.running is not None
        for item in (self.running, *self.steers):
            self.replies.append((item, "an answer"))
        self.running, self.steers = None, []
        self.next()

    @rule(keep=st.booleans())
    def cancel(self, keep: bool) -> None:
        async def work() -> Any:
            result = await self.conv.cancel(queue="keep" if keep else "fail")
            await self.still()
            return result

        result = self.do(work())
        dropped = [] if keep else [item for item in self.queue if not item.held]
        assert result.active is self.busy
        assert list(result.dropped) == [item.text for item in dropped]
        self.ended(dropped)

    def ended(self, dropped: list[Waiting]) -> None:
        """The running turn was cancelled, and these items with it."""
        stopped = [self.running, *self.steers] if self.running is not None else []
        self.replies += [(item, PromptCancelled) for item in (*stopped, *dropped)]
        self.queue = [item for item in self.queue if item not in dropped]
        self.running, self.steers = None, []
        self.next()

    @rule(active=st.booleans())
    def clear(self, active: bool) -> None:
        async def work() -> Any:
            result = self.conv.clear_pending_state(cancel_active_prompt=active)
            await (self.conv.wait_idle() if active else self.still())
            await self.conv.flush()
            return result

        result = self.do(work())
        listed = [item for item in self.queue if item.source != "prompt"]
        assert result.queued_removed == len(listed)
        assert result.active_prompt_cancelled is (active and self.busy)
        gone, self.queue = self.queue, []
        self.replies += [(item, PromptCancelled) for item in gone]
        if active:
            self.ended([])

    @precondition(lambda self: self.queue)
    @rule(place=PLACE, to=PLACE)
    def reorder(self, place: int, to: int) -> None:
        item = self.queue[place % len(self.queue)]
        id = self.conv.queue.list()[place % len(self.queue)].id
        self.do(self.conv.queue.reorder(id, to))
        self.queue.remove(item)
        self.queue.insert(to, item)

    @precondition(lambda self: self.queue)
    @rule(place=PLACE)
    def edit(self, place: int) -> None:
        item = self.queue[place % len(self.queue)]
        item.text = next(self.names)
        self.do(self.conv.queue.edit(self.conv.queue.list()[place % len(self.queue)].id, item.text))

    @precondition(lambda self: self.queue)
    @rule(place=PLACE)
    def remove(self, place: int) -> None:
        item = self.queue.pop(place % (len(self.queue)))
        id = next(each.id for each in self.conv.queue.list() if each.text == item.text)

        async def work() -> None:
            assert (await self.conv.queue.remove(id)).text == item.text
            with pytest.raises(ItemNotFound):
                await self.conv.queue.edit(id, "gone")

        self.do(work())
        self.replies.append((item, PromptCancelled))

    @rule()
    def run_held(self) -> None:
        async def work() -> int:
            released = await self.conv.queue.run()
            await self.still()
            return released

        assert self.do(work()) == sum(item.held for item in self.queue)
        for item in self.queue:
            item.held = False
        self.next()

    @rule()
    def fork(self) -> None:
        """A fork has what is complete, and goes its own way."""

        async def work() -> None:
            before = [m.text for m in record_of(await self.conv.transcript(), Message)]
            child = await self.conv.fork()
            records = await child.records()
            assert_stats(await child.stats(), records)
            assert [m.text for m in record_of(records, Message)] == before[: len(record_of(records, Message))]
            assert child.pending_message_count() == 0
            await self.session.close_conversation(child.id)

        self.do(work())

    @rule()
    def branch(self) -> None:
        async def work() -> None:
            last = (await self.conv.records())[-1:]
            if self.busy:
                with pytest.raises(ConversationBusy):
                    await self.conv.branch(f"{self.conv.id}:1")
            elif last:
                await self.conv.branch(f"{self.conv.id}:{last[0].seq}")

        self.do(work())

    @rule(mode=st.sampled_from(["cancel", "drain"]))
    def restart(self, mode: str) -> None:
        """Close and open again: what ran is over, what waited is held, ids are remembered."""

        async def work() -> None:
            closing = asyncio.create_task(self.session.aclose(mode))
            for _ in range(10):
                await asyncio.sleep(0)  # it refuses input by then, and starts nothing more
            if self.busy and mode == "drain":
                self.let_go("an answer")
            await closing
            self.session = await Session.open(id=self.session.id, **self.options())
            self.conv = self.session.root

        if not self.users and not self.queue:
            return  # a session that nobody used is not stored
        self.do(work())
        stopped = [self.running, *self.steers] if self.running is not None else []
        self.replies += [(item, "an answer" if mode == "drain" else PromptCancelled) for item in stopped]
        self.replies += [(item, PromptCancelled) for item in self.queue if item.handle is not None]
        self.running, self.steers = None, []
        for item in self.queue:
            item.held, item.handle = True, None

    # ── what always holds ──

    @invariant()
    def the_log_is_whole(self) -> None:
        async def work() -> None:
            records = await self.conv.records()
            if not self.busy:
                check_records(records)
            assert_stats(await self.conv.stats(), records)
            assert [m.text for m in record_of(records, Message) if m.role == "user"] == self.users

        self.do(work())

    @invariant()
    def the_queue_is_as_it_should_be(self) -> None:
        shown = [(item.text, item.held) for item in self.conv.queue.list()]
        assert shown == [(item.text, item.held) for item in self.queue]
        assert self.conv.pending_message_count() == sum(item.source != "prompt" for item in self.queue)
        assert self.conv.busy is self.busy
        assert len(self.session.tasks) == self.busy

    @invariant()
    def everyone_is_told(self) -> None:
        async def work() -> None:
            for item, outcome in self.replies:
                if item.handle is None:
                    continue
                if outcome is PromptCancelled:
                    with pytest.raises(PromptCancelled):
                        await item.handle.reply()
                else:
                    reply = await item.handle.reply()
                    assert isinstance(reply, Reply)
                    assert str(reply) == outcome

        self.do(work())
        self.replies.clear()

    def teardown(self) -> None:
        async def work() -> None:
            await self.session.aclose("cancel")
            await self.store.aclose()

        self.do(work())
        self.runner.close()
        self.folder.cleanup()


class TalkOnDisk(Talk):
    kind = "sqlite"


@pytest.mark.timeout(1800 if TORTURE else 60)
@pytest.mark.req("S0-13", "S0-16", "S2-06b")
@pytest.mark.parametrize("machine", [Talk, TalkOnDisk])
def test_a_conversation_and_its_model(machine: type[Talk]) -> None:
    sizes = settings(
        max_examples=500 if TORTURE else 60, stateful_step_count=60 if TORTURE else 40, deadline=None
    )
    run_state_machine_as_test(machine, settings=sizes)
