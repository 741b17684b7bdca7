"""From batches to what is to be written: every op checked against what is there and what stands before it."""

import os
from collections.abc import Callable
from typing import Any

import msgspec

from ..records.errors import (
    ConversationNotFound,
    IdConflict,
    InternalError,
    ItemNotFound,
    SequenceConflict,
    SessionHeld,
)
from ..records.ids import ConversationId
from ..transcript.path import BranchRow
from . import blobs
from .base import (
    AddBlobs,
    Append,
    Batch,
    ChangeInbox,
    ClientIdRow,
    ConversationRow,
    DeleteConversation,
    DropGrant,
    DropInbox,
    DropRange,
    Fence,
    PutBranch,
    PutClientId,
    PutConversation,
    PutGrant,
    PutInbox,
    PutSession,
    Rewrite,
)
from .jsonl_books import Books, foreign
from .jsonl_draft import Draft, Records, draft_of, stretch
from .jsonl_file import LOST, Log, not_ours
from .jsonl_sidecar import Note, SessionNote, Side, Tables, encode
from .rules import check_batch, require_session, stale


def stands_alone(batch: Batch) -> bool:
    """Whether it replaces or copies whole files, so that what was planned before it has to be written first."""
    for op in batch:
        if isinstance(op, Rewrite | DropRange | DeleteConversation):
            return True
        if isinstance(op, PutBranch) and op.row.parent and op.row.parent[0] != op.row.conversation:
            return True
    return False


class Group:
    """Batches that are written together. One that is refused leaves no trace in it."""

    def __init__(
        self,
        books: Books,
        side: Side,
        has_blob: Callable[[str], bool],
        elsewhere: Callable[[str], str | None],
        counter: int,
    ) -> None:
        self.books = books
        self.elsewhere = elsewhere
        self.side = side
        self.has_blob = has_blob
        self.counter = counter
        self.tables = Tables(side)
        self.drafts: dict[ConversationId, Draft] = {}
        self.bytes: dict[ConversationId, list[bytes]] = {}
        self.side_bytes: list[bytes] = []
        self.spread = False
        """Whether a batch is written to more than one file."""

    def add(self, batch: Batch, fence: Fence | None) -> int:
        """The batch's commit number; raises what is wrong with it."""
        attempt = Attempt(self, fence)
        attempt.check(batch)
        for op in batch:
            _APPLY[type(op)](attempt, op)
        touched = [draft for draft in attempt.drafts.values() if draft.parts or draft.whole or draft.gone]
        number = max([self.counter, *(draft.commit for draft in touched)]) + 1
        self.counter = number
        self.tables.merge(attempt.tables)
        if attempt.tables.notes:
            self.side_bytes.append(encode(number, attempt.tables.notes))
        for draft in touched:
            if draft.parts and not draft.whole:
                self.bytes.setdefault(draft.id, []).append(draft.batch(number))
            self.drafts[draft.id] = draft
        self.spread = self.spread or len(touched) + bool(attempt.tables.notes) > 1
        return number


class Attempt:
    """One batch on its way into a group."""

    def __init__(self, group: Group, fence: Fence | None) -> None:
        self.group = group
        self.fence = fence
        self.tables = Tables(group.tables)
        self.appends = 0
        self.drafts: dict[ConversationId, Draft] = {}

    def check(self, batch: Batch) -> None:
        check_batch(batch, self.fence)
        if self.fence is not None:
            found: SessionNote | None = self.tables.find("sessions", self.fence.session)
            if found is None or found.epoch != self.fence.epoch:
                raise stale(self.fence, 0 if found is None else found.epoch)

    def draft(self, id: ConversationId) -> Draft:
        """The file as this batch finds it, whether or not there is a conversation in it."""
        found = self.drafts.get(id)
        if found is None:
            before = self.group.drafts.get(id)
            found = before.copy() if before is not None else draft_of(self.group.books.scanned(id))
            self.drafts[id] = found
        return found

    def conversation(self, id: ConversationId) -> Draft:
        found = self.draft(id)
        if found.row is None:
            raise ConversationNotFound(f"no conversation {id}", conversation=id)
        require_known(self.fence, found.row.session)
        return found

    def heirs(self, id: ConversationId) -> list[ConversationId]:
        """The conversations that hold records of this one, as this batch leaves them."""
        found = dict.fromkeys(self.group.books.heirs(id))
        found |= dict.fromkeys(self.drafts)
        return [heir for heir in found if any(key[0] == id for key in self.draft(heir).ancestors)]

    def branch(self, id: ConversationId, n: int) -> Draft:
        found = self.conversation(id)
        if n not in found.branches:
            raise no_branch(id, n)
        return found


