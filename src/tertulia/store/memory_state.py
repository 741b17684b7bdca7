"""What a MemoryStore holds, and what each op does to it.

Every change appends how to take it back, so that a batch which fails half-way leaves nothing behind.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from ..records.errors import ConversationNotFound, IdConflict, ItemNotFound, SequenceConflict
from ..records.ids import ConversationId, ItemId, SessionId
from ..transcript.path import BranchRow, Segment
from . import blobs
from .base import (
    AddBlobs,
    Append,
    Change,
    ChangeInbox,
    ClientIdRow,
    ConversationRow,
    DeleteConversation,
    DropGrant,
    DropInbox,
    DropRange,
    Fence,
    GrantRow,
    InboxRow,
    Op,
    PutBranch,
    PutClientId,
    PutConversation,
    PutGrant,
    PutInbox,
    PutSession,
    Rewrite,
    Row,
    SessionRow,
)
from .rules import require_session

BranchKey = tuple[ConversationId, int]
K = TypeVar("K")
V = TypeVar("V")


class Blob(msgspec.Struct, eq=False):
    """`waiting` counts the puts that no AddBlobs answered yet; they keep it when its owners go."""

    data: bytes
    put: float
    owners: int = 0
    waiting: int = 0


class Branch(msgspec.Struct, eq=False):
    row: BranchRow
    rows: list[Row] = []
    children: dict[BranchKey, None] = {}
    blobs: dict[int, frozenset[str]] = {}  # by the seq of the record that owns them


class Conversation(msgspec.Struct, eq=False):
    """`deleted`: only what living forks reach is still here, and nothing lists it."""

    row: ConversationRow
    last: int = 0
    arrived: int = 0
    deleted: bool = False
    branches: dict[int, Branch] = {}
    inbox: dict[ItemId, InboxRow] = {}
    client_ids: dict[str, ClientIdRow] = {}


class Session(msgspec.Struct, eq=False):
    """`row` is None while nobody put it: a claim may come first, and outlives the rows."""

    epoch: int = 0
    held: bool = False
    row: SessionRow | None = None
    conversations: dict[ConversationId, None] = {}
    changes: list[Change] = []


class State:
    def __init__(self) -> None:
        self.commits = 0
        self.sessions: dict[SessionId, Session] = {}
        self.conversations: dict[ConversationId, Conversation] = {}
        self.grants: dict[str, GrantRow] = {}
        self.blobs: dict[str, Blob] = {}

    def living(self, id: ConversationId) -> Conversation:
        found = self.conversations.get(id)
        if found is None or found.deleted:
            raise ConversationNotFound(f"no conversation {id}", conversation=id)
        return found

    def branch(self, id: ConversationId, n: int) -> Branch:
        """Also of a deleted conversation, as long as a fork reaches it."""
        found = self.conversations.get(id)
        if found is None or n not in found.branches:
            raise ConversationNotFound(f"no branch {n} of a conversation {id}", conversation=id, branch=n)
        return found.branches[n]


class Transaction:
    """One batch being applied to a state."""

    def __init__(self, state: State, fence: Fence | None) -> None:
        self.state = state
        self.fence = fence
        self.commit = state.commits + 1
        self._undo: list[Callable[[], object]] = []
        self._orphans: set[str] = set()

    def apply(self, batch: Iterable[Op]) -> None:
        try:
            for op in batch:
                _APPLY[type(op)](self, op)
            for ref in self._orphans:
                blob = self.state.blobs[ref]
                if blob.owners == 0 and blob.waiting == 0:
                    self.drop(self.state.blobs, ref)
            self.set(self.state, "commits", self.commit)
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            raise

    # ── changes that can be taken back ──

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            old = table[key]
            self._undo.append(lambda: table.__setitem__(key, old))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        old = table.pop(key)
        self._undo.append(lambda: table.__setitem__(key, old))

    def set(self, thing: object, name: str, value: object) -> None:
        old = getattr(thing, name)
        self._undo.append(lambda: setattr(thing, name, old))
        setattr(thing, name, value)

    def splice(self, rows: list[Row], start: int, stop: int, new: list[Row]) -> None:
        old = rows[start:stop]
        self._undo.append(lambda: rows.__setitem__(slice(start, start + len(new)), old))
        rows[start:stop] = new

    def append(self, things: list[V], thing: V) -> None:
        self._undo.append(things.pop)
        things.append(thing)

    # ── what several ops need ──

    def conversation(self, id: ConversationId) -> Conversation:
        found = self.state.living(id)
        require_session(self.fence, found.row.session)
        return found

    def branch(self, id: ConversationId, n: int) -> Branch:
        found = self.state.branch(id, n)
        require_session(self.fence, self.state.conversations[id].row.session)
        return found

    def own(self, branch: Branch, seq: int, refs: frozenset[str]) -> None:
        """From now on the record `seq` owns these blobs and no others."""
        before = branch.blobs.get(seq, frozenset())
        for ref in refs - before:
            blob = self.state.blobs.get(ref)
            if blob is None:
                raise blobs.missing(ref)
            self.set(blob, "owners", blob.owners + 1)
        for ref in before - refs:
            blob = self.state.blobs[ref]
            self.set(blob, "owners", blob.owners - 1)
            self._orphans.add(ref)
        if refs:
            self.put(branch.blobs, seq, refs)
        elif before:
            self.drop(branch.blobs, seq)


def _put_session(tx: Transaction, op: PutSession) -> None:
    session = tx.state.sessions[op.session]  # there since the claim
    tx.set(session, "row", SessionRow(id=op.session, root=op.root, settings=op.settings))


def _put_conversation(tx: Transaction, op: PutConversation) -> None:
    state, row = tx.state, op.row
    found = state.conversations.get(row.id)
    if found is None:
        tx.put(state.conversations, row.id, Conversation(row=row))
        tx.put(state.sessions[row.session].conversations, row.id, None)
        return
    require_session(tx.fence, found.row.session)
    if found.deleted:
        raise IdConflict(
            f"the conversation {row.id} was deleted and a fork still reads its records",
            hint="choose another id, or delete its forks first",
            conversation=row.id,
        )
    tx.set(found, "row", row)


def _put_branch(tx: Transaction, op: PutBranch) -> None:
    row = op.row
    conversation = tx.conversation(row.conversation)
    if row.n in conversation.branches:
        raise SequenceConflict(f"branch {row.n} of {row.conversation} is there already")
    if row.parent is not None:
        parent = tx.state.branch(*row.parent)
        if row.at > max(parent.row.last, parent.row.at):
            raise SequenceConflict(f"a branch at {row.at} of one that ends at {parent.row.last}")
        tx.put(parent.children, (row.conversation, row.n), None)
    tx.put(conversation.branches, row.n, Branch(row=row))
    tx.set(conversation, "last", max(conversation.last, row.at))


def _append(tx: Transaction, op: Append) -> None:
    conversation = tx.conversation(op.conversation)
    branch = tx.branch(op.conversation, op.branch)
    if op.first != conversation.last + 1:
        raise SequenceConflict(
            f"an append at {op.first} to {op.conversation}, whose next seq is {conversation.last + 1}",
            conversation=op.conversation,
            next=conversation.last + 1,
        )
    tx.splice(branch.rows, len(branch.rows), len(branch.rows), list(op.rows))
    last = max(branch.row.last, op.last) if op.last >= op.first else branch.row.last
    tx.set(branch, "row", msgspec.structs.replace(branch.row, last=last, totals=op.totals))
    tx.set(conversation, "last", op.last)
    row = conversation.row
    tx.set(conversation, "row", msgspec.structs.replace(row, updated=max(row.updated, op.ts)))
    if op.last >= op.first:
        changes = tx.state.sessions[row.session].changes
        segment = Segment(op.conversation, op.branch, op.first - 1, op.last)
        tx.append(changes, Change(tx.commit, segment))


def _put_inbox(tx: Transaction, op: PutInbox) -> None:
    row = op.row
    conversation = tx.conversation(row.conversation)
    if row.item in conversation.inbox:
        raise IdConflict(f"item {row.item} stands in the queue already", item=row.item)
    if row.client_id is not None:
        used = conversation.client_ids.get(row.client_id)
        if used is not None:
            raise IdConflict(
                f"the client id {row.client_id} was used before",
                hint="look it up with client_id(): the same digest means the same request",
                client_id=row.client_id,
                item=used.item,
                turn=used.turn,
            )
        claimed = ClientIdRow(
            conversation=row.conversation, client_id=row.client_id, digest=op.digest or b"", item=row.item
        )
        tx.put(conversation.client_ids, row.client_id, claimed)
    tx.set(conversation, "arrived", conversation.arrived + 1)
    tx.put(conversation.inbox, row.item, msgspec.structs.replace(row, n=conversation.arrived))


def _change_inbox(tx: Transaction, op: ChangeInbox) -> None:
    inbox = tx.conversation(op.conversation).inbox
    if op.item not in inbox:
        raise ItemNotFound(f"no item {op.item} waits in {op.conversation}", item=op.item)
    changed: dict[str, Any] = {"body": op.body, "rank": op.rank, "state": op.state}
    given = {name: value for name, value in changed.items() if value is not None}
    tx.put(inbox, op.item, msgspec.structs.replace(inbox[op.item], **given))


def _drop_inbox(tx: Transaction, op: DropInbox) -> None:
    found = tx.state.conversations.get(op.conversation)
    if found is None or op.item not in found.inbox:
        return
    require_session(tx.fence, found.row.session)
    tx.drop(found.inbox, op.item)


def _put_client_id(tx: Transaction, op: PutClientId) -> None:
    row = op.row
    used = tx.conversation(row.conversation).client_ids
    found = used.get(row.client_id)
    if found is not None and found.digest != row.digest:
        raise IdConflict(
            f"the client id {row.client_id} was used with another body",
            hint="give each request a client id of its own",
            client_id=row.client_id,
            item=found.item,
            turn=found.turn,
        )
    tx.put(used, row.client_id, row)


def _put_grant(tx: Transaction, op: PutGrant) -> None:
    _own_grant(tx, op.row.id)
    tx.put(tx.state.grants, op.row.id, op.row)


def _drop_grant(tx: Transaction, op: DropGrant) -> None:
    if _own_grant(tx, op.id):
        tx.drop(tx.state.grants, op.id)


def _own_grant(tx: Transaction, id: str) -> bool:
    found = tx.state.grants.get(id)
    if found is not None and found.session is not None:
        require_session(tx.fence, found.session)
    return found is not None


def _rewrite(tx: Transaction, op: Rewrite) -> None:
    branch = tx.branch(op.conversation, op.branch)
    for row in op.rows:
        at = bisect_left(branch.rows, row.seq, key=_seq)
        if at < len(branch.rows) and branch.rows[at].seq == row.seq:
            tx.splice(branch.rows, at, at + 1, [row])
            tx.own(branch, row.seq, frozenset())


def _drop_range(tx: Transaction, op: DropRange) -> None:
    branch = tx.branch(op.conversation, op.branch)
    start = bisect_left(branch.rows, op.first, key=_seq)
    stop = bisect_right(branch.rows, op.through, key=_seq)
    tx.splice(branch.rows, start, stop, [Row(op.first, op.tombstone)])
    for seq in [seq for seq in branch.blobs if op.first <= seq <= op.through]:
        tx.own(branch, seq, frozenset())


def _add_blobs(tx: Transaction, op: AddBlobs) -> None:
    branch = tx.branch(op.conversation, op.branch)
    tx.own(branch, op.seq, branch.blobs.get(op.seq, frozenset()) | frozenset(op.refs))
    for ref in op.refs:
        blob = tx.state.blobs[ref]
        tx.set(blob, "waiting", max(0, blob.waiting - 1))


def _delete(tx: Transaction, op: DeleteConversation) -> None:
    state = tx.state
    conversation = tx.conversation(op.conversation)
    session = state.sessions[conversation.row.session]
    tx.set(conversation, "deleted", True)
    tx.set(conversation, "inbox", {})
    tx.set(conversation, "client_ids", {})
    tx.drop(session.conversations, op.conversation)
    left = [change for change in session.changes if change.segment.conversation != op.conversation]
    tx.set(session, "changes", left)
    if not session.conversations:
        tx.set(session, "row", None)
    for grant in list(state.grants.values()):
        of_session = grant.session == conversation.row.session and not session.conversations
        if of_session or grant.conversation == op.conversation:
            tx.drop(state.grants, grant.id)
    _prune(tx, [(op.conversation, n) for n in conversation.branches])


def _prune(tx: Transaction, work: list[BranchKey]) -> None:
    """Drops of deleted conversations what no living fork reaches, and then looks at their parents."""
    while work:
        id, n = work.pop()
        conversation = tx.state.conversations.get(id)
        if conversation is None or not conversation.deleted or n not in conversation.branches:
            continue
        branch = conversation.branches[n]
        reach = _reach(tx.state, branch)
        kept = bisect_right(branch.rows, reach, key=_seq)
        tx.splice(branch.rows, kept, len(branch.rows), [])
        for seq in [seq for seq in branch.blobs if seq > reach]:
            tx.own(branch, seq, frozenset())
        if reach == 0:
            tx.drop(conversation.branches, n)
        if not conversation.branches:
            tx.drop(tx.state.conversations, id)
        if branch.row.parent is not None:
            work.append(branch.row.parent)
            if reach == 0:
                _unlink(tx, branch.row.parent, (id, n))


def _unlink(tx: Transaction, parent: BranchKey, child: BranchKey) -> None:
    above = tx.state.conversations.get(parent[0])
    if above is not None and parent[1] in above.branches:
        tx.drop(above.branches[parent[1]].children, child)


def _reach(state: State, branch: Branch) -> int:
    """The last seq up to which living conversations see a branch of a deleted one; 0 when none does."""
    reach = 0
    below = [(child, 2**63) for child in branch.children]
    while below:
        (id, n), cap = below.pop()
        conversation = state.conversations[id]
        child = conversation.branches[n]
        cap = min(cap, child.row.at)
        if conversation.deleted:
            below.extend((grandchild, cap) for grandchild in child.children)
        else:
            reach = max(reach, cap)
    return reach


def _seq(row: Row) -> int:
    return row.seq


_APPLY: dict[type, Callable[[Transaction, Any], None]] = {
    PutSession: _put_session,
    PutConversation: _put_conversation,
    PutBranch: _put_branch,
    Append: _append,
    PutInbox: _put_inbox,
    ChangeInbox: _change_inbox,
    DropInbox: _drop_inbox,
    PutClientId: _put_client_id,
    PutGrant: _put_grant,
    DropGrant: _drop_grant,
    Rewrite: _rewrite,
    DropRange: _drop_range,
    AddBlobs: _add_blobs,
    DeleteConversation: _delete,
}
