"""What each op of a batch does to the tables: one function each."""

from collections.abc import Callable
from typing import Any

import msgspec

from ..records.errors import IdConflict, InvalidInput, ItemNotFound, SequenceConflict
from . import sqlite_erase as erase
from .base import (
    AddBlobs,
    Append,
    Batch,
    ChangeInbox,
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
from .rules import check_batch, require_session
from .sqlite_schema import MAX_SEQ, SEQ_BITS, SLACK
from .sqlite_tx import Tx

_encode = msgspec.json.Encoder().encode


class _Batch:
    """One batch under way: the numbers that its appends take, and the blobs that may have lost their last owner."""

    __slots__ = ("commit", "execute", "fence", "left", "orphans", "tx")

    def __init__(self, tx: Tx, fence: Fence | None, appends: int) -> None:
        self.tx = tx
        self.execute = tx.execute
        self.fence = fence
        self.commit = tx.number(appends)
        self.left = appends
        self.orphans: set[int] = set()


def apply(tx: Tx, batch: Batch, fence: Fence | None) -> int:
    """The commit number. Whatever is raised, the caller takes back all of it."""
    check_batch(batch, fence)
    if fence is not None:
        tx.check(fence)
    appends = 0
    for op in batch:
        if type(op) is Append and op.last >= op.first:
            appends += 1
    under_way = _Batch(tx, fence, appends)
    for op in batch:
        _APPLY[type(op)](under_way, op)
    if under_way.orphans:
        erase.drop_orphans(tx, under_way.orphans)
    return under_way.commit


def _append(batch: _Batch, op: Append) -> None:
    tx, execute = batch.tx, batch.execute
    conversation = tx.conversation(op.conversation, batch.fence)
    branch = conversation.branches.get(op.branch)
    if branch is None:
        branch = tx.branch(op.conversation, op.branch, batch.fence)
    if op.first != conversation.last + 1:
        raise SequenceConflict(
            f"an append at {op.first} to {op.conversation}, whose next seq is {conversation.last + 1}",
            conversation=op.conversation,
            next=conversation.last + 1,
        )
    if op.last > MAX_SEQ:
        raise InvalidInput(f"{op.conversation} is full at {MAX_SEQ} records", hint="fork it")
    base = branch << SEQ_BITS
    for row in op.rows:
        execute("INSERT INTO record VALUES (?, ?)", (base | row.seq, row.data))
    execute(
        "UPDATE branch SET last = max(last, ?), ts = max(ts, ?), totals = ? WHERE key = ?",
        (op.last if op.last >= op.first else 0, op.ts, _encode(op.totals), branch),
    )
    if op.ts > conversation.updated + SLACK:
        conversation.updated = op.ts
        execute("UPDATE conversation SET updated = ? WHERE key = ?", (op.ts, conversation.key))
    if op.last >= op.first:
        conversation.last = op.last
        batch.left -= 1
        execute(
            "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?)",
            (batch.commit - batch.left, conversation.session_key, branch, op.first - 1, op.last, batch.left),
        )


def _put_session(batch: _Batch, op: PutSession) -> None:
    batch.execute(
        "UPDATE session SET root = ?, settings = ? WHERE id = ?", (op.root, _encode(op.settings), op.session)
    )


def _put_conversation(batch: _Batch, op: PutConversation) -> None:
    row = op.row
    found = batch.tx.find(row.id)
    if found is None:
        session = batch.tx.session(row.session)
        batch.execute(
            "INSERT INTO conversation (id, session, active, title, archived, parent, parent_seq, created, updated,"
            " settings) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (row.id, session.key if session else None, *_columns(op)),
        )
        return
    require_session(batch.fence, found.session)
    if found.deleted:
        raise IdConflict(
            f"the conversation {row.id} was deleted and a fork still reads its records",
            hint="choose another id, or delete its forks first",
            conversation=row.id,
        )
    batch.execute(
        "UPDATE conversation SET active = ?, title = ?, archived = ?, parent = ?, parent_seq = ?, created = ?,"
        " updated = ?, settings = ? WHERE key = ?",
        (*_columns(op), found.key),
    )
    batch.execute("UPDATE branch SET ts = 0 WHERE conversation = ? AND ts > ?", (found.key, row.updated))
    found.updated = row.updated


def _columns(op: PutConversation) -> tuple[Any, ...]:
    row = op.row
    parent, seq = row.parent or (None, None)
    settings = _encode(row.settings)
    return (row.active, row.title, row.archived, parent, seq, row.created, row.updated, settings)


def _put_branch(batch: _Batch, op: PutBranch) -> None:
    tx, row = batch.tx, op.row
    conversation = tx.conversation(row.conversation, batch.fence)
    if tx.branch_key(conversation, row.n) is not None:
        raise SequenceConflict(f"branch {row.n} of {row.conversation} is there already")
    above = None
    if row.parent is not None:
        above = tx.branch(*row.parent, None)
        end = tx.execute("SELECT max(last, at) FROM branch WHERE key = ?", (above,)).get
        if not isinstance(end, int) or row.at > end:
            raise SequenceConflict(f"a branch at {row.at} of one that ends at {end}")
    parent, parent_n = row.parent or (None, None)
    base, totals = _encode(row.base), _encode(row.totals)
    batch.execute(
        "INSERT INTO branch (conversation, n, parent, parent_n, above, at, last, ts, base, totals)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
        (conversation.key, row.n, parent, parent_n, above, row.at, row.last, base, totals),
    )
    conversation.last = max(conversation.last, row.at, row.last)


# ── queue, client ids, grants ─────────────────────────────────────────────────


def _put_inbox(batch: _Batch, op: PutInbox) -> None:
    row, execute = op.row, batch.execute
    key = batch.tx.conversation(row.conversation, batch.fence).key
    if execute("SELECT 1 FROM inbox WHERE conversation = ? AND item = ?", (key, row.item)).fetchone():
        raise IdConflict(f"item {row.item} stands in the queue already", item=row.item)
    if row.client_id is not None:
        used = _client(batch, key, row.client_id)
        if used is not None:
            raise IdConflict(
                f"the client id {row.client_id} was used before",
                hint="look it up with client_id(): the same digest means the same request",
                client_id=row.client_id,
                item=used[1],
                turn=used[2],
            )
        execute(
            "INSERT INTO client VALUES (NULL, ?, ?, ?, ?, NULL, ?)",
            (key, row.client_id, op.digest or b"", row.item, b""),
        )
    arrived = execute(
        "UPDATE conversation SET arrived = arrived + 1 WHERE key = ? RETURNING arrived", (key,)
    ).get
    if not isinstance(arrived, int):
        raise ItemNotFound(f"item {row.item} found no place")
    place = (key << SEQ_BITS | arrived, key, row.item, row.source, row.body, row.rank, row.state)
    execute("INSERT INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*place, row.client_id, row.ts))


def _client(batch: _Batch, conversation: int, client_id: str) -> Any:
    return batch.execute(
        "SELECT digest, item, turn FROM client WHERE conversation = ? AND client_id = ?",
        (conversation, client_id),
    ).fetchone()


def _change_inbox(batch: _Batch, op: ChangeInbox) -> None:
    key = batch.tx.conversation(op.conversation, batch.fence).key
    changed = batch.execute(
        "UPDATE inbox SET body = ifnull(?, body), rank = ifnull(?, rank), state = ifnull(?, state)"
        " WHERE conversation = ? AND item = ? RETURNING 1",
        (op.body, op.rank, op.state, key, op.item),
    ).fetchone()
    if changed is None:
        raise ItemNotFound(f"no item {op.item} waits in {op.conversation}", item=op.item)
    batch.tx.wiped = batch.tx.wiped or op.body is not None


def _drop_inbox(batch: _Batch, op: DropInbox) -> None:
    found = batch.tx.find(op.conversation)
    if found is None:
        return
    where = (found.key, op.item)
    if batch.execute("SELECT 1 FROM inbox WHERE conversation = ? AND item = ?", where).fetchone():
        require_session(batch.fence, found.session)
        batch.execute("DELETE FROM inbox WHERE conversation = ? AND item = ?", where)
        batch.tx.wiped = True


def _put_client_id(batch: _Batch, op: PutClientId) -> None:
    row = op.row
    key = batch.tx.conversation(row.conversation, batch.fence).key
    used = _client(batch, key, row.client_id)
    if used is not None and used[0] != row.digest:
        raise IdConflict(
            f"the client id {row.client_id} was used with another body",
            hint="give each request a client id of its own",
            client_id=row.client_id,
            item=used[1],
            turn=used[2],
        )
    batch.execute(
        "INSERT OR REPLACE INTO client VALUES (NULL, ?, ?, ?, ?, ?, ?)",
        (key, row.client_id, row.digest, row.item, row.turn, row.outcome),
    )


def _put_grant(batch: _Batch, op: PutGrant) -> None:
    row = op.row
    values = (row.session, row.conversation, row.expires, row.body)
    if _own_grant(batch, row.id):
        batch.execute(
            "UPDATE grants SET session = ?, conversation = ?, expires = ?, body = ? WHERE id = ?",
            (*values, row.id),
        )
    else:
        batch.execute(
            "INSERT INTO grants (id, session, conversation, expires, body) VALUES (?, ?, ?, ?, ?)",
            (row.id, *values),
        )


def _drop_grant(batch: _Batch, op: DropGrant) -> None:
    if _own_grant(batch, op.id):
        batch.execute("DELETE FROM grants WHERE id = ?", (op.id,))


def _own_grant(batch: _Batch, id: str) -> bool:
    found = batch.execute("SELECT session FROM grants WHERE id = ?", (id,)).fetchone()
    if found is not None and found[0] is not None:
        require_session(batch.fence, found[0])
    return found is not None


# ── erasing ───────────────────────────────────────────────────────────────────


def _rewrite(batch: _Batch, op: Rewrite) -> None:
    branch = batch.tx.branch(op.conversation, op.branch, batch.fence)
    batch.orphans |= erase.rewrite(batch.tx, branch, op.rows)


def _drop_range(batch: _Batch, op: DropRange) -> None:
    branch = batch.tx.branch(op.conversation, op.branch, batch.fence)
    batch.orphans |= erase.drop_range(batch.tx, branch, op)


def _add_blobs(batch: _Batch, op: AddBlobs) -> None:
    branch = batch.tx.branch(op.conversation, op.branch, batch.fence)
    erase.add_blobs(batch.tx, branch, op)


def _delete(batch: _Batch, op: DeleteConversation) -> None:
    conversation = batch.tx.conversation(op.conversation, batch.fence)
    batch.orphans |= erase.delete(batch.tx, conversation)


_APPLY: dict[type, Callable[[_Batch, Any], None]] = {
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
