"""A Session: what its conversations share. Its own prompt, fork and so on are those of its root conversation."""

import asyncio
import functools
import os
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack

from ..approvals.policy import Handler, Mode, Policy
from ..records.clock import SYSTEM_CLOCK, Clock
from ..records.errors import (
    ConversationClosed,
    ConversationNotFound,
    InvalidInput,
    SessionHeld,
    TurnNotFound,
)
from ..records.ids import ConversationId, SessionId, check_id, new_session_id
from ..sandbox.sandbox import Choice, Sandbox
from ..store.base import SessionRow, Store
from ..store.open import files_of, open_store
from ..store.shared import identity
from ..tools.mcp.around import Login
from ..tools.mcp.asking import Answerer
from . import mcp_wiring, parked
from .asking import Approvals
from .conversation import Conversation
from .members import Members
from .options import ConversationOptions, check_clock, check_cwd, check_slots, make_setup
from .pending import Queue
from .reader import EventStream, check_cursor
from .reply import TaskInfo
from .shared import Setup, Shared

CLOSE_TIMEOUT = 30.0
MCP_CLOSE = 10.0

P = ParamSpec("P")
R = TypeVar("R")


def _root(method: Callable[Concatenate[Conversation, P], R]) -> "Callable[Concatenate[Session, P], R]":
    """The method of the root conversation, as one of the Session."""

    def forward(session: "Session", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(session.root, *args, **kwargs)

    return functools.wraps(method)(forward)


_open_here: "weakref.WeakValueDictionary[tuple[int, str], Session]" = weakref.WeakValueDictionary()


class SessionOptions(ConversationOptions, total=False):
    """What `Session.open` takes besides the options of a conversation."""

    id: str | None
    store: Store | str | os.PathLike[str] | None
    cwd: str | os.PathLike[str]
    sandbox: Choice
    max_running: int
    approvals: Mode | Handler | Policy
    approval_timeout: float | None
    run_queue: bool
    clock: Clock
    mcp_limits: Mapping[str, int]
    mcp_log_folder: str | os.PathLike[str] | None
    mcp_auth_folder: str | os.PathLike[str] | None
    mcp_login: Login | None
    elicitation: Answerer | None


class Session:
    """Use `Session.open`. One Session object per id in a process; it belongs to the loop that opened it."""

    def __init__(self, shared: Shared, approvals: Approvals, setup: Setup, owns_store: bool) -> None:
        self._shared = shared
        self._setup = setup
        self._owns_store = owns_store
        self._closing: asyncio.Task[None] | None = None
        self.approvals = approvals
        self.mcp = mcp_wiring.Mcp(shared, setup.mcp_options)
        self._members = Members(shared, setup, approvals)
        approvals.journal = lambda: self.root._journal
        self._members.session = self
        self._members.check = self._check_open

    @classmethod
    def open(cls, **options: Unpack[SessionOptions]) -> "Opening":
        """`async with Session.open(…) as session`, or `session = await Session.open(…)` and aclose() at the end."""
        return Opening(options)

    @property
    def id(self) -> SessionId:
        return self._shared.session_id

    @property
    def root(self) -> Conversation:
        """The conversation that the Session's own methods speak to."""
        return self._members.root

    @property
    def closed(self) -> bool:
        """Whether it was told to close."""
        return self._closing is not None

    @property
    def conversations(self) -> Sequence[Conversation]:
        """Those that are open, in the order in which they were opened."""
        return tuple(self._members.open.values())

    @property
    def tasks(self) -> Sequence[TaskInfo]:
        """The turns that run now."""
        return tuple(
            TaskInfo(
                task_id=id,
                conversation_id=conversation,
                started_at=turn.started_at,
                status="cancelling" if turn.cancelled else "waiting_approval" if turn.parked else "running",
            )
            for id, (conversation, turn) in self._shared.turns.items()
        )

    def cancel_task(self, task_id: str) -> None:
        """Cancel one turn. What is queued behind it goes on."""
        self._shared.check_thread()
        for id, (conversation, _) in self._shared.turns.items():
            if id == task_id:
                self.conversation(conversation)._runner.cancel_turn("cancelled")
                return
        raise TurnNotFound(f"no task {task_id} is running", hint="tasks lists those that are")

    def conversation(self, id: str) -> Conversation:
        """An open conversation of this Session."""
        found = self._members.open.get(ConversationId(check_id(id)))
        if found is None:
            raise ConversationNotFound(f"this session has no open conversation {id}")
        return found

    async def open_conversation(self, **options: Unpack[ConversationOptions]) -> Conversation:
        """Another conversation, set up like the root but for what is given here; durable when this returns."""
        self._check_open()
        return await self._members.open_new(make_setup(dict(options), self._setup))

    async def close_conversation(self, id: str, timeout: float = 10.0) -> None:
        """Cancel what it runs, wait that long at most, free it. What is stored stays. Harmless when it is closed."""
        found = self._members.open.get(ConversationId(check_id(id)))
        if found is not None:
            await found.close("cancel", timeout)

    async def delete_conversation(self, id: str, timeout: float = 10.0) -> None:
        """Close it, and delete what is stored of it, except what a living fork reaches."""
        self._check_open()
        conversation = await self._members.reopened(ConversationId(check_id(id)))
        await asyncio.shield(asyncio.ensure_future(self._members.delete(conversation, timeout)))

    def events(self, since: int | None = None) -> EventStream:
        """The events of all its conversations. `since` is the `cursor` of an earlier stream, 0 the beginning."""
        stream = EventStream(self._shared, None, check_cursor(since))
        return stream if self._closing is None else stream.ended()

    async def aclose(
        self, mode: Literal["drain", "cancel"] = "drain", timeout: float = CLOSE_TIMEOUT
    ) -> None:
        """End everything: `drain` lets what runs finish, `cancel` stops it. Bounded; closing twice is harmless."""
        self._shared.check_loop()
        if mode not in ("drain", "cancel"):
            raise InvalidInput(f"mode is {mode!r}", hint="drain or cancel")
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._aclose(mode, timeout))
        elif mode == "cancel":
            for conversation in self.conversations:
                conversation._runner.cancel_turn("cancelled")
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose("drain" if error is None else "cancel")

    # ── the root conversation's own methods ──

    prompt = _root(Conversation.prompt)
    submit = _root(Conversation.submit)
    send_message = _root(Conversation.send_message)
    steer = _root(Conversation.steer)
    follow_up = _root(Conversation.follow_up)
    output_stream = _root(Conversation.output_stream)
    cancel_active_prompt = _root(Conversation.cancel_active_prompt)
    cancel = _root(Conversation.cancel)
    wait_idle = _root(Conversation.wait_idle)
    pending_message_count = _root(Conversation.pending_message_count)
    pending_messages = _root(Conversation.pending_messages)
    clear_pending_history = _root(Conversation.clear_pending_history)
    clear_pending_state = _root(Conversation.clear_pending_state)
    transcript = _root(Conversation.transcript)
    records = _root(Conversation.records)
    transcript_events = _root(Conversation.transcript_events)
    stats = _root(Conversation.stats)
    forkable_user_messages = _root(Conversation.forkable_user_messages)
    fork = _root(Conversation.fork)
    branch = _root(Conversation.branch)
    resume = _root(Conversation.resume)
    label = _root(Conversation.label)
    rename = _root(Conversation.rename)
    archive = _root(Conversation.archive)
    register = _root(Conversation.register)
    unregister = _root(Conversation.unregister)
    tool_descriptors = _root(Conversation.tool_descriptors)
    active_tool_names = _root(Conversation.active_tool_names)
    list_all_tools = _root(Conversation.tool_descriptors)
    enable_jsonl_persistence = _root(Conversation.enable_jsonl_persistence)
    use_model = _root(Conversation.use_model)
    file_changes = _root(Conversation.file_changes)
    rewind_files = _root(Conversation.rewind_files)
    compact = _root(Conversation.compact)
    export = _root(Conversation.export)
    flush = _root(Conversation.flush)

    @property
    def queue(self) -> Queue:
        return self.root.queue

    # ── inside ──

    def _check_open(self) -> None:
        self._shared.check_loop()
        if self._closing is not None:
            raise ConversationClosed(f"session {self.id} is closed", hint="open it again to go on")

    async def _aclose(self, mode: Literal["drain", "cancel"], timeout: float) -> None:
        conversations = self.conversations
        if conversations:
            await asyncio.wait([asyncio.ensure_future(each.close(mode, timeout)) for each in conversations])
        await self.mcp.aclose(min(timeout, MCP_CLOSE))
        await self._shared.sandbox.aclose()
        self._shared.bus.finish_all()
        try:
            await self._shared.owner.release()
        finally:
            _open_here.pop(_place(self._shared.store, self.id), None)
            if self._owns_store:
                await self._shared.store.aclose()


