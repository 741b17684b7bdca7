"""What is asked of the file: plain functions over a connection, each seeing one state of it."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw
import msgspec

from ..records.errors import ConversationNotFound, SessionNotFound
from ..records.ids import ConversationId, SessionId
from ..records.record import Totals
from ..transcript.path import BranchRow, Segment
from . import blobs
from .base import Change, ClientIdRow, ConversationRow, GrantRow, InboxRow, Listed, Opened, Row, SessionRow
from .order import page, place, place_of
from .sqlite_schema import MAX_SEQ, SEQ_BITS, SLACK, fetch, record_key

_totals = msgspec.json.Decoder(Totals).decode
_settings = msgspec.json.Decoder(dict[str, Any]).decode

_CONVERSATION = (
    "c.id, s.id, c.active, c.title, c.archived, c.parent, c.parent_seq, c.created,"
    " max(c.updated, ifnull((SELECT max(ts) FROM branch WHERE conversation = c.key), 0)), c.settings"
    " FROM conversation c JOIN session s ON s.key = c.session"
)
_BRANCH = "c.id, b.n, b.parent, b.parent_n, b.at, b.last, b.base, b.totals"

_ANCESTORS = f"""
WITH RECURSIVE up (key) AS (
    SELECT above FROM (SELECT above FROM branch WHERE conversation = ?1 AND above IS NOT NULL ORDER BY n)
    UNION
    SELECT b.above FROM up JOIN branch b ON b.key = up.key WHERE b.above IS NOT NULL)
