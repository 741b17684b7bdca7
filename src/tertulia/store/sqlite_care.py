"""Looking after a SQLite store: check, repair, backup. None of them changes it."""

import contextlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

import apsw

from ..records.codec import decode
from ..records.errors import InvalidInput, RecordCorrupt, StoreCorrupt, StoreNotFound, VersionTooNew
from . import sqlite_mend as mend
from . import sqlite_salvage as salvage
from .blobs import ref_of
from .report import Problem, Report
from .sqlite_schema import MAX_SEQ, SEQ_BITS, connect, fetch, locate, translate

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is."""

MAX_MESSAGES = 20
_BACKUP_PAGES = 2_000


def check(path: str | os.PathLike[str]) -> Report:
    """What is wrong with it, and what a repair would save."""
    name = locate(path, create=False)
    report = _examine(name)
    if report.ok or not _damaged(report):
        return report
    with tempfile.TemporaryDirectory(dir=os.path.dirname(name)) as folder:
        return _salvage(name, os.path.join(folder, "checked"), report.problems)


def repair(path: str | os.PathLike[str], target: str | os.PathLike[str] | None = None) -> Report:
    """Writes what can be saved to a new file, `target` (None: beside it). Close the store first.

    Records that cannot be decoded go to a table `quarantine`, byte for byte.
    """
    name = locate(path, create=False)
    new = _new(target if target is not None else f"{name}.repaired")
    report = _examine(name)
    if report.ok:
        return report
    with tempfile.TemporaryDirectory(dir=os.path.dirname(new)) as folder:
        written = os.path.join(folder, "repaired")
        found = _salvage(name, written, report.problems)
        _publish(written, new)
    return Report(
        kind="sqlite",
        path=name,
        conversations=found.conversations,
        kept=found.kept,
        lost=found.lost,
        problems=found.problems,
        written=new,
    )


def backup(
    path: str | os.PathLike[str], target: str | os.PathLike[str], progress: Progress | None = None
) -> Report:
    """A copy of one state of it, also while others write. The target must not be there yet."""
    name = locate(path, create=False)
    new = _new(target)
    source = connect(name, readonly=True)
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(new)) as folder:
            part = locate(os.path.join(folder, "backup"), create=True)
            with contextlib.closing(apsw.Connection(part)) as copy:
                source.execute("BEGIN")  # one state of it, whatever others commit meanwhile
                conversations, kept = _counts(source)
                with copy.backup("main", source, "main") as step:
                    while not step.done:
                        step.step(_BACKUP_PAGES)
                        if progress is not None:
                            progress(step.page_count - step.remaining, step.page_count)
                source.execute("COMMIT")
            _publish(part, new)
    except apsw.Error as error:
        raise translate(error, name) from error
    finally:
        source.close()
    return Report(kind="sqlite", path=name, conversations=conversations, kept=kept, written=new)


def _new(target: str | os.PathLike[str]) -> str:
    new = os.path.abspath(os.fspath(target))
    if os.path.lexists(new):
        raise InvalidInput(f"{new} is there already", hint="choose another path, or remove it first")
    os.makedirs(os.path.dirname(new), exist_ok=True)
    return new


def _publish(part: str, new: str) -> None:
    """All of it, or no file at all, whenever the machine stops."""
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, new)
    folder = os.open(os.path.dirname(new), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _counts(connection: apsw.Connection) -> tuple[int, int]:
    ((conversations, records),) = fetch(
        connection,
        "SELECT (SELECT count(*) FROM conversation WHERE NOT deleted), (SELECT count(*) FROM record)",
    )
    return conversations, records


# ── check ─────────────────────────────────────────────────────────────────────


def _examine(name: str) -> Report:
    """Looks with SQLite's own eyes."""
    problems = list(_log_problems(name))
    conversations = kept = lost = 0
    try:
        with contextlib.closing(connect(name, readonly=True)) as connection:
            connection.execute("BEGIN")
            structure = fetch(connection, f"PRAGMA integrity_check({MAX_MESSAGES})")
            for (text,) in structure:
                if text != "ok":
                    problems.append(Problem(where="file", what=text, action=_REBUILD))
            bad = list(_bad_records(connection))
            problems += bad
            problems += _bad_blobs(connection)
            conversations, kept = _counts(connection)
            kept, lost = kept - len(bad), len(bad)
    except (StoreCorrupt, apsw.Error, UnicodeDecodeError) as error:
        problems.append(Problem(where="file", what=str(error), action=_REBUILD))
    except StoreNotFound as error:
        if not isinstance(error.__cause__, apsw.NotADBError) or not _ours(name):
            raise
        problems.append(Problem(where="file", what="its header is damaged", action=_REBUILD))
    return Report(
        kind="sqlite", path=name, conversations=conversations, kept=kept, lost=lost, problems=tuple(problems)
    )


