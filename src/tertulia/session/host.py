"""A Host: a store's conversations by id, each in a Session of its own."""

import asyncio
from types import TracebackType
from typing import Any, Self, Unpack

from ..records.errors import ConversationClosed, ConversationNotFound, SessionNotFound
from ..records.ids import ConversationId, SessionId, check_id
from ..store.base import Listed, Store
from ..store.open import open_store
from .conversation import Conversation
from .journal import Put
from .options import ConversationOptions
from .session import Session, SessionOptions, find


class Host:
    """Create, load, list and delete. Its options are the defaults of the Sessions that it opens."""

    def __init__(self, store: Store, owns: bool, options: dict[str, Any]) -> None:
        self._store = store
        self._owns = owns
        self._options = options
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, asyncio.Task[Session]] = {}

    @classmethod
    async def open(cls, **options: Unpack[SessionOptions]) -> "Host":
        """The options are those of Session.open, but for `id`."""
        given: dict[str, Any] = dict(options)
        target = given.pop("store", None)
        store = await open_store(target)
        return cls(store, store is not target, given)

    async def create(self, **options: Unpack[SessionOptions]) -> Conversation:
        """A new conversation in a new Session; stored when this returns."""
        session = await Session.open(**_merged(self._options, options, store=self._store))
        self._sessions[session.id] = session
        await asyncio.shield(session.root._journal.put(Put()))
        return session.root

    async def load(self, id: str, **options: Unpack[ConversationOptions]) -> Conversation:
        """A stored conversation, its Session open. Loading one twice gives the same object, whatever the options."""
        check_id(id)
        for session in self._sessions.values():
            if any(each.id == id for each in session.conversations):
                return await session._members.reopened(ConversationId(id))
        try:
            row = await find(self._store, id)
        except SessionNotFound as error:
            raise ConversationNotFound(f"there is no conversation {id}") from error
        session = await self._session(row.id, options)
        return await session._members.reopened(row.root if id == row.id else ConversationId(id))

    async def _session(self, id: SessionId, options: ConversationOptions) -> Session:
        """The Session of this id, opened when it is not: of two at once, one opens it for both."""
        known = self._sessions.get(id)
        if known is not None and known.closed:
            await known.aclose()
        elif known is not None:
            return known
        if id not in self._opening:
            given = _merged(self._options, options, store=self._store, id=id)
            opening = self._opening[id] = asyncio.ensure_future(_opened(given))
            opening.add_done_callback(
                lambda done: (self._opening.pop(id), done.cancelled() or done.exception())
            )
        self._sessions[id] = await asyncio.shield(self._opening[id])
        return self._sessions[id]

    async def list(
        self,
        cursor: str | None = None,
        search: str | None = None,
        archived: bool | None = False,
        limit: int = 50,
    ) -> Listed:
        """A page of the stored conversations, last changed first."""
        return await self._store.list(cursor=cursor, search=search, archived=archived, limit=limit)

    async def delete(self, id: str) -> None:
        """Delete a conversation and what is stored of it, except what a living fork reaches."""
        conversation = await self.load(id)
        session = self._sessions.get(conversation.session.id)
        if session is None:
            raise ConversationClosed(f"conversation {id} was closed meanwhile", hint="delete it again")
        await session.delete_conversation(conversation.id)
        if not session.conversations:
            self._sessions.pop(session.id, None)
            await session.aclose()

    async def close(self, id: str) -> None:
        """Close the Session that a conversation is in; what is stored stays."""
        for session in list(self._sessions.values()):
            if any(each.id == id for each in session.conversations):
                del self._sessions[session.id]
                await session.aclose()

    async def aclose(self) -> None:
        """Close every Session that is open, letting what runs finish, and the store when this Host opened it."""
        sessions, self._sessions = list(self._sessions.values()), {}
        if sessions:
            await asyncio.wait([asyncio.ensure_future(session.aclose()) for session in sessions])
        if self._owns:
            await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _opened(options: SessionOptions) -> Session:
    return await Session.open(**options)


def _merged(*options: Any, **more: Any) -> SessionOptions:
    merged: Any = {name: value for each in (*options, more) for name, value in each.items()}
    found: SessionOptions = merged
    return found
