"""What the ops of one transaction share: the session's and conversations' rows, remembered between transactions.

They are remembered only as long as no other connection wrote to the file, which SQLite tells (`data_version`).
"""

from collections.abc import Sequence
from typing import Any

import apsw

from ..records.errors import ConversationNotFound, StoreCorrupt
from ..records.ids import ConversationId, SessionId
from .base import Fence
from .rules import require_session, stale

MAX_REMEMBERED = 20_000


class Session:
    __slots__ = ("epoch", "id", "key")

    def __init__(self, key: int, id: SessionId, epoch: int) -> None:
        self.key = key
        self.id = id
        self.epoch = epoch


class Conversation:
    """`branches`: the keys of those that were asked for, by number. `updated`: what lists are ordered by."""

    __slots__ = ("branches", "deleted", "id", "key", "last", "session", "session_key", "updated")

    def __init__(self, row: tuple[int, ConversationId, SessionId, int, int, int, int]) -> None:
        self.key, self.id, self.session, self.session_key, self.deleted, self.updated, self.last = row
        self.branches: dict[int, int] = {}


class Tx:
    def __init__(self, connection: apsw.Connection) -> None:
        self.execute = connection.execute
        self.connection = connection
        self.erased = False  # a body went, and has to be gone from the file before that is reported
        self.wiped = False  # one went whose traces may stay until the writer is idle
        self._version: object = None
        self._commits = -1
        self._unsaved = False
        self._sessions: dict[SessionId, Session] = {}
        self._conversations: dict[ConversationId, Conversation] = {}

    def rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        return self.execute(query, values).fetchall()

    def begin(self) -> None:
        version = self.execute("PRAGMA data_version").get
        if version != self._version or len(self._conversations) > MAX_REMEMBERED:
            self.forget()
        if version != self._version:
            self._commits = -1
            self._unsaved = False
            self._version = version

    def end(self) -> None:
        if self._unsaved or (self.erased and self._commits > 0):  # an erasure may take the row that saved it
            self.execute("UPDATE counter SET commits = ?", (self._commits,))
            self._unsaved = False

    def forget(self) -> None:
        """After anything was taken back, what is remembered may be wrong. Numbers once given are never given again."""
        self._sessions.clear()
        self._conversations.clear()

    def forget_session(self, id: SessionId) -> None:
        self._sessions.pop(id, None)

    def number(self, appends: int) -> int:
        """The commit number of a batch: that of its last row in `change`, which saves it; else `end` does."""
        if self._commits < 0:
            found = self.execute(
                "SELECT max(commits, ifnull((SELECT max(n) FROM change), 0)) FROM counter"
            ).get
            if not isinstance(found, int):
                raise StoreCorrupt("the counter of commits is gone", hint="run `tertulia store repair`")
            self._commits = found
        self._unsaved = self._unsaved or appends == 0
        self._commits += appends or 1
        return self._commits

    def session(self, id: SessionId) -> Session | None:
        found = self._sessions.get(id)
        if found is None:
            row = self.execute("SELECT key, id, epoch FROM session WHERE id = ?", (id,)).fetchone()
            if row is None:
                return None
            found = self._sessions[id] = Session(*row)
        return found

    def check(self, fence: Fence) -> Session:
        session = self.session(fence.session)
        if session is None or session.epoch != fence.epoch:
            raise stale(fence, 0 if session is None else session.epoch)
        return session

    def find(self, id: ConversationId) -> Conversation | None:
        """Also a deleted one that is kept for its forks."""
        found = self._conversations.get(id)
        if found is None:
            row = self.execute(
                "SELECT c.key, c.id, s.id, s.key, c.deleted, c.updated, ifnull(max(b.at, b.last), 0)"
                " FROM conversation c JOIN session s ON s.key = c.session"
                " LEFT JOIN branch b ON b.conversation = c.key WHERE c.id = ?"
                " ORDER BY max(b.at, b.last) DESC LIMIT 1",
                (id,),
            ).fetchone()
            if row is None:
                return None
            found = self._conversations[id] = Conversation(row)
        return found

    def conversation(self, id: ConversationId, fence: Fence | None) -> Conversation:
        found = self.find(id)
        if found is None or found.deleted:
            raise ConversationNotFound(f"no conversation {id}", conversation=id)
        require_session(fence, found.session)
        return found

    def branch(self, id: ConversationId, n: int, fence: Fence | None) -> int:
        """The key of a branch, also of a deleted conversation as long as a fork reaches it."""
        found = self.find(id)
        key = None if found is None else self.branch_key(found, n)
        if found is None or key is None:
            raise ConversationNotFound(f"no branch {n} of a conversation {id}", conversation=id, branch=n)
        require_session(fence, found.session)
        return key

    def branch_key(self, conversation: Conversation, n: int) -> int | None:
        key = conversation.branches.get(n)
        if key is None:
            row = self.execute(
                "SELECT key FROM branch WHERE conversation = ? AND n = ?", (conversation.key, n)
            ).fetchone()
            if row is None:
                return None
            key = conversation.branches[n] = int(row[0])
        return key
