"""Looking after a JSONL store: check reads only, repair and backup write a copy."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..records.clock import SYSTEM_CLOCK
from ..records.codec import decode
from ..records.errors import (
    BlobMissing,
    InvalidInput,
    RecordCorrupt,
    StoreCorrupt,
    StoreNotFound,
    VersionTooNew,
)
from ..records.ids import ConversationId
from . import jsonl_disk as disk
from .jsonl_blobs import Blobs
from .jsonl_books import Books
from .jsonl_draft import draft_of
from .jsonl_file import BranchKey, Log, is_ours, lines_of, scan
from .jsonl_gate import Gate
from .jsonl_lines import SUFFIX, HeaderLine, control_of, id_of, record_of
from .jsonl_rebuild import rebuilt
from .jsonl_sidecar import Side
from .report import Problem, Report

Progress = Callable[[int, int], None]
Bad = dict[BranchKey, dict[int, bytes]]
"""The lines of records that cannot be read."""

KIND = "jsonl"
_PIECE = 1 << 20


def check(path: Path) -> Report:
    """What is wrong with the store at `path`, which stays as it is."""
    folder = _folder(path)
    problems: list[Problem] = []
    conversations = kept = lost = 0
    for _, file in folder.files():
        log = _scan(file, problems)
        if log is None:
            continue
        bad = _bad(file, log)
        count = sum(map(len, bad.values()))
        conversations += 1
        lost += count
        kept += log.records - count
        problems += _problems(file, log, bad)
        problems += _blob_problems(folder, file, log)
    side = Side(folder.side)
    side.refresh()
    problems += [
        Problem(where=side.path.name, what=what, action="what it said is lost") for what in side.problems
    ]
    if disk.pending(folder.side / "store.intent"):
        what = "a batch over several files was begun and not completed"
        problems.append(
            Problem(where="store.intent", what=what, action="completed, or dropped where it is torn")
        )
    return Report(
        kind=KIND, path=str(path), conversations=conversations, kept=kept, lost=lost, problems=tuple(problems)
    )


def repair(path: Path, target: Path) -> Report:
    """A clean copy at `target`. What cannot be read is put aside there, in files named `.torn-<n>`."""
    _free(target)
    report = check(path)
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("store.lock", "owners.lock", "*.tmp"))
    with _opened(target) as gate:
        for _, file in gate.folder.files():
            _rebuild(file)
        gate.side.compact()
    found = check(target)
    return Report(
        kind=KIND,
        path=str(path),
        conversations=found.conversations,
        kept=found.kept,
        lost=report.lost,
        problems=report.problems,
        written=str(target),
    )


def backup(path: Path, target: Path, progress: Progress | None = None) -> Report:
    """A copy of all whole batches at one moment. Others may write meanwhile; they wait for that moment only."""
    source = _folder(path)
    _free(target)
    disk.make_folder(target)
    with _moment(source):
        sizes = {file: (os.stat(file).st_ino, os.stat(file).st_size) for _, file in source.files()}
        for name in ("store.log", "store.intent"):
            if (source.side / name).exists():
                shutil.copyfile(source.side / name, target / name)
    for done, (file, (inode, size)) in enumerate(sizes.items(), 1):
        _copy(file, target / file.name, inode, size)
        if progress is not None:
            progress(done, len(sizes))
    if (source.side / "blobs").exists():
        shutil.copytree(source.side / "blobs", target / "blobs", copy_function=_copy_blob)
    with _opened(target) as gate:
        for _, file in gate.folder.files():
            _cut(file)
    found = check(target)
    return Report(
        kind=KIND,
        path=str(path),
        conversations=found.conversations,
        kept=found.kept,
        lost=found.lost,
        problems=found.problems,
        written=str(target),
    )


def _folder(path: Path) -> disk.Folder:
    if not path.is_dir():
        raise StoreNotFound(f"{path} is no JSONL store", hint="give the folder that holds the .jsonl files")
    return disk.Folder(path)


def _free(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidInput(f"{target} exists already", hint="choose a path where nothing stands")
    if target.is_dir():
        target.rmdir()


@contextmanager
def _opened(path: Path) -> Iterator[Gate]:
    """A copy of ours, with what was begun in it completed."""
    gate = Gate(Books(disk.Folder(path), []), Side(path))
    try:
        with gate.writing():
            yield gate
    finally:
        gate.close()


@contextmanager
def _moment(folder: disk.Folder) -> Iterator[None]:
    """While nobody writes; where we may not write either, nobody is kept from it."""
    turn = disk.Turn(folder.side / "store.lock")
    if not os.access(folder.side, os.W_OK):
        yield
        return
    try:
        with turn.held():
            yield
    finally:
        turn.close()


def _scan(file: Path, problems: list[Problem]) -> Log | None:
    log = Log(ConversationId(_named(file)))
    try:
        scan(log, file)
    except VersionTooNew as error:
        problems.append(Problem(where=file.name, what=error.message, action="left as it is"))
        return None
    if not is_ours(log) or (not log.batches and log.header is None and not log.tail):
        problems.append(
            Problem(where=file.name, what="this is no conversation of ours", action="left as it is")
        )
        return None
    return log


def _named(file: Path) -> str:
    """The conversation as its header names it; the file's name will do where there is none."""
    with file.open("rb") as lines:
        said = control_of(lines.readline(_PIECE))
    if isinstance(said, HeaderLine):
        return said.conversation
    return id_of(file.name) or file.name.removesuffix(SUFFIX)