def conversations_of(at: Attempt, session: str | None) -> list[ConversationId]:
    """The conversations of a session, as this batch leaves them."""
    rows = {peek.row.id: peek.row for peek in at.group.books.peeks()}
    rows |= {draft.id: draft.row for draft in at.drafts.values() if draft.row is not None}
    gone = {draft.id for draft in at.drafts.values() if draft.row is None}
    return [id for id, row in rows.items() if row.session == session and id not in gone]


def no_branch(id: ConversationId, n: int) -> ConversationNotFound:
    return ConversationNotFound(f"no branch {n} of a conversation {id}", conversation=id, branch=n)


def _put_session(at: Attempt, op: PutSession) -> None:
    before: SessionNote = at.tables.find("sessions", op.session) or SessionNote(id=op.session)
    at.tables.note(Note(session=msgspec.structs.replace(before, root=op.root, settings=op.settings)))


def _put_conversation(at: Attempt, op: PutConversation) -> None:
    books, id = at.group.books, op.row.id
    books.folder.accepts(id)
    draft = at.draft(id)
    if draft.row is not None:
        _require_row(at, draft.row)
    elif at.heirs(id):
        raise IdConflict(
            f"the conversation {id} was deleted and a fork still reads its records",
            hint="choose another id, or delete its forks first",
            conversation=id,
        )
    elif foreign(draft.log, books.folder.file(id)):
        raise not_ours(books.folder.file(id), draft.log)
    draft.put_row(op.row)


def _require_row(at: Attempt, row: ConversationRow) -> None:
    """It is of this session; or nobody writes it, in a file that may be given to another."""
    if not at.group.books.folder.adopts:
        require_known(at.fence, row.session)
    elif at.fence is not None and at.fence.session != row.session:
        holder = at.group.elsewhere(row.session)
        if holder is not None:
            raise SessionHeld(row.session, holder)


def require_known(fence: Fence | None, session: str) -> None:
    """As require_session; where damage took the name of the session, any may go on."""
    if session not in ("", LOST):
        require_session(fence, session)


def _put_branch(at: Attempt, op: PutBranch) -> None:
    row = op.row
    draft = at.conversation(row.conversation)
    if row.n in draft.branches:
        raise SequenceConflict(f"branch {row.n} of {row.conversation} is there already")
    if row.parent is not None:
        if row.parent[0] == row.conversation:
            parent = draft.branches.get(row.parent[1])
            if parent is None:
                raise no_branch(*row.parent)
        else:
            parent = _inherit(at, draft, row)
        if row.at > max(parent.last, parent.at):
            raise SequenceConflict(f"a branch at {row.at} of one that ends at {parent.last}")
    draft.put_branch(row)