SELECT {_BRANCH} FROM up CROSS JOIN branch b ON b.key = up.key JOIN conversation c ON c.key = b.conversation
WHERE b.conversation != ?1
"""


def open_conversation(connection: apsw.Connection, id: ConversationId) -> Opened:
    found = connection.execute(
        f"SELECT c.key, {_CONVERSATION} WHERE c.id = ? AND NOT c.deleted", (id,)
    ).fetchone()
    if found is None:
        raise ConversationNotFound(f"no conversation {id}", conversation=id)
    key = found[0]
    own = fetch(
        connection,
        f"SELECT {_BRANCH} FROM branch b JOIN conversation c ON c.key = b.conversation"
        " WHERE b.conversation = ? ORDER BY b.n",
        (key,),
    )
    above: list[Any] = []
    if any(row[2] is not None for row in own):
        above = fetch(connection, _ANCESTORS, (key,))
    return Opened(
        conversation=_conversation(found[1:]),
        branches=tuple(_branch(row) for row in (*own, *above)),
        inbox=_inbox(connection, id, key),
        last=max((max(row[4], row[5]) for row in own), default=0),
    )


def _conversation(row: Sequence[Any]) -> ConversationRow:
    id, session, active, title, archived, parent, seq, created, updated, settings = row
    return ConversationRow(
        id=id,
        session=session,
        active=active,
        title=title,
        archived=bool(archived),
        parent=None if parent is None else (parent, seq),
        created=created,
        updated=updated,
        settings=_settings(settings),
    )


def _branch(row: Sequence[Any]) -> BranchRow:
    conversation, n, parent, parent_n, at, last, base, totals = row
    above = None if parent is None else (parent, parent_n)
    base, totals = _totals(base), _totals(totals)
    return BranchRow(conversation=conversation, n=n, parent=above, at=at, last=last, base=base, totals=totals)


def _inbox(connection: apsw.Connection, id: ConversationId, key: int) -> tuple[InboxRow, ...]:
    rows = fetch(
        connection,
        "SELECT key & ?, item, source, body, rank, state, client_id, ts FROM inbox WHERE key BETWEEN ? AND ?"
        " ORDER BY ifnull(rank, key & ?1), key",
        (MAX_SEQ, key << SEQ_BITS, key << SEQ_BITS | MAX_SEQ),
    )
    return tuple(
        InboxRow(
            conversation=id,
            n=n,
            item=item,
            source=source,
            body=body,
            rank=rank,
            state=state,
            client_id=client_id,
            ts=ts,
        )
        for n, item, source, body, rank, state, client_id, ts in rows
    )


def read(
    connection: apsw.Connection, path: Sequence[Segment], after: int, limit: int, reverse: bool
) -> list[Row]:
    rows: list[Row] = []
    order = "DESC" if reverse else "ASC"
    for segment in reversed(path) if reverse else path:
        low, high = segment.after, min(segment.until, MAX_SEQ)
        if reverse and after:
            high = min(high, after - 1)
        elif not reverse:
            low = max(low, after)
        if low >= high or len(rows) >= limit:
            continue
        branch = connection.execute(
            "SELECT b.key FROM conversation c JOIN branch b ON b.conversation = c.key WHERE c.id = ? AND b.n = ?",
            (segment.conversation, segment.branch),
        ).get
        if not isinstance(branch, int):
            continue
        found = connection.execute(
            f"SELECT key & {MAX_SEQ}, data FROM record WHERE key BETWEEN ? AND ? ORDER BY key {order} LIMIT ?",
            (record_key(branch, max(low, 0)) + 1, record_key(branch, high), limit - len(rows)),
        )
        rows.extend(Row(seq, data) for seq, data in found)
    return rows


def session(connection: apsw.Connection, id: SessionId, alive: Callable[[int], bool]) -> SessionRow:
    row = connection.execute(
        "SELECT root, epoch, owner, holder, settings FROM session WHERE id = ? AND root IS NOT NULL", (id,)
    ).fetchone()
    if row is None:
        raise SessionNotFound(f"no session {id}", session=id)
    root, epoch, owner, holder, settings = row
    held = owner is not None and alive(owner)
    return SessionRow(
        id=id, root=root, epoch=epoch, holder=holder if held else None, settings=_settings(settings)
    )


def client_id(
    connection: apsw.Connection, conversation: ConversationId, client_id: str
) -> ClientIdRow | None:
    row = connection.execute(
        "SELECT u.digest, u.item, u.turn, u.outcome FROM conversation c JOIN client u ON u.conversation = c.key"
        " WHERE c.id = ? AND u.client_id = ?",
        (conversation, client_id),
    ).fetchone()
    if row is None:
        return None
    digest, item, turn, outcome = row
    return ClientIdRow(
        conversation=conversation, client_id=client_id, digest=digest, item=item, turn=turn, outcome=outcome
    )


def grants(connection: apsw.Connection, session: SessionId) -> list[GrantRow]:
    rows = fetch(
        connection,
        "SELECT id, session, conversation, expires, body FROM grants WHERE session = ? OR session IS NULL"
        " ORDER BY key",
        (session,),
    )
    return [
        GrantRow(id=id, session=of, conversation=conversation, expires=expires, body=body)
        for id, of, conversation, expires, body in rows
    ]


_CHANGE = """
SELECT h.n + h.more, h.more, h.n, v.id, b.n, h.after, h.until
FROM change h JOIN session s ON s.key = h.session
JOIN branch b ON b.key = h.branch JOIN conversation v ON v.key = b.conversation
WHERE s.id = ? AND h.n > ? AND h.n <= ? AND NOT v.deleted ORDER BY h.n LIMIT ?
"""


def changes(connection: apsw.Connection, session: SessionId, after: int, limit: int) -> list[Change]:
    rows = fetch(connection, _CHANGE, (session, after, 2**62, limit))
    if rows and rows[-1][1]:  # a commit is never split over two pages
        commit, _, n = rows[-1][:3]
        rows.extend(fetch(connection, _CHANGE, (session, n, commit, -1)))
    return [
        Change(commit, Segment(conversation, branch, low, high))
        for commit, _, _, conversation, branch, low, high in rows
    ]


def blob(connection: apsw.Connection, ref: str) -> bytes:
    row = connection.execute(
        "SELECT d.data FROM blob b JOIN blob_data d ON d.key = b.key WHERE b.ref = ?", (ref,)
    ).fetchone()
    if row is None:
        raise blobs.missing(ref)
    return blobs.check(ref, row[0])


# ── lists ─────────────────────────────────────────────────────────────────────


def conversations(
    connection: apsw.Connection,
    cursor: str | None,
    limit: int,
    search: str | None,
    archived: bool | None,
    session: SessionId | None,
) -> Listed:
    after = place_of(cursor)
    where, values = ["NOT c.deleted"], list[Any]()
    if after is not None:
        where.append("c.updated <= ?")
        values.append(-after[0])
    if archived is not None:
        where.append("c.archived = ?")
        values.append(archived)
    if session is not None:
        where.append("c.session = (SELECT key FROM session WHERE id = ?)")
        values.append(session)
    if search:
        where.append("mentions(?, c.id, c.title)")
        values.append(search.casefold())
    found = connection.execute(
        f"SELECT c.updated, {_CONVERSATION} WHERE {' AND '.join(where)} ORDER BY c.updated DESC", values
    )
    rows = _first(((lagging, _conversation(row)) for lagging, *row in found), after, limit + 1)
    return page(rows, limit)


def _first(
    found: Iterable[tuple[int, ConversationRow]], after: tuple[int, str] | None, count: int
) -> list[ConversationRow]:
    """The first ones behind `after`, of rows that come in an order which may lag behind by SLACK."""
    rows: list[ConversationRow] = []
    bound = -SLACK  # none of the best so far was changed earlier
    for lagging, row in found:
        if bound > lagging + SLACK:
            break
        if after is None or place(row) > after:
            rows.append(row)
        if len(rows) >= 2 * count:
            rows = heapq.nsmallest(count, rows, key=place)
            bound = rows[-1].updated if rows else bound
    return heapq.nsmallest(count, rows, key=place)
