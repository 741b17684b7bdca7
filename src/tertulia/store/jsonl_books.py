"""What the store knows of its files: their logs (the last used ones), their rows for a list, and who inherits what.

All of it is a cache over the disk, checked against it on each use, since other processes write too.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..records.ids import ConversationId
from ..transcript.path import Segment
from .base import ConversationRow, Row
from .jsonl_disk import Folder
from .jsonl_file import Log, Track, is_ours, lines_of, scan
from .jsonl_lines import (
    COMMIT,
    VERSION,
    CommitLine,
    ConversationLine,
    HeaderLine,
    control_of,
    record_of,
    row_of,
)
from .report import Problem

_LOGS = 256
_TAIL = 4096


@dataclass(frozen=True)
class Peek:
    """A conversation as a list needs it, read from the two ends of its file."""

    row: ConversationRow
    commit: int
    path: Path


@dataclass
class _Known:
    stamp: tuple[int, int]  # inode, mtime
    id: ConversationId | None
    inherits: tuple[str, ...]


class Books:
    def __init__(self, folder: Folder, incidents: list[Problem]) -> None:
        self.folder = folder
        self.incidents = incidents
        self._logs: OrderedDict[ConversationId, Log] = OrderedDict()
        self._peeks: dict[Path, tuple[tuple[object, ...], Peek | None]] = {}
        self._known: dict[str, _Known] = {}
        self._listed = 0  # mtime of the folder when its names were last read

    def scanned(self, conversation: ConversationId) -> Log:
        """The log as it is on disk, also when there is nothing in it. Raises VersionTooNew."""
        log = self._logs.pop(conversation, None) or Log(conversation)
        self._logs[conversation] = log
        seen = 0 if log.stamp == (0, 0, 0) else len(log.problems)
        path = self.folder.file(conversation)
        if not scan(log, path) and log.stamp != (0, 0, 0) and not path.exists():
            log = self._logs[conversation] = Log(conversation)
        for what in log.problems[seen:]:
            self.report(path, what, "what can be read is read; `tertulia store repair` writes a clean copy")
        if len(self._logs) > _LOGS:
            self._logs.popitem(last=False)
        return log

    def log(self, conversation: ConversationId) -> Log | None:
        """None when there is no such conversation."""
        log = self.scanned(conversation)
        return log if log.batches else None

    def forget(self, conversation: ConversationId) -> None:
        self._logs.pop(conversation, None)

    def report(self, path: Path, what: str, action: str) -> None:
        problem = Problem(where=path.name, what=what, action=action)
        if problem not in self.incidents:
            self.incidents.append(problem)

    # ── lists ──

    def peeks(self) -> Iterator[Peek]:
        """Every conversation that can be read."""
        gone = set(self._peeks)
        for conversation, path in self.folder.files():
            gone.discard(path)
            peek = self._peek(conversation, path)
            if peek is not None:
                yield peek
        for path in gone:
            del self._peeks[path]

    def _peek(self, conversation: ConversationId | None, path: Path) -> Peek | None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            found = os.fstat(file)
            # The last bytes hold a commit number: a file that replaced this one within a tick of the clock differs.
            end = os.pread(file, 64, max(0, found.st_size - 64))
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns, end)
            known = self._peeks.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            header = _header(file)
            if header is not None and header.version > VERSION:
                return None
            if conversation is None:
                if header is None:
                    return None
                conversation = ConversationId(header.conversation)
            peek = _ends(file, found.st_size, conversation, path)
        finally:
            os.close(file)
        if peek is None:
            log = self.log(conversation)
            peek = None if log is None else Peek(log.current, log.commit, path)
        self._peeks[path] = (stamp, peek)
        return peek

    # ── forks ──

    def heirs(self, conversation: ConversationId) -> list[ConversationId]:
        """The conversations whose files hold records of this one."""
        self._read_names()
        return [
            known.id
            for known in self._known.values()
            if known.id is not None and conversation in known.inherits and known.id != conversation
        ]

    def _read_names(self) -> None:
        try:
            stamp = os.stat(self.folder.path).st_mtime_ns
        except FileNotFoundError:
            return
        if stamp == self._listed:
            return
        before, self._known = self._known, {}
        for conversation, path in self.folder.files():
            self._learn(conversation, path, before.get(path.name))
        self._listed = stamp

    def _learn(self, conversation: ConversationId | None, path: Path, before: _Known | None) -> None:
        try:
            found = os.stat(path)
            stamp = (found.st_ino, found.st_mtime_ns)
            if before is not None and before.stamp == stamp:
                self._known[path.name] = before
                return
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            header = _header(file)
        finally:
            os.close(file)
        if conversation is None and header is not None:
            conversation = ConversationId(header.conversation)
        self._known[path.name] = _Known(stamp, conversation, header.inherits if header else ())

    def unlist(self) -> None:
        """Another process wrote: its new files are to be looked for, however short ago they came."""
        self._listed = 0

    def wrote(self, conversations: list[ConversationId]) -> None:
        """After a write of ours under the lock: the names that it changed, so that they need not all be read."""
        if not self._listed or not conversations:
            return
        for conversation in conversations:
            path = self.folder.file(conversation)
            self._known.pop(path.name, None)
            if path.exists():
                self._learn(conversation, path, None)
        self._listed = os.stat(self.folder.path).st_mtime_ns

    def owned(self, refs: set[str]) -> set[str]:
        """Those of these blobs that a record in some file still owns. Looks at every file."""
        found: set[str] = set()
        for peek in self.peeks():
            log = self.log(peek.row.id)
            for owners in log.blobs.values() if log is not None else ():
                found.update(*(refs & names for names in owners.values()))
        return found

    def reached(self, path: Path) -> int:
        """The last commit in a file, for a recovery; 0 when there is no such file."""
        log = Log(ConversationId(""))
        return log.commit if scan(log, path) else 0

    # ── records ──

    def holder(self, segment: Segment, near: list[ConversationId]) -> tuple[Log, Track] | None:
        """The file to read it from: the reader's, which stands alone; else the conversation's own; else of those
        that inherited it the one with most."""
        key = (str(segment.conversation), segment.branch)
        reader = self._try(near[0])
        if reader is not None and key in reader.ancestors and reader.ancestors[key].last >= segment.until:
            return reader, reader.track(key)
        own = self._try(segment.conversation)
        if own is not None:
            return (own, own.track(("", segment.branch))) if segment.branch in own.branches else None
        best: Log | None = None
        for heir in [*near, *self.heirs(segment.conversation)]:
            log = self._try(heir)
            if log is None or key not in log.ancestors:
                continue
            if best is None or log.ancestors[key].last > best.ancestors[key].last:
                best = log
            if best.ancestors[key].last >= segment.until:
                break
        return None if best is None else (best, best.track(key))

    def _try(self, conversation: ConversationId) -> Log | None:
        try:
            return self.log(conversation)
        except LookupError:
            return None

    def read(self, path: list[Segment], after: int, limit: int, reverse: bool) -> list[Row]:
        rows: list[Row] = []
        near = list(dict.fromkeys(segment.conversation for segment in reversed(path)))
        for segment in reversed(path) if reverse else path:
            if len(rows) >= limit:
                break
            low, high = segment.after, segment.until
            if reverse and after:
                high = min(high, after - 1)
            elif not reverse:
                low = max(low, after)
            rows += self._segment(segment, near, (low, high), limit - len(rows), reverse)
        return rows

    def _segment(
        self, segment: Segment, near: list[ConversationId], span: tuple[int, int], room: int, reverse: bool
    ) -> list[Row]:
        for _ in range(5):
            found = self.holder(segment, near)
            if found is None:
                return []
            log, track = found
            places = track.between(*span)
            wanted = places[::-1][:room] if reverse else places[:room]
            file = os.open(self.folder.file(log.id), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if os.fstat(file).st_ino != log.stamp[0]:
                    continue  # replaced by another process since: look again
                lines = list(lines_of(file, track, wanted))
            finally:
                os.close(file)
            return [Row(track.seqs[n], record_of(data)) for n, data in zip(wanted, lines, strict=True)]
        return []


def _header(file: int) -> HeaderLine | None:
    data = os.pread(file, _TAIL, 0)
    end = data.find(b"\n")
    while end < 0 and len(data) < 1 << 20:
        more = os.pread(file, len(data), len(data))
        if not more:
            return None
        data += more
        end = data.find(b"\n")
    said = control_of(data[: end + 1])
    return said if isinstance(said, HeaderLine) else None


def _ends(file: int, size: int, conversation: ConversationId, path: Path) -> Peek | None:
    """By the last commit line and the row that it points to; None when they do not stand where they should."""
    data = os.pread(file, _TAIL, max(0, size - _TAIL))
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    if not data.startswith(COMMIT, start) or data[-1:] != b"\n":
        return None
    said = control_of(data[start:])
    if not isinstance(said, CommitLine):
        return None
    wanted = _TAIL
    while True:
        line = os.pread(file, wanted, said.row)
        end = line.find(b"\n")
        if end >= 0 or len(line) < wanted:
            break
        wanted *= 4
    row = control_of(line[: end + 1])
    if not isinstance(row, ConversationLine):
        return None
    found = row_of(conversation, row)
    updated = max(found.updated, said.updated)
    return Peek(msgspec.structs.replace(found, updated=updated), said.commit, path)


def foreign(log: Log, path: Path) -> bool:
    """Whether something that we did not write stands where the log should be."""
    return not is_ours(log) and path.exists()