class _Stock:
    """Where a fork copies from: the parent's file, which holds its whole path, and what this batch adds to it."""

    def __init__(self, at: Attempt, parent: tuple[ConversationId, int]) -> None:
        draft = at.draft(parent[0])
        if draft.row is None:
            heirs = [at.draft(id) for id in at.heirs(parent[0])]
            holding = [heir for heir in heirs if parent in heir.ancestors]
            draft = max(holding, key=lambda heir: heir.ancestors[parent].last, default=draft)
        self.draft = draft
        self.path = at.group.books.folder.file(draft.id)

    def row(self, key: tuple[ConversationId, int]) -> BranchRow | None:
        if key[0] == self.draft.id:
            return self.draft.branches.get(key[1])
        return self.draft.ancestors.get((str(key[0]), key[1]))

    def session(self, conversation: ConversationId) -> str:
        if conversation == self.draft.id and self.draft.row is not None:
            return self.draft.row.session
        return self.draft.sessions.get(conversation, "")

    def records(self, row: BranchRow, until: int) -> tuple[Records, dict[int, frozenset[str]]]:
        key = ("" if row.conversation == self.draft.id else str(row.conversation), row.n)
        log: Log = self.draft.log
        records: Records = []
        if log.batches:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                records = stretch(file, log.track(key), row.at, until)
            finally:
                os.close(file)
        for block in self.draft.pending(key):
            records += [each for each in block.records.items() if row.at < each[0] <= until]
        owned = {**log.blobs.get(key, {}), **self.draft.blobs.get(key, {})}
        return records, {seq: refs for seq, refs in owned.items() if row.at < seq <= until}


def _inherit(at: Attempt, draft: Draft, child: BranchRow) -> BranchRow:
    """Copies the path that a fork begins with into its file; the parent's row."""
    if child.parent is None:
        raise InternalError("a branch without a parent inherits nothing")
    stock = _Stock(at, child.parent)
    parent = stock.row(child.parent)
    if parent is None:
        raise no_branch(*child.parent)
    if not draft.new:
        draft.whole = True
    key: tuple[ConversationId, int] | None = child.parent
    until = child.at
    while key is not None and (row := stock.row(key)) is not None:
        until = min(until, max(row.last, row.at))
        records, owned = stock.records(row, until)
        end = max(until, row.at)
        cut = msgspec.structs.replace(row, last=end)
        draft.inherit(stock.session(row.conversation), cut, records, owned)
        until = min(until, row.at)
        key = row.parent
    return parent


def _append(at: Attempt, op: Append) -> None:
    draft = at.branch(op.conversation, op.branch)
    if op.first != draft.last + 1:
        raise SequenceConflict(
            f"an append at {op.first} to {op.conversation}, whose next seq is {draft.last + 1}",
            conversation=op.conversation,
            next=draft.last + 1,
        )
    draft.append(op, at.appends)
    at.appends += 1


def _put_inbox(at: Attempt, op: PutInbox) -> None:
    row, tables = op.row, at.tables
    _need(at, row.conversation)
    if tables.find("inbox", (row.conversation, row.item)) is not None:
        raise IdConflict(f"item {row.item} stands in the queue already", item=row.item)
    if row.client_id is not None:
        used: ClientIdRow | None = tables.find("clients", (row.conversation, row.client_id))
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
        tables.note(Note(client=claimed))
    n = (tables.find("arrived", row.conversation) or 0) + 1
    tables.note(Note(inbox=msgspec.structs.replace(row, n=n)))


def _need(at: Attempt, id: ConversationId) -> None:
    """The conversation is there; its file is not written for what stands beside it."""
    at.conversation(id)


def _change_inbox(at: Attempt, op: ChangeInbox) -> None:
    _need(at, op.conversation)
    row = at.tables.find("inbox", (op.conversation, op.item))
    if row is None:
        raise ItemNotFound(f"no item {op.item} waits in {op.conversation}", item=op.item)
    changed: dict[str, Any] = {"body": op.body, "rank": op.rank, "state": op.state}
    given = {name: value for name, value in changed.items() if value is not None}
    at.tables.note(Note(inbox=msgspec.structs.replace(row, **given)))


