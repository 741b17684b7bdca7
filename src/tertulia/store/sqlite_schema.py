"""The file: its tables and versions, how it is opened, and what SQLite's errors mean.

Conversations and branches have integer keys that are never used again. A record's key is its branch's key and its seq
in one integer (`record_key`), so that a branch lies together in order and the table needs no second index. Measured
against a WITHOUT ROWID table by (branch, seq): 1.2 of the record bytes instead of 1.7 where records of 1–4 kB are among
them, and a third faster. Pages of 2 kB: smaller ones spill long records (1.4), larger ones write more for each small
commit (a tenth slower in groups).

An append writes three pages (its records, its branch's row, its change), since each page more costs a commit a tenth.
So when a conversation changed last stands in its branches (`branch.ts`), and `conversation.updated`, by which lists are
ordered, may lag behind by up to SLACK.
"""

import contextlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import apsw

from ..records.errors import (
    ConfigError,
    InvalidInput,
    StorageError,
    StoreCorrupt,
    StoreFull,
    StoreNotFound,
    StoreReadOnly,
    VersionTooNew,
)

Durability = Literal["full", "normal"]

APPLICATION = 0x74727475  # "trtu": written into the file's header
VERSION = 1
PAGE_SIZE = 2048
BUSY_MS = 10_000
SEQ_BITS = 32
SLACK = 60_000_000  # microseconds
MAX_SEQ = (1 << SEQ_BITS) - 1

MIGRATIONS: Mapping[int, str] = {}
"""From version n to n + 1. None yet: the file is at its first version."""

TABLES = """
CREATE TABLE counter (commits INTEGER NOT NULL);
INSERT INTO counter VALUES (0);

CREATE TABLE session (
    key INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, epoch INTEGER NOT NULL,
    owner INTEGER, holder TEXT, root TEXT, settings BLOB);

CREATE TABLE conversation (
    key INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, session INTEGER NOT NULL,
    active INTEGER NOT NULL, title TEXT, archived INTEGER NOT NULL, parent TEXT, parent_seq INTEGER,
    created INTEGER NOT NULL, updated INTEGER NOT NULL, settings BLOB NOT NULL,
    arrived INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0);
CREATE INDEX conversation_updated ON conversation (updated);
CREATE INDEX conversation_session ON conversation (session);

CREATE TABLE branch (
    key INTEGER PRIMARY KEY AUTOINCREMENT, conversation INTEGER NOT NULL, n INTEGER NOT NULL,
    parent TEXT, parent_n INTEGER, above INTEGER, at INTEGER NOT NULL, last INTEGER NOT NULL,
    ts INTEGER NOT NULL, base BLOB NOT NULL, totals BLOB NOT NULL, UNIQUE (conversation, n));
CREATE INDEX branch_above ON branch (above) WHERE above IS NOT NULL;

CREATE TABLE record (key INTEGER PRIMARY KEY, data BLOB NOT NULL);

CREATE TABLE change (
    n INTEGER PRIMARY KEY, session INTEGER NOT NULL, branch INTEGER NOT NULL,
    after INTEGER NOT NULL, until INTEGER NOT NULL, more INTEGER NOT NULL);

CREATE TABLE inbox (
    key INTEGER PRIMARY KEY, conversation INTEGER NOT NULL, item TEXT NOT NULL, source TEXT NOT NULL,
    body BLOB, rank REAL, state TEXT NOT NULL, client_id TEXT, ts INTEGER NOT NULL,
    UNIQUE (conversation, item));

CREATE TABLE client (
    key INTEGER PRIMARY KEY, conversation INTEGER NOT NULL, client_id TEXT NOT NULL, digest BLOB NOT NULL,
    item TEXT, turn TEXT, outcome BLOB NOT NULL, UNIQUE (conversation, client_id));

CREATE TABLE grants (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, session TEXT, conversation TEXT, expires INTEGER,
    body BLOB NOT NULL);
CREATE INDEX grants_session ON grants (session);

CREATE TABLE blob (
    key INTEGER PRIMARY KEY, ref TEXT NOT NULL UNIQUE, put INTEGER NOT NULL, waiting INTEGER NOT NULL);
CREATE TABLE blob_data (key INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE owner (
    key INTEGER PRIMARY KEY, record INTEGER NOT NULL, blob INTEGER NOT NULL, UNIQUE (record, blob));
CREATE INDEX owner_blob ON owner (blob);
"""


def record_key(branch: int, seq: int) -> int:
    """Where a record stands. Holds for 2^31 branches in a file and 2^32 seqs in a conversation."""
    return branch << SEQ_BITS | seq


def fetch(connection: apsw.Connection, query: str, values: Sequence[Any] = ()) -> list[Any]:
    """All of them: a statement that is not run to its end holds its view of the file."""
    return connection.execute(query, values).fetchall()


# ── opening ───────────────────────────────────────────────────────────────────


