"""Makes a store of rows that were salvaged: what they refer to is there, and no counter is behind what it counts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import apsw
import msgspec

from ..records.codec import decode_lenient
from ..transcript.stats import totals
from .report import Problem
from .sqlite_salvage import SHAPES, Found
from .sqlite_schema import MAX_SEQ, SEQ_BITS, fetch

Judge = Callable[[int, bytes], str | None]
"""What is wrong with the bytes of a record, if anything is."""


def copy_rows(new: apsw.Connection, rows: Iterable[Found], judge: Judge) -> Mapping[str, int]:
    """How many could not be read, or are in quarantine."""
    lost: Counter[str] = Counter()
    insert = {
        table: f"INSERT OR IGNORE INTO {table} VALUES (?{', ?' * len(shape)})"
        for table, shape in SHAPES.items()
    }
    for found in rows:
        if found.table is None:
            lost["damaged rows"] += 1
        elif found.table == "record" and judge(found.key & MAX_SEQ, found.values[0]) is not None:
            new.execute("CREATE TABLE IF NOT EXISTS quarantine (key INTEGER, data BLOB)")
            new.execute("INSERT INTO quarantine VALUES (?, ?)", (found.key, *found.values))
            lost["records in quarantine"] += 1
        else:
            new.execute(insert[found.table], (found.key, *found.values))
    return lost


def name_of(connection: apsw.Connection, branch: int) -> str:
    found = fetch(
        connection,
        "SELECT c.id, b.n FROM branch b JOIN conversation c ON c.key = b.conversation WHERE b.key = ?",
        (branch,),
    )
    return f"{found[0][0]} branch {found[0][1]}" if found else f"branch key {branch}"


def mend(new: apsw.Connection) -> list[tuple[int, Problem]]:
    """Problems, each with the number of records that it means are missing."""
    problems = [(0, problem) for problem in (*_branches(new), *_conversations(new))]
    new.execute("UPDATE session SET owner = NULL, holder = NULL")
    for table in ("inbox", "client"):
        new.execute(f"DELETE FROM {table} WHERE conversation NOT IN (SELECT key FROM conversation)")
    new.execute("DELETE FROM blob WHERE key NOT IN (SELECT key FROM blob_data)")
    new.execute("DELETE FROM blob_data WHERE key NOT IN (SELECT key FROM blob)")
    new.execute("UPDATE counter SET commits = (SELECT ifnull(max(n), 0) FROM change)")
    return [*problems, *_holes(new)]


def _branches(new: apsw.Connection) -> Iterable[Problem]:
    """Records whose branch is lost get it back, under the name by which a fork knows it, or a new one."""
    keys = fetch(
        new, f"SELECT DISTINCT key >> {SEQ_BITS} AS b FROM record WHERE b NOT IN (SELECT key FROM branch)"
    )
    for (branch,) in keys:
        first = branch << SEQ_BITS
        records = fetch(
            new, "SELECT key, data FROM record WHERE key BETWEEN ? AND ?", (first, first | MAX_SEQ)
        )
        last = max(key & MAX_SEQ for key, _ in records)
        known = fetch(new, "SELECT parent, parent_n FROM branch WHERE above = ?", (branch,))
        id, n = known[0] if known else (f"recovered-{branch}", 0)
        sums = msgspec.json.encode(totals(decode_lenient(data, key & MAX_SEQ) for key, data in records))
        new.execute(
            "INSERT OR IGNORE INTO branch (key, conversation, n, at, last, ts, base, totals)"
            " VALUES (?, ?, ?, 0, ?, 0, x'5b5d', ?)",
            (branch, _conversation(new, id), n, last, sums),
        )
        yield Problem(
            where=f"{id} branch {n}", what="its row is lost", action="it is made again from its records"
        )
    new.execute(
        f"UPDATE branch SET last = max(last, ifnull((SELECT max(key) & {MAX_SEQ} FROM record"
        f" WHERE key BETWEEN branch.key << {SEQ_BITS} AND branch.key << {SEQ_BITS} | {MAX_SEQ}), 0))"
    )
    new.execute("UPDATE branch SET above = NULL WHERE above NOT IN (SELECT key FROM branch)")


def _conversation(new: apsw.Connection, id: str, key: int | None = None) -> int:
    found = fetch(new, "SELECT key FROM conversation WHERE id = ?", (id,))
    if found:
        return int(found[0][0])
    new.execute("INSERT OR IGNORE INTO session (id, epoch) VALUES ('recovered', 0)")
    made = fetch(
        new,
        "INSERT INTO conversation (key, id, session, active, archived, created, updated, settings)"
        " SELECT ?, ?, key, 0, 0, 0, 0, x'7b7d' FROM session WHERE id = 'recovered' RETURNING key",
        (key, id),
    )
    return int(made[0][0])


def _conversations(new: apsw.Connection) -> Iterable[Problem]:
    lost = fetch(
        new,
        "SELECT DISTINCT conversation FROM branch WHERE conversation NOT IN (SELECT key FROM conversation)",
    )
    for (key,) in lost:
        known = fetch(
            new,
            "SELECT c.parent FROM branch c JOIN branch b ON b.key = c.above WHERE b.conversation = ?",
            (key,),
        )
        id = known[0][0] if known else f"recovered-conversation-{key}"
        _conversation(new, id, key)
        yield Problem(where=id, what="its row is lost", action="it is made again, without title and settings")
    bare = fetch(
        new,
        "SELECT key, id FROM conversation WHERE NOT deleted AND key NOT IN (SELECT conversation FROM branch)",
    )
    for key, id in bare:
        new.execute(
            "INSERT INTO branch (conversation, n, at, last, ts, base, totals) VALUES (?, 0, 0, 0, 0, x'5b5d', x'5b5d')",
            (key,),
        )
        yield Problem(where=id, what="its branches are lost", action="their records stand in recovered ones")
    lost = fetch(
        new, "SELECT DISTINCT session FROM conversation WHERE session NOT IN (SELECT key FROM session)"
    )
    for (key,) in lost:
        new.execute(
            "INSERT INTO session (key, id, epoch) VALUES (?, ?, 0)", (key, f"recovered-session-{key}")
        )
        yield Problem(where=f"session key {key}", what="its row is lost", action="it is made again")
    new.execute(
        "UPDATE session SET settings = x'7b7d', root = (SELECT id FROM conversation c WHERE c.session = session.key"
        " AND NOT deleted ORDER BY key LIMIT 1) WHERE root IS NULL"
    )


def _holes(new: apsw.Connection) -> Iterable[tuple[int, Problem]]:
    for key, at, last in fetch(new, "SELECT key, at, last FROM branch WHERE last > at"):
        first = key << SEQ_BITS
        missing = last - at
        for place, data in fetch(
            new, "SELECT key, data FROM record WHERE key BETWEEN ? AND ?", (first | at + 1, first | last)
        ):
            record = decode_lenient(data, place & MAX_SEQ)
            missing -= 1 + max(
                0, getattr(record, "through", 0) - record.seq if record.type == "tombstone" else 0
            )
        if missing > 0:
            what = f"{missing} of its records are not there: lost, or never stored under its retention"
            yield missing, Problem(where=name_of(new, key), what=what, action="the others are kept")
