"""Blobs and their owners, and the ops that make bodies go: rewrite, drop a range, delete a conversation."""

from collections.abc import Iterable

from . import blobs
from .base import AddBlobs, DropRange, Row
from .sqlite_schema import MAX_SEQ, record_key
from .sqlite_tx import Conversation, Tx


def put_blob(tx: Tx, ref: str, data: bytes, now: int) -> None:
    """A blob that was put waits for an owner; several puts wait for as many."""
    found = tx.execute(
        "UPDATE blob SET put = ?, waiting = waiting + 1 WHERE ref = ? RETURNING key", (now, ref)
    ).get
    if found is None:
        key = tx.execute(
            "INSERT INTO blob (ref, put, waiting) VALUES (?, ?, 1) RETURNING key", (ref, now)
        ).get
        tx.execute("INSERT INTO blob_data VALUES (?, ?)", (key, data))


def collect(tx: Tx, put_before: int) -> int:
    rows = tx.rows("UPDATE blob SET waiting = 0 WHERE waiting > 0 AND put <= ? RETURNING key", (put_before,))
    return drop_orphans(tx, {key for (key,) in rows})


def drop_orphans(tx: Tx, keys: Iterable[int]) -> int:
    """Of these blobs, those that nothing owns and nobody is about to."""
    dropped = 0
    for key in keys:
        gone = tx.execute(
            "DELETE FROM blob WHERE key = ?1 AND waiting = 0"
            " AND NOT EXISTS (SELECT 1 FROM owner WHERE blob = ?1) RETURNING 1",
            (key,),
        ).fetchone()
        if gone is not None:
            tx.execute("DELETE FROM blob_data WHERE key = ?", (key,))
            tx.erased = True
            dropped += 1
    return dropped


def add_blobs(tx: Tx, branch: int, op: AddBlobs) -> None:
    for ref in op.refs:
        key = tx.execute(
            "UPDATE blob SET waiting = max(0, waiting - 1) WHERE ref = ? RETURNING key", (ref,)
        ).get
        if key is None:
            raise blobs.missing(ref)
        tx.execute("INSERT OR IGNORE INTO owner VALUES (NULL, ?, ?)", (record_key(branch, op.seq), key))


def _disown(tx: Tx, first: int, last: int) -> set[int]:
    """The records with these keys own nothing any more; what they owned."""
    rows = tx.rows("DELETE FROM owner WHERE record BETWEEN ? AND ? RETURNING blob", (first, last))
    return {key for (key,) in rows}


def rewrite(tx: Tx, branch: int, rows: Iterable[Row]) -> set[int]:
    orphans: set[int] = set()
    for row in rows:
        key = record_key(branch, row.seq)
        if tx.rows("UPDATE record SET data = ? WHERE key = ? RETURNING 1", (row.data, key)):
            orphans |= _disown(tx, key, key)
            tx.erased = True
    return orphans


def drop_range(tx: Tx, branch: int, op: DropRange) -> set[int]:
    first, last = record_key(branch, op.first), record_key(branch, min(op.through, MAX_SEQ))
    tx.execute("DELETE FROM record WHERE key BETWEEN ? AND ?", (first, last))
    tx.execute("INSERT INTO record VALUES (?, ?)", (first, op.tombstone))
    tx.erased = True
    return _disown(tx, first, last)


def delete(tx: Tx, conversation: Conversation) -> set[int]:
    key = conversation.key
    tx.execute("UPDATE conversation SET deleted = 1, title = NULL, settings = x'7b7d' WHERE key = ?", (key,))
    tx.execute("DELETE FROM inbox WHERE conversation = ?", (key,))
    tx.execute("DELETE FROM client WHERE conversation = ?", (key,))
    tx.execute("DELETE FROM grants WHERE conversation = ?", (conversation.id,))
    left = tx.execute(
        "SELECT 1 FROM conversation WHERE session = ? AND NOT deleted LIMIT 1", (conversation.session_key,)
    ).fetchone()
    if left is None:  # the epoch stays, so that no fence of old is ever good again
        tx.execute(
            "UPDATE session SET root = NULL, settings = NULL WHERE key = ?", (conversation.session_key,)
        )
        tx.execute("DELETE FROM grants WHERE session = ?", (conversation.session,))
    branches = tx.rows("SELECT key FROM branch WHERE conversation = ?", (key,))
    orphans = _prune(tx, [branch for (branch,) in branches])
    _drop_empty(tx, key)
    tx.forget()
    tx.erased = True
    return orphans


_BRANCH = """
SELECT b.above, b.conversation FROM branch b JOIN conversation c ON c.key = b.conversation
WHERE b.key = ? AND c.deleted
"""

_REACH = """
WITH RECURSIVE below (key, cap, deleted) AS (
    SELECT b.key, b.at, c.deleted FROM branch b JOIN conversation c ON c.key = b.conversation WHERE b.above = ?
    UNION ALL
    SELECT b.key, min(b.at, below.cap), c.deleted
    FROM below JOIN branch b ON b.above = below.key JOIN conversation c ON c.key = b.conversation
    WHERE below.deleted)
SELECT ifnull(max(cap), 0) FROM below WHERE NOT deleted
"""
"""The last seq up to which living conversations see a branch of a deleted one; 0 when none does."""


def _prune(tx: Tx, work: list[int]) -> set[int]:
    """Drops of deleted conversations what no living fork reaches, and then looks at the branches above."""
    orphans: set[int] = set()
    while work:
        branch = work.pop()
        found = tx.execute(_BRANCH, (branch,)).fetchone()
        if found is None:
            continue
        above, conversation = found
        reach = int(tx.rows(_REACH, (branch,))[0][0])
        first, last = record_key(branch, reach) + 1, record_key(branch, MAX_SEQ)
        tx.execute("DELETE FROM record WHERE key BETWEEN ? AND ?", (first, last))
        orphans |= _disown(tx, first, last)
        if reach == 0:
            tx.execute("UPDATE branch SET above = NULL WHERE above = ?", (branch,))
            tx.execute("DELETE FROM branch WHERE key = ?", (branch,))
            _drop_empty(tx, conversation)
        if above is not None:
            work.append(above)
    return orphans


def _drop_empty(tx: Tx, conversation: int) -> None:
    tx.execute(
        "DELETE FROM conversation WHERE key = ?1 AND NOT EXISTS (SELECT 1 FROM branch WHERE conversation = ?1)",
        (conversation,),
    )