def _drop_inbox(at: Attempt, op: DropInbox) -> None:
    if at.tables.find("inbox", (op.conversation, op.item)) is not None:
        _need(at, op.conversation)
        at.tables.note(Note(drop=op))


def _put_client_id(at: Attempt, op: PutClientId) -> None:
    row = op.row
    _need(at, row.conversation)
    found: ClientIdRow | None = at.tables.find("clients", (row.conversation, row.client_id))
    if found is not None and found.digest != row.digest:
        raise IdConflict(
            f"the client id {row.client_id} was used with another body",
            hint="give each request a client id of its own",
            client_id=row.client_id,
            item=found.item,
            turn=found.turn,
        )
    at.tables.note(Note(client=row))


def _put_grant(at: Attempt, op: PutGrant) -> None:
    _own_grant(at, op.row.id)
    at.tables.note(Note(grant=op.row))


def _drop_grant(at: Attempt, op: DropGrant) -> None:
    if _own_grant(at, op.id):
        at.tables.note(Note(ungrant=op.id))


def _own_grant(at: Attempt, id: str) -> bool:
    found = at.tables.find("grants", id)
    if found is not None and found.session is not None:
        require_session(at.fence, found.session)
    return found is not None


def _holders(at: Attempt, id: ConversationId, n: int) -> list[tuple[Draft, str]]:
    """The files that hold a branch: its own, and those of forks. It may be deleted and stand in these alone."""
    found: list[tuple[Draft, str]] = []
    own = at.draft(id)
    if own.row is not None:
        require_session(at.fence, own.row.session)
        if n in own.branches:
            found.append((own, ""))
    for heir in at.heirs(id):
        draft = at.draft(heir)
        if (id, n) in draft.ancestors:
            if own.row is None:
                require_session(at.fence, draft.sessions.get(id, ""))
            found.append((draft, id))
    if not found:
        raise no_branch(id, n)
    return found


def _rewrite(at: Attempt, op: Rewrite) -> None:
    for draft, of in _holders(at, op.conversation, op.branch):
        draft.rewrite((of, op.branch), [(row.seq, row.data) for row in op.rows])


def _drop_range(at: Attempt, op: DropRange) -> None:
    for draft, of in _holders(at, op.conversation, op.branch):
        key = (of, op.branch)
        row = draft.ancestors[key] if of else draft.branches[op.branch]
        if op.first <= row.last:
            draft.drop_range(key, op.first, op.through, op.tombstone)


def _add_blobs(at: Attempt, op: AddBlobs) -> None:
    for ref in op.refs:
        if not at.group.has_blob(ref):
            raise blobs.missing(ref)
    own = at.draft(op.conversation)
    fresh = any(op.seq in block.records for block in own.pending(("", op.branch)))
    if fresh:  # no fork can hold it yet
        at.branch(op.conversation, op.branch).add_blobs(("", op.branch), op.seq, op.refs)
        return
    for draft, of in _holders(at, op.conversation, op.branch):
        if not of or draft.ancestors[of, op.branch].at < op.seq <= draft.ancestors[of, op.branch].last:
            draft.add_blobs((of, op.branch), op.seq, op.refs)


def _delete(at: Attempt, op: DeleteConversation) -> None:
    draft = at.conversation(op.conversation)
    session = draft.row.session if draft.row is not None else None
    empty = draft_of(Log(op.conversation))
    empty.gone, empty.commit = draft.log, draft.commit
    at.drafts[op.conversation] = empty
    others = conversations_of(at, session)
    at.tables.note(Note(gone=op.conversation))
    before: SessionNote | None = at.tables.find("sessions", session)
    if not others and before is not None:
        at.tables.note(Note(session=msgspec.structs.replace(before, root=None, settings={})))
    for grant in at.tables.all_grants().values():
        if grant.conversation == op.conversation or (not others and grant.session == session):
            at.tables.note(Note(ungrant=grant.id))


_APPLY: dict[type, Callable[[Attempt, Any], None]] = {
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