_REBUILD = "a repair writes what can be read to a new file"
_QUARANTINE = "a repair puts its bytes into the table quarantine"


def _damaged(report: Report) -> bool:
    return any(problem.action == _REBUILD for problem in report.problems)


def _ours(name: str) -> bool:
    """Whether there are rows of ours in a file that SQLite does not know."""
    with _mapped(name) as data:
        return any(found.table in ("conversation", "branch") for found in salvage.rows(data))


def _log_problems(name: str) -> Iterator[Problem]:
    with contextlib.suppress(FileNotFoundError), open(f"{name}-wal", "rb") as log:
        magic = log.read(4)
        if magic and magic not in (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"):
            yield Problem(
                where="write-ahead log",
                what="it is damaged from its beginning; the last commits may be missing",
                action="it is left out",
            )


def _bad_records(connection: apsw.Connection) -> Iterator[Problem]:
    for key, data in connection.execute("SELECT key, data FROM record ORDER BY key"):
        seq = int(key) & MAX_SEQ
        wrong = what_is_wrong(seq, bytes(data))
        if wrong:
            branch = mend.name_of(connection, int(key) >> SEQ_BITS)
            yield Problem(where=f"{branch} seq {seq}", what=wrong, action=_QUARANTINE)


def what_is_wrong(seq: int, data: bytes) -> str | None:
    try:
        found = decode(data).seq
    except RecordCorrupt as error:
        return error.message
    except VersionTooNew:
        return None
    return None if found == seq else f"its bytes say that it is record {found}"


def _bad_blobs(connection: apsw.Connection) -> Iterator[Problem]:
    query = "SELECT b.ref, d.data FROM blob b LEFT JOIN blob_data d ON d.key = b.key"
    for ref, data in connection.execute(query):
        if data is None or ref_of(bytes(data)) != ref:
            yield Problem(
                where=f"blob {ref}", what="its bytes are not those that were stored", action="it is kept"
            )


# ── repair ────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _mapped(name: str) -> Iterator[salvage.Bytes]:
    with open(name, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _salvage(name: str, target: str, problems: tuple[Problem, ...]) -> Report:
    """Works on a copy, into whose file the log is put first."""
    copy = f"{target}.damaged"
    shutil.copyfile(name, copy)
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(f"{name}-wal", f"{copy}-wal")
    _put_log_away(copy)
    with contextlib.closing(connect(locate(target, create=True))) as new:
        new.execute("BEGIN IMMEDIATE")
        with _mapped(copy) as data:
            lost = mend.copy_rows(new, salvage.rows(data), what_is_wrong)
        more = mend.mend(new)
        new.execute("COMMIT")
        conversations, kept = _counts(new)
    holes = sum(count for count, _ in more)
    found = [problem for _, problem in more]
    for what, count in lost.items():
        found.append(Problem(where="file", what=f"{count} {what}", action="what can be read of them is kept"))
    gone = sum(lost.values()) + holes
    return Report(
        kind="sqlite",
        path=name,
        conversations=conversations,
        kept=kept,
        lost=gone,
        problems=(*problems, *found),
    )


def _put_log_away(copy: str) -> None:
    for attempt in range(2):
        try:
            with contextlib.closing(apsw.Connection(copy)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return
        except apsw.Error:
            if attempt:  # the log cannot be used; the pages of the file still can
                return
        with open(copy, "r+b") as file:
            size = salvage.page_size(file.read(salvage.HEADER))
            file.seek(0)
            file.write(salvage.header(size))