class Opening:
    """What `Session.open` gives: await it, or enter it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, Any, Session]:
        return _open(self._options).__await__()

    async def __aenter__(self) -> Session:
        self._session = await _open(self._options)
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.__aexit__(kind, error, trace)


async def _open(options: dict[str, Any]) -> Session:
    id, target = options.pop("id", None), options.pop("store", None)
    clock = check_clock(options.pop("clock", SYSTEM_CLOCK))
    slots = check_slots(options.pop("max_running", 1))
    sandbox = Sandbox(options.pop("sandbox", "on"), check_cwd(options.pop("cwd", ".")))
    approvals = Approvals(options.pop("approvals", "ask"), options.pop("approval_timeout", None))
    run_queue = options.pop("run_queue", False)
    if id is not None:
        check_id(id)
    mcp_options = mcp_wiring.take_options(options)
    setup = make_setup(options)
    setup.mcp_options = mcp_options
    store = await open_store(target)
    tokens = mcp_options.auth_folder
    sandbox.hide((*files_of(store), *((str(tokens),) if tokens else ())))
    owns = not (target is not None and target is store)
    try:
        if id is None:
            session = _create(store, clock, slots, sandbox, approvals, setup, owns)
            approvals.load(await store.grants(session.id), clock)
            return session
        row = await find(store, id)
        _claim_place(store, row.id)
        shared = Shared(row.id, store, clock, slots, sandbox)
        session = Session(shared, approvals, setup, owns)
        _open_here[_place(store, row.id)] = session  # from now on, so that of two at once the second is told
    except BaseException:
        if owns:
            await store.aclose()
        raise
    try:
        session._members.given_retention = "retention" in options
        approvals.load(await store.grants(row.id), clock)
        await _reopen(session, row)
        if run_queue:
            for conversation in session.conversations:
                await parked.go_on(conversation._runner)
                await conversation.queue.run()
    except BaseException:
        await session.aclose("cancel")
        raise
    return session


def _create(
    store: Store, clock: Clock, slots: int, sandbox: Sandbox, approvals: Approvals, setup: Setup, owns: bool
) -> Session:  # fmt: skip
    shared = Shared(new_session_id(), store, clock, slots, sandbox)
    session = Session(shared, approvals, setup, owns)
    session._members.add_root()
    _open_here[_place(store, session.id)] = session
    return session


async def find(store: Store, id: str) -> SessionRow:
    """By the id of the Session or of one of its conversations."""
    try:
        opened = await store.open(ConversationId(id))
    except ConversationNotFound:
        return await store.session(SessionId(id))
    return await store.session(opened.conversation.session)


async def _reopen(session: Session, row: SessionRow) -> None:
    """Its conversations as they are stored: rows only, no history. Nothing is claimed and nothing runs."""
    cursor: str | None = None
    store, members = session._shared.store, session._members
    while True:
        page = await store.list(session=row.id, archived=None, cursor=cursor, limit=200)
        for listed in page.rows:
            await members.add_stored(await store.open(listed.id))
        cursor = page.cursor
        if cursor is None:
            break
    if row.root in members.open:
        members.root_id = row.root
    else:  # it was never used, or it was deleted
        members.add_root()


def _claim_place(store: Store, session: str) -> None:
    if _place(store, session) in _open_here:
        raise SessionHeld(session, "this process, in a Session that is open")


def _place(store: Store, session: str) -> tuple[int, str]:
    return id(identity(store)), session