def _bad(path: Path, log: Log) -> Bad:
    bad: Bad = {}
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for key, track in log.tracks.items():
            places = range(len(track.seqs))
            for place, data in zip(places, lines_of(file, track, places), strict=True):
                seq = track.seqs[place]
                try:
                    right = decode(record_of(data)).seq == seq
                except VersionTooNew:
                    right = True
                except RecordCorrupt:
                    right = False
                if not right:
                    bad.setdefault(key, {})[seq] = data
    finally:
        os.close(file)
    return bad


def _problems(file: Path, log: Log, bad: Bad) -> Iterator[Problem]:
    clean = "written anew, with all that can be read"
    for what in log.problems:
        yield Problem(where=file.name, what=what, action=clean)
    if log.header is None:
        yield Problem(where=file.name, what="the header cannot be read", action="written anew")
    if log.unended:
        yield Problem(where=file.name, what="the last line has no end", action="ended")
    if log.tail:
        size = os.stat(file).st_size - log.good
        what = f"{size} bytes at the end belong to a batch that was never committed"
        yield Problem(where=file.name, what=what, action="put aside")
    for lines in bad.values():
        for seq in sorted(lines):
            yield Problem(where=f"{file.name}:{seq}", what="the record cannot be read", action="put aside")


def _blob_problems(folder: disk.Folder, file: Path, log: Log) -> Iterator[Problem]:
    held = Blobs(folder.side, SYSTEM_CLOCK)
    for owners in log.blobs.values():
        for seq, refs in sorted(owners.items()):
            for ref in sorted(refs):
                try:
                    held.get(ref)
                except (BlobMissing, StoreCorrupt) as error:
                    action = "the record stays, without it"
                    yield Problem(where=f"{file.name}:{seq}", what=error.message, action=action)


def _rebuild(path: Path) -> None:
    """The file with all that can be read in it and nothing else; the rest is put aside."""
    log = _scan(path, [])
    if log is None:
        return
    bad = _bad(path, log)
    aside = [line for lines in bad.values() for line in lines.values()]
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        aside += [os.pread(file, size, at) for at, size in log.strays]
        aside += _pieces(file, log.good, os.fstat(file).st_size)
        log.strays = []
        draft = draft_of(log)
        for key, lines in bad.items():
            draft.erased[key] = dict.fromkeys(lines)
        disk.put_aside(path, aside)
        if log.batches:
            disk.replace(path, rebuilt(draft, file, log.commit))
        else:
            path.unlink()
    finally:
        os.close(file)


def _pieces(file: int, start: int, end: int) -> Iterator[bytes]:
    while start < end and (piece := os.pread(file, min(_PIECE, end - start), start)):
        yield piece
        start += len(piece)


def _copy(source: Path, target: Path, inode: int, size: int) -> None:
    """What stood in the file at the moment; one that was replaced since is taken as it is now."""
    try:
        file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # deleted since
    try:
        found = os.fstat(file)
        disk.write_new(target, _pieces(file, 0, size if found.st_ino == inode else found.st_size))
    finally:
        os.close(file)


def _copy_blob(source: str, target: str) -> None:
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        return  # erased since


def _cut(path: Path) -> None:
    log = _scan(path, [])
    if log is not None and log.tail:
        os.truncate(path, log.good)
