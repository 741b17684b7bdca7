"""A conversation: what callers hold. Each method forwards to the module that owns the concern."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, Unpack

from ..models.base import Model
from ..records.errors import (
    ConversationBusy,
    ConversationClosed,
    InvalidInput,
    PromptAlreadyRunning,
    StoragePolicyViolation,
)
from ..records.event import AnyEvent
from ..records.ids import ConversationId, SessionId, check_id
from ..records.record import AnyEntry, AnyRecord, Info, ItemSource, Label
from ..tools.base import ToolDescriptor
from ..transcript.export import render
from ..transcript.path import Forkable, forkable
from ..transcript.replay import transcript_events
from . import branching, closed, known, mcp_wiring, persisting, rewinding
from .attaching import with_content
from .calls import not_inside
from .compaction import compact_by_hand
from .inbox import Item, PendingMessage
from .inputs import Input, check_text, parse_input
from .journal import Journal, Put
from .loading import catch_up, claimed, load, records, stored
from .log import Log
from .options import Overrides, WhenBusy, check_model, make_overrides
from .pending import Queue
from .reader import EventStream, check_cursor
from .reply import CancelResult, ClearResult, Handle, Receipt, Reply, reply_of
from .rewinding import FileChanges
from .runner import Runner
from .shared import Setup, Shared
from .stats import Stats, make_stats

R = TypeVar("R")


class AnySession(Protocol):
    """The Session of a conversation, as far as the conversation knows it."""

    @property
    def id(self) -> SessionId: ...

    @property
    def mcp(self) -> mcp_wiring.Mcp: ...

    async def delete_conversation(self, id: str) -> None: ...

    async def aclose(self, mode: Literal["drain", "cancel"] = "drain") -> None: ...


class Family(Protocol):
    """What a conversation asks of the others of its Session."""

    @property
    def session(self) -> Any: ...

    async def fork_of(self, parent: "Conversation", index: int | None, id: str | None) -> "Conversation": ...

    async def sub_prompt(
        self,
        parent: "Conversation",
        input: Input,
        opened: Callable[[ConversationId], None] | None,
        **overrides: Any,
    ) -> Reply: ...

    def forget(self, conversation: "Conversation") -> None: ...


class Conversation:
    """One isolated transcript with its queue. Made by a Session or a Host, never directly."""

    def __init__(self, shared: Shared, log: Log, setup: Setup, family: Family) -> None:
        self._family = family
        self.session: AnySession = family.session
        self._shared = shared
        self._log = log
        self._setup = setup
        self._journal = Journal(log, shared.owner, shared.bus, shared.clock, setup.retention)
        self._runner = Runner(shared, log, self._journal, setup)
        self._runner.sub_prompt = partial(family.sub_prompt, self)
        self._known = known.KnownIds(log, self._journal)
        self.queue = Queue(self._runner.desk, self._runner.pump, self._check)
        shared.logs[log.id] = log
        shared.owner.conversations[log.id] = partial(catch_up, self._runner.desk)

    def __repr__(self) -> str:
        return f"<Conversation {self.id}>"

    @property
    def id(self) -> ConversationId:
        return self._log.id

    @property
    def parent(self) -> tuple[ConversationId, int] | None:
        """The conversation it was forked from, and the seq at which."""
        return self._log.row.parent

    @property
    def title(self) -> str | None:
        return self._log.row.title

    @property
    def busy(self) -> bool:
        """Whether something runs, or is going to."""
        return self._runner.busy

    # ── asking ──

    async def prompt(
        self,
        input: Input,
        when_busy: WhenBusy = "reject",
        id: str | None = None,
        **overrides: Unpack[Overrides],
    ) -> Reply:
        """Ask, and wait for the reply. Cancelling who waits takes the input back, or cancels its run."""
        not_inside(self._shared.session_id)
        item = await self._submit(input, when_busy, id, dict(overrides))
        item.waiters += 1
        try:
            return await reply_of(item)
        except asyncio.CancelledError:
            if item.waiters == 1:
                self._runner.abandon(item)
            raise
        finally:
            item.waiters -= 1

    async def submit(
        self,
        input: Input,
        when_busy: WhenBusy = "reject",
        id: str | None = None,
        **overrides: Unpack[Overrides],
    ) -> Handle:
        """Hand an input over. Returns when it is durable: its turn's first commit, or its place in the queue."""
        item = await self._submit(input, when_busy, id, dict(overrides))
        item.waiters += 1  # for good: what was handed over runs, whoever else gives up on it
        await _accepted(item)
        return Handle(item, partial(not_inside, self._shared.session_id))

    async def send_message(self, input: Input) -> Receipt:
        """Put a message on the queue; what came this way runs even when what is before it fails."""
        return await self._enqueue(input, "send_message")

    async def steer(self, input: Input) -> Receipt:
        """Say something to the running turn: delivered after the present tool calls. Idle, it starts a run."""
        return await self._enqueue(input, "steer")

    async def follow_up(self, input: Input) -> Receipt:
        """Queue an input behind the running turn. Idle, it starts a run."""
        return await self._enqueue(input, "follow_up")

    def output_stream(self) -> EventStream:
        """Every event from now on, until the conversation closes."""
        return self.events().start()

    # ── stopping ──

    def cancel_active_prompt(self) -> CancelResult:
        """Stop what runs and drop what is queued, at once. Harmless when idle."""
        self._shared.check_thread()
        return self._runner.cancel()

    async def cancel(self, queue: Literal["fail", "keep"] = "fail") -> CancelResult:
        """As cancel_active_prompt; returns when the turn is over and that is durable. `keep` lets the queue go on."""
        if queue not in ("fail", "keep"):
            raise InvalidInput(f"queue is {queue!r}", hint="fail or keep")
        self._shared.check_loop()
        return await closed.cancel(self._runner, keep_queue=queue == "keep")

    async def wait_idle(self) -> None:
        """Until nothing runs and nothing is going to. Held items do not count."""
        self._shared.check_loop()
        not_inside(self._shared.session_id)
        await self._runner.idle()

    # ── the queue ──

    def pending_message_count(self) -> int:
        """How many items wait, held ones included; a direct prompt is none of them."""
        self._shared.check_thread()
        return len(self._runner.inbox.listed())

    def pending_messages(self, max_length: int = 120, include_resolved: bool = False) -> list[PendingMessage]:
        """Queued items in order; with `include_resolved`, the recent history behind them, oldest first."""
        self._shared.check_thread()
        return self._runner.inbox.pending(max_length, include_resolved)

    def clear_pending_history(self) -> ClearResult:
        """Forget the items that ended. What waits stays."""
        self._shared.check_thread()
        return closed.clear_history(self._runner)

    def clear_pending_state(self, cancel_active_prompt: bool = False) -> ClearResult:
        """Drop what is queued and what is remembered. Every waiting prompt() raises PromptCancelled."""
        self._shared.check_thread()
        return closed.clear_state(self._runner, cancel_active_prompt)

    # ── reading ──

    async def transcript(self) -> Sequence[AnyEntry]:
        """The entries of the active path: messages, tool calls and tool results."""
        await load(self._log)
        return tuple(self._log.entries)

    async def records(self) -> Sequence[AnyRecord]:
        """All records of the active path."""
        return tuple(await records(self._log))

    async def transcript_events(self) -> Sequence[AnyEvent]:
        """The events that the entries of the active path make, with their companions."""
        return transcript_events(await self.records(), self._journal.envelope)

    def events(self, since: int | None = None) -> EventStream:
        """What was after the seq `since` (0: all, None: nothing), then what is. Use it with `async with`."""
        stream = EventStream(self._shared, self._log, check_cursor(since))
        return stream if not self._runner.closed else stream.ended()

    async def stats(self) -> Stats:
        """The totals of the active path, and what is pending. Reads no history."""
        return make_stats(self._shared.session_id, self._log, self._runner.inbox)

    async def forkable_user_messages(self) -> Sequence[Forkable]:
        """What the user said on the active path: where `fork(from_user_entry_index=)` can cut."""
        await load(self._log)
        return forkable(self._log.entries, self.id)

    # ── branching ──

    async def fork(self, from_user_entry_index: int | None = None, id: str | None = None) -> "Conversation":
        """A conversation that begins with what stands here; with an index, with what stands before that message."""
        self._check()
        return await self._family.fork_of(self, from_user_entry_index, id)

    async def branch(self, record_id: str) -> None:
        """Go on from an earlier record, in a branch of this conversation."""
        seq = branching.record_seq(self._log, record_id)
        await self._move("branch", lambda: branching.branch(self._log, self._journal, seq))

    async def resume(self, entries: Iterable[AnyEntry]) -> None:
        """Make these entries the transcript, in a new branch. What stood here before is in `events(since=0)`."""
        await self._move("resume", lambda: branching.resume(self._log, self._journal, entries))

    async def label(self, record_id: str, text: str) -> None:
        """Name a record, for people."""
        self._check()
        seq = branching.record_seq(self._log, record_id)
        label = Label(seq=0, ts=0, target=seq, text=check_text(text, "a label"))
        await asyncio.shield(self._journal.put(Put([label])))

    async def rename(self, title: str | None) -> None:
        """Set the title that lists show."""
        self._check()
        info = Info(seq=0, ts=0, title=title if title is None else check_text(title, "a title"))
        await asyncio.shield(self._journal.put(closed.info(info)))

    async def archive(self, archived: bool = True) -> None:
        """Take it out of the usual lists, or back in."""
        self._check()
        if not isinstance(archived, bool):
            raise InvalidInput(f"archived is {archived!r}", hint="True or False")
        await asyncio.shield(self._journal.put(closed.info(Info(seq=0, ts=0, archived=archived))))

    async def enable_jsonl_persistence(self, path: "str | os.PathLike[str]") -> None:
        """Keep this conversation in one readable file: its store when it lives in memory, else an export.

        An empty conversation takes over what the file holds; a filled one is written to a new file.
        """
        desk = self._runner.desk
        await self._move("enable_jsonl_persistence", lambda: persisting.enable(desk, self._known, path))

    async def compact(self) -> str:
        """Let a summary stand for older messages in later requests; the summary. The log keeps what it stands for."""
        limit = self._setup.limits.compact_min_messages
        return await self._move("compact", lambda: compact_by_hand(self._journal, limit))

    async def export(self, format: str = "jsonl") -> str:
        """The active path as text: `jsonl` (all records), `md` or `html` (the transcript)."""
        if self._journal.retention.kind in ("none", "headers_only"):
            raise StoragePolicyViolation(
                f"a conversation kept as {self._journal.retention.kind} is exported with no bodies",
                hint="read transcript() while it is open",
            )
        return render(await stored(self._log), format, title=self.title or self.id)

    # ── files ──

    async def file_changes(self, turn: str | None = None) -> FileChanges:
        """What a turn's calls changed in files, as one diff; of the last turn that did and was not put back."""
        return await rewinding.shown(self._log, self._shared.sandbox, turn)

    async def rewind_files(self, turn: str) -> Sequence[str]:
        """Put the files that a turn changed back as they were before it; those that it had to write.

        Conflict, and none is touched, when one holds something else by now.
        """
        return await self._move(
            "rewind_files", lambda: rewinding.rewind(self._journal, self._shared.sandbox, turn)
        )

    # ── tools ──

    def register(self, tool: Any) -> ToolDescriptor:
        """Add a tool, for the next model request on."""
        self._check()
        return mcp_wiring.register(self._setup, tool, self.id, self.session.mcp)

    def unregister(self, name: str) -> bool:
        """Remove a tool, for the next model request on and for good; whether there was one."""
        self._check()
        return mcp_wiring.unregister(self._setup, name)

    def tool_descriptors(self) -> Sequence[ToolDescriptor]:
        """All tools in their order, disabled ones too."""
        self._shared.check_thread()
        return self._setup.tools().descriptors()

    def active_tool_names(self) -> Sequence[str]:
        """Those that the model is told of."""
        self._shared.check_thread()
        return tuple(tool.name for tool in self._setup.tools().enabled())

    def use_model(self, model: Model | str) -> None:
        """Ask another model from the next turn on; what was said stays."""
        self._check()
        self._setup.model = check_model(model)

    # ── the end ──

    async def flush(self) -> None:
        """Until all that was changed so far is durable."""
        self._shared.check_loop()
        await self._journal.flush()

    async def close(self, mode: Literal["cancel", "drain"] = "cancel", timeout: float = 10.0) -> None:
        """Refuse input, end what runs, end the streams. What is stored stays. Closing twice is harmless."""
        self._shared.check_loop()
        await closed.close(self._runner, mode, timeout)
        self._family.forget(self)

    # ── what the Session and the methods above use ──

    async def _move(self, what: str, change: Callable[[], Awaitable[R]]) -> R:
        """Change the active path of an idle conversation. A turn that is asked for meanwhile waits for it."""
        self._check()
        desk = self._runner.desk
        if self._runner.busy or desk.moving is not None:
            raise ConversationBusy(f"{what}() while a prompt runs", hint="wait_idle() first, or cancel it")

        async def move() -> R:
            try:
                await claimed(self._journal)
                await load(self._log)
                return await change()
            finally:
                desk.moving = None

        moving = desk.moving = asyncio.ensure_future(move())
        moving.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(moving)

    def _check(self, runs: bool = False) -> None:
        """It is open, and used from where it may be; with `runs`, there is a model to run with."""
        self._shared.check_loop()
        if self._runner.closed:
            raise ConversationClosed(f"conversation {self.id} is closed", hint="load it again to go on")
        if runs and self._setup.model is None and "model" in self._setup.engine.capabilities:
            raise known.no_model()

    async def _submit(
        self, input: Input, when_busy: WhenBusy, id: str | None, overrides: dict[str, Any]
    ) -> Item:
        if when_busy not in ("reject", "follow_up", "steer"):
            raise InvalidInput(f"when_busy is {when_busy!r}", hint="reject, follow_up or steer")
        self._check()
        parts = await with_content(parse_input(input), self._log.store)
        made = make_overrides(overrides, self._setup) if overrides else {}
        found: Item | None = None
        if id is not None:
            found = await self._known.find(check_id(id), parts, self._runner.inbox)
            if found is not None and found.status != "held":
                return found
        source: ItemSource = "prompt"
        if self._runner.busy:
            if when_busy == "reject":
                raise PromptAlreadyRunning(
                    "a prompt is running", hint="wait for it, or pass when_busy='follow_up' or 'steer'"
                )
            source = "steer" if when_busy == "steer" else "prompt_follow_up"
        self._check(runs="model" not in made)
        if found is not None:  # held since a crash: whoever asks for it again wants it to run
            self._runner.desk.release_held(found)
            self._runner.pump()
            return found
        item = self._runner.accept(source, parts, id, made)
        self._known.add(item)
        return item

    async def _enqueue(self, input: Input, source: ItemSource) -> Receipt:
        self._check(runs=True)
        parts = await with_content(parse_input(input), self._log.store)
        item = self._runner.accept(source, parts, None, {})
        await _accepted(item)
        durable = self._log.store.durable and self._runner.desk.keeps_bodies
        return Receipt(id=item.id, status=known.receipt_status(item), durable=durable)


async def _accepted(item: Item) -> None:
    """Until it is durable that it was taken in."""
    if item.receipt is not None and item.outcome is None:
        await asyncio.shield(item.receipt)