def locate(path: str | os.PathLike[str], *, create: bool) -> str:
    """The absolute path of a file that is there; an empty, private one is made when it may be."""
    try:
        name = os.path.abspath(os.fspath(path))
        mode = os.stat(name).st_mode
    except ValueError as error:
        raise InvalidInput(f"{path!r} is no path: {error}", hint="give the path of a file") from error
    except FileNotFoundError:
        if not create:
            raise StoreNotFound(f"there is no store at {path}", hint="check the path") from None
        _create(name)
        return name
    except OSError as error:
        raise StoreNotFound(f"cannot open {path}: {error.strerror}", hint="check the path") from error
    if stat.S_ISDIR(mode):
        raise StoreNotFound(
            f"{path} is a folder, and a SQLite store is a file",
            hint=f"use jsonl:{path} for a folder of JSONL files, or name a file in it",
        )
    if not stat.S_ISREG(mode):
        raise StoreNotFound(f"{path} is no file", hint="give the path of a file")
    return name


def _create(name: str) -> None:
    try:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was first
            # Only where no file is: closing a descriptor of one that SQLite has open would drop SQLite's locks.
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        kind = StoreReadOnly if error.errno in _READ_ONLY_ERRNO else StorageError
        raise kind(
            f"cannot create {name}: {error.strerror}", hint="choose a folder that can be written"
        ) from error


_READ_ONLY_ERRNO = (13, 30)  # EACCES, EROFS


def connect(name: str, *, readonly: bool = False, durability: Durability = "full") -> apsw.Connection:
    """A connection to a store that is there, its version checked. Not yet created tables are, unless `readonly`."""
    if durability not in ("full", "normal"):
        raise ConfigError(f"durability {durability!r} is unknown", hint="use 'full' or 'normal'")
    connection = None
    try:
        connection = _connect(name, readonly)
        _identify(connection, name)
        if not connection.readonly("main"):
            _prepare(connection, durability)
            _migrate(connection)
        return connection
    except apsw.Error as error:
        if connection is not None:
            connection.close()
        raise translate(error, name) from error
    except StorageError:
        if connection is not None:
            connection.close()
        raise


def _connect(name: str, readonly: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(name, flags=flags)
    connection.set_busy_timeout(BUSY_MS)
    try:
        connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
    except apsw.CantOpenError:
        connection.close()
        if not _immutable(name):
            raise
        quoted = name.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(f"file:{quoted}?immutable=1", flags=flags)
    except apsw.Error:
        connection.close()
        raise
    return connection


def _immutable(name: str) -> bool:
    """On a medium that cannot be written SQLite gets no shared memory; without a log to read it needs none."""
    log = f"{name}-wal"
    empty = not os.path.exists(log) or os.path.getsize(log) == 0
    return empty and not os.access(os.path.dirname(name), os.W_OK)


def _identify(connection: apsw.Connection, name: str) -> None:
    application, version, empty = _marks(connection)
    if application == APPLICATION:
        if version > VERSION:
            raise VersionTooNew(f"the store {name}", version, VERSION)
    elif application or not empty:
        raise StoreNotFound(
            f"{name} is a SQLite database of another program", hint="choose another path; nothing was changed"
        )
    elif connection.readonly("main"):
        raise StoreNotFound(f"{name} is empty and cannot be written", hint="check the path")


def _marks(connection: apsw.Connection) -> tuple[int, int, bool]:
    """Whose file it is, in one view of it: between two of them another process may have made the tables."""
    with connection:
        empty = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is None
        application, version = connection.pragma("application_id"), connection.pragma("user_version")
    return application, version, empty


def _prepare(connection: apsw.Connection, durability: Durability) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    _wal(connection)
    connection.execute(f"PRAGMA synchronous = {durability}")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cache_size = -16000")
    connection.wal_autocheckpoint(0)


def _wal(connection: apsw.Connection) -> None:
    """SQLite does not wait for another process that switches the same new file, so this does."""
    deadline = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _migrate(connection: apsw.Connection) -> None:
    if connection.pragma("application_id") == APPLICATION and connection.pragma("user_version") == VERSION:
        return
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            if connection.pragma("application_id") != APPLICATION:
                cursor.execute(TABLES)
            else:
                for version in range(connection.pragma("user_version"), VERSION):
                    cursor.execute(MIGRATIONS[version])
            cursor.execute(f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}")
            cursor.execute("COMMIT")
        finally:
            if connection.in_transaction:
                cursor.execute("ROLLBACK")


# ── errors ────────────────────────────────────────────────────────────────────

_NO_SPACE = (27, 28, 122)  # EFBIG, ENOSPC, EDQUOT


def translate(error: apsw.Error, name: str, errno: int = 0) -> StorageError:
    """What an error of SQLite means to a caller. `errno` is the system's, where there is one."""
    text = f"{name}: {error}"
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and errno in _NO_SPACE):
        return StoreFull(text, hint="make room on the disk; what was acknowledged is safe")
    if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError)):
        return StoreReadOnly(text, hint="make the file and its folder writable; reading goes on")
    if isinstance(error, apsw.NotADBError):
        return StoreNotFound(
            text,
            hint="it is no SQLite database; if it was one, `tertulia store repair` saves what can be read",
        )
    if isinstance(error, apsw.CorruptError):
        return StoreCorrupt(text, hint="run `tertulia store check`, then `tertulia store repair`")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StorageError(
            f"{name} was busy for {BUSY_MS // 1000} s: another process is writing it",
            hint="try again, or end the process that holds it",
        )
    return StorageError(text, hint="see the message; nothing of this was written")
