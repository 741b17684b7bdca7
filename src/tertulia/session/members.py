"""The conversations of a Session: opened, forked, opened again, closed, deleted."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..records.errors import ConversationNotFound, IdConflict
from ..records.event import AnyEvent, ConversationEvent, Deleted
from ..records.ids import ConversationId, check_id, new_conversation_id
from ..records.parts import AnyPart, text_of
from ..records.record import Info
from ..store.base import DeleteConversation, Op, Opened, PutSession
from ..transcript.path import BranchRow
from ..transcript.retention import parse as parse_retention
from . import branching, closed, parked, persisting
from .asking import Approvals
from .conversation import AnySession, Conversation
from .inputs import Input, parse_input
from .journal import Put
from .loading import claimed, load
from .log import Log
from .options import make_overrides
from .reply import Reply, reply_of
from .shared import Setup, Shared

TITLE = 80
"""Characters of the title that a sub-conversation gets."""


class Members:
    """`open` are those that are open, in the order in which they were opened; `session` is the Session they are of."""

    def __init__(self, shared: Shared, setup: Setup, approvals: Approvals) -> None:
        self.shared = shared
        self.setup = setup
        self.approvals = approvals
        self.open: dict[ConversationId, Conversation] = {}
        self.session: AnySession
        self.check: Callable[[], None] = lambda: None  # raises when nothing may be opened any more
        self.root_id = ConversationId("")
        self.given_retention = False  # then it holds for what is stored too
        self._making: dict[ConversationId, asyncio.Task[Conversation]] = {}  # by an id that was given

    @property
    def root(self) -> Conversation:
        """Also when it was closed and opened again, or (closed) for who holds the Session still."""
        found = self.open.get(self.root_id)
        if found is not None:
            self._root = found
        return self._root

    def add_root(self) -> None:
        """A new root, written with its first commit: a Session that nobody used leaves nothing behind."""
        id, setup = new_conversation_id(), self.setup.child()
        row = branching.new_conversation(id, self.shared.session_id, setup, self.shared.clock.now())
        branch = BranchRow(conversation=id, n=0)
        self.root_id = id
        made = self.add(Log(branching.opened(row, (branch,), 0), self.shared.store), setup, fresh=True)
        made._journal.creation = (*self._session_row(), *branching.creation(row, branch))

    async def add_stored(self, opened: Opened) -> Conversation:
        """One that the store has: its rows, no history. Nothing is claimed and nothing runs."""
        changes: dict[str, Any] = {}
        if not self.given_retention:
            changes["retention"] = parse_retention(opened.conversation.settings.get("retention", "full"))
        made = self.add(Log(opened, self.shared.store), self.setup.child(**changes))
        await made._runner.desk.adopt(opened.inbox)
        made._known.parked = await parked.find(made._runner, self.approvals)
        return made

    async def open_new(self, setup: Setup, title: str = "") -> Conversation:
        id, now = new_conversation_id(), self.shared.clock.now()
        row = branching.new_conversation(id, self.shared.session_id, setup, now)
        branch = BranchRow(conversation=id, n=0)
        made = self.add(Log(branching.opened(row, (branch,), 0), self.shared.store), setup, fresh=True)
        made._journal.creation = (*self._session_row(), *branching.creation(row, branch))
        named = closed.info(Info(seq=0, ts=0, title=title)) if title else Put()
        await asyncio.shield(made._journal.put(named))
        return made

    async def fork_of(self, parent: Conversation, index: int | None, id: str | None) -> Conversation:
        self.check()
        if id is None:
            return await self._fork(parent, index, new_conversation_id())
        child = ConversationId(check_id(id))
        return await self._alone(child, lambda: self._fork_once(parent, index, child))

    async def reopened(self, id: ConversationId) -> Conversation:
        """An open conversation, or a stored one of this Session that was closed, opened again."""
        return await self._alone(id, lambda: self._open_again(id))

    async def _open_again(self, id: ConversationId) -> Conversation:
        found = self.open.get(id)
        if found is not None and found._runner.closed:
            await found.close()
            found = self.open.get(id)
        if found is None:
            opened = await self.shared.store.open(id)
            if opened.conversation.session != self.shared.session_id:
                raise ConversationNotFound(f"conversation {id} belongs to another session")
            found = await self.add_stored(opened)
        return found

    async def _alone(
        self, id: ConversationId, make: Callable[[], Coroutine[Any, Any, Conversation]]
    ) -> Conversation:
        """Of two at once, the second finds what the first has made."""
        while id in self._making:
            await asyncio.wait([self._making[id]])
        making = self._making[id] = asyncio.ensure_future(make())
        making.add_done_callback(lambda done: (self._making.pop(id), done.cancelled() or done.exception()))
        return await asyncio.shield(making)

    async def _fork_once(self, parent: Conversation, index: int | None, id: ConversationId) -> Conversation:
        existing = await self._existing_fork(parent, id)
        if existing is None:
            return await self._fork(parent, index, id)
        if index is not None:
            await load(parent._log)
            if existing.parent != (parent.id, (await branching.cut_before_message(parent._log, index)).at):
                raise IdConflict(f"the id {id!r} names a fork from another message")
        return existing

    async def _fork(self, parent: Conversation, index: int | None, child_id: ConversationId) -> Conversation:
        now = self.shared.clock.now()
        await claimed(parent._journal)
        if index is not None or parent._log.open_turn or parent._log.store is not self.shared.store:
            await load(parent._log)
        log = parent._log
        cut = await (branching.cut_now(log) if index is None else branching.cut_before_message(log, index))
        setup = parent._setup.child()
        row = branching.new_conversation(
            child_id, self.shared.session_id, setup, now, parent=(parent.id, cut.at)
        )
        if log.store is self.shared.store:
            return self.add(await branching.fork(log, parent._journal, row, cut), setup, fresh=True)
        child, creation = await persisting.fork_copy(log, parent._journal, self.shared.store, row, cut)
        child.store = self.shared.store
        made = self.add(child, setup, fresh=True)
        made._journal.creation = (*self._session_row(), *creation)
        await asyncio.shield(made._journal.put(Put()))
        return made

    async def sub_prompt(
        self,
        parent: Conversation,
        input: Input,
        opened: Callable[[ConversationId], None] | None,
        **overrides: Any,
    ) -> Reply:
        """A tool asks a conversation of its own, in the slot of the turn that it serves."""
        parts = parse_input(input)
        made = make_overrides(overrides, parent._setup)
        whole = made.get("retention", parent._setup.retention).kind == "full"  # a title is content that stays
        child = await self.open_new(parent._setup.child(), _title(parts) if whole else "")
        try:
            if opened is not None:
                opened(child.id)
            return await reply_of(child._runner.start_borrowed(parts, made))
        except asyncio.CancelledError:
            child._runner.cancel_turn("cancelled")
            raise
        finally:
            await asyncio.shield(asyncio.ensure_future(child.close()))

    def add(self, log: Log, setup: Setup, *, fresh: bool = False) -> Conversation:
        setup.gate = self.approvals.gate
        setup.engine = setup.make_engine()
        setup.server_tools = self.session.mcp.attach(log.id, setup)
        conversation = Conversation(self.shared, log, setup, self)
        conversation._known.fresh = fresh
        self.open[log.id] = conversation
        self._announce(conversation.id, "opened")
        return conversation

    def forget(self, conversation: Conversation) -> None:
        """It is closed."""
        if self.open.get(conversation.id) is conversation:
            del self.open[conversation.id]
            self.session.mcp.detach(conversation.id)
            self._announce(conversation.id, "closed")

    def _announce(self, id: ConversationId, kind: str) -> None:
        event = ConversationEvent(
            session_id=self.shared.session_id, conversation_id=id, ts=self.shared.clock.now(), kind=kind
        )
        self.shared.bus.publish(event)

    def _session_row(self) -> tuple[Op, ...]:
        """A conversation can be stored only in a Session that is."""
        return (PutSession(session=self.shared.session_id, root=self.root_id),)

    async def _existing_fork(self, parent: Conversation, id: ConversationId) -> Conversation | None:
        found = self.open.get(id)
        try:
            row = (await self.shared.store.open(id)).conversation if found is None else found._log.row
        except ConversationNotFound:
            return None
        if row.session != self.shared.session_id or row.parent is None or row.parent[0] != parent.id:
            raise IdConflict(f"the id {id!r} names another conversation")
        return await self._open_again(id)

    async def delete(self, conversation: Conversation, timeout: float) -> None:
        bus, journal = self.shared.bus, conversation._journal
        await closed.close(conversation._runner, "cancel", timeout, streams=False)
        self.forget(conversation)
        last: list[AnyEvent] = []
        try:
            if not journal.creation:
                await journal.put(Put(ops=[DeleteConversation(conversation=conversation.id)]))
            ts = self.shared.clock.now()
            last.append(Deleted(session_id=self.shared.session_id, conversation_id=conversation.id, ts=ts))
        finally:
            bus.finish(conversation.id, *last)
        bus.publish_all(last)


def _title(parts: tuple[AnyPart, ...]) -> str:
    """The first line of what it is asked, for lists of conversations."""
    return text_of(parts).strip().partition("\n")[0].strip()[:TITLE]
