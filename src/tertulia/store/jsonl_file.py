"""One conversation's file as it stands on disk: what is in it, found by one pass over its lines.

Memory is a function of the file: after a write, what was written is read back. The pass decodes control lines only;
a record is found by its place after its `~append`, and decoded by those who read it. Where the lines do not add up
(a line was lost, split or inserted) the records of that batch say by themselves which they are.
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..records.errors import StoreCorrupt, VersionTooNew
from ..records.ids import ConversationId, SessionId
from ..transcript.path import BranchRow
from .base import ConversationRow
from .jsonl_lines import (
    COMMIT,
    CONTROL,
    FORMAT,
    RAW,
    VERSION,
    AppendLine,
    BlobsLine,
    BranchLine,
    CommitLine,
    Control,
    ConversationLine,
    HeaderLine,
    branch_of,
    control_of,
    is_object,
    row_of,
    seq_of,
)

BranchKey = tuple[str, int]
"""A conversation ("" for the file's own) and the number of a branch of it."""


LOST = SessionId("lost")
"""The session of a conversation whose file does not tell it any more. Any session may go on with it."""

_SEAL = 64


class Appended(NamedTuple):
    commit: int
    place: int
    branch: int
    first: int
    last: int


@dataclass
class Track:
    """Where the records of one branch stand in the file, in order of seq."""

    seqs: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    sizes: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, seq: int, offset: int, size: int) -> bool:
        if self.seqs and seq <= self.seqs[-1]:
            return False
        self.seqs.append(seq)
        self.offsets.append(offset)
        self.sizes.append(size)
        return True

    def has(self, seq: int) -> bool:
        return bool(self.between(seq - 1, seq))

    def between(self, after: int, until: int) -> range:
        start = bisect_right(self.seqs, after)
        return range(start, max(start, bisect_right(self.seqs, until)))


@dataclass
class Log:
    """What a file holds. `good` is where its last whole batch ends; what follows was never committed."""

    id: ConversationId
    stamp: tuple[int, int, int] = (0, 0, 0)  # inode, size, mtime
    good: int = 0
    header: HeaderLine | None = None
    row: ConversationRow | None = None
    row_at: int = 0
    branches: dict[int, BranchRow] = field(default_factory=dict)
    ancestors: dict[BranchKey, BranchRow] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)  # of the ancestors
    tracks: dict[BranchKey, Track] = field(default_factory=dict)
    blobs: dict[BranchKey, dict[int, frozenset[str]]] = field(default_factory=dict)
    appends: list[Appended] = field(default_factory=list)
    strays: list[tuple[int, int]] = field(default_factory=list)  # lines that are none of ours
    last: int = 0
    commit: int = 0
    batches: int = 0
    problems: list[str] = field(default_factory=list)
    seal: bytes = b""  # the last bytes before `good`: another file may get this one's inode
    tail: bytes = b""  # the beginning of what follows `good`
    unended: bool = False  # the last good line has no newline

    @property
    def records(self) -> int:
        return sum(len(track.seqs) for track in self.tracks.values())

    def track(self, key: BranchKey) -> Track:
        return self.tracks.setdefault(key, Track())

    @property
    def current(self) -> ConversationRow:
        """The row; where its line was lost, what the header says of it."""
        if self.row is not None:
            return self.row
        said = self.header
        if said is None:
            return ConversationRow(id=self.id, session=LOST)
        return ConversationRow(id=self.id, session=SessionId(said.session), created=said.created)


_Item = tuple[int, int, Control | None]  # offset, size, and what it says when it is a control line


class _Scan:
    """One pass over the lines from `log.good` on."""

    def __init__(self, log: Log, file: int) -> None:
        self.log = log
        self.file = file
        self.waiting: list[_Item] = []

    def run(self) -> None:
        log, offset = self.log, self.log.good
        with os.fdopen(os.dup(self.file), "rb") as lines:
            lines.seek(offset)
            for data in lines:
                size = len(data)
                if data.startswith(CONTROL) and not data.startswith(RAW):
                    self._control(offset, data)
                else:
                    self.waiting.append((offset, size, None))
                offset += size
        self._end(offset)
        found = os.fstat(self.file)
        log.stamp = (found.st_ino, found.st_size, found.st_mtime_ns)

    def _control(self, offset: int, data: bytes) -> None:
        said = control_of(data)
        if said is None and data[-1:] == b"\n" and data.startswith(COMMIT):
            self.log.problems.append(f"the commit line at byte {offset} is damaged")
            self._close(offset, CommitLine(commit=self.log.commit, lines=-1, bytes=0), offset + len(data))
        elif isinstance(said, CommitLine):
            self._close(offset, said, offset + len(data))
            self.log.unended = data[-1:] != b"\n"
        elif isinstance(said, HeaderLine) and offset == 0:
            _check_header(said)
            self.log.header, self.log.good = said, len(data)
        else:
            self.waiting.append((offset, len(data), said))

    def _close(self, offset: int, said: CommitLine, end: int) -> None:
        """A commit line: what waits and is closed by it becomes part of the log."""
        log, waiting = self.log, self.waiting
        start = len(waiting) - said.lines
        whole = said.lines >= 0 <= start and offset - said.bytes == (
            waiting[start][0] if said.lines else offset
        )
        if whole and not any(self._is_control(item) for item in waiting[:start]):
            log.strays += [(at, size) for at, size, _ in waiting[:start]]
            if start:
                log.problems.append(f"{start} lines at byte {waiting[0][0]} belong to no batch")
            waiting = waiting[start:]
        elif said.lines >= 0:
            log.problems.append(f"the batch that ends at byte {end} lost or won a line")
        commit = max(log.commit, said.commit)
        self._take(waiting, commit)
        log.commit = commit
        log.good = end
        log.batches += 1
        log.unended = False
        if log.row is not None and said.updated > log.row.updated:
            log.row = msgspec.structs.replace(log.row, updated=said.updated)
        self.waiting = []

    def _is_control(self, item: _Item) -> bool:
        return item[2] is not None or self._bytes(item)[: len(CONTROL)] == CONTROL

    def _bytes(self, item: _Item) -> bytes:
        return os.pread(self.file, item[1], item[0])

    def _take(self, items: list[_Item], commit: int) -> None:
        under: AppendLine | None = None
        run: list[_Item] = []
        for item in items:
            if item[2] is None:
                run.append(item)
                continue
            self._place(under, run)
            under, run = None, []
            if isinstance(item[2], AppendLine):
                under = item[2]
                _apply_append(self.log, under, commit)
            else:
                _apply(self.log, item[2], item[0])
        self._place(under, run)

    def _place(self, under: AppendLine | None, run: list[_Item]) -> None:
        """The record lines that follow an append."""
        if under is None:
            self._adopt(run)
            return
        seqs: Sequence[int] = range(under.first, under.last + 1) if under.seqs is None else under.seqs
        track = self.log.track((under.of, under.branch))
        if len(seqs) == len(run):
            for seq, (offset, size, _) in zip(seqs, run, strict=True):
                track.add(seq, offset, size)
            return
        self.log.problems.append(f"records {under.first} to {under.last}: {len(run)} lines for {len(seqs)}")
        self._match(track, seqs, run)

    def _match(self, track: Track, seqs: Sequence[int], run: list[_Item]) -> None:
        """Each line takes the seq it names; one that cannot be read takes what is missing, while it lasts."""
        names = [seq_of(self._bytes(item)) for item in run]
        missing = [seq for seq in seqs if seq not in set(names)]
        found: dict[int, _Item] = {}
        for name, item in zip(names, run, strict=True):
            if name is None and missing:
                found.setdefault(missing.pop(0), item)
            elif name is not None and name in seqs:
                found.setdefault(name, item)
            else:
                self.log.strays.append(item[:2])
        for seq, (offset, size, _) in sorted(found.items()):
            track.add(seq, offset, size)

    def _adopt(self, run: list[_Item]) -> None:
        """Records whose append line was lost go to the branch that was written last."""
        log = self.log
        branch = log.appends[-1].branch if log.appends else 0
        for item in run:
            seq = seq_of(self._bytes(item))
            if seq is not None and log.last < seq and log.track(("", branch)).add(seq, *item[:2]):
                log.last = seq
                log.appends.append(Appended(log.commit, 0, branch, seq, seq))
                _grow(log, branch, seq)
            else:
                log.strays.append(item[:2])
        if run:
            log.problems.append(f"{len(run)} lines at byte {run[0][0]} lost the line that says what they are")

    def _end(self, size: int) -> None:
        """What no commit closed: foreign lines stay, a torn batch is left out."""
        log, waiting = self.log, self.waiting
        torn = next((n for n, item in enumerate(waiting) if self._is_control(item)), len(waiting))
        if torn == len(waiting) and waiting:
            data = self._bytes(waiting[-1])
            if data[-1:] != b"\n" and not is_object(data):
                torn -= 1
        for item in waiting[:torn]:
            log.strays.append(item[:2])
            log.good = item[0] + item[1]
            log.unended = self._bytes(item)[-1:] != b"\n"
            log.problems.append(f"the line at byte {item[0]} belongs to no batch")
        log.seal = os.pread(self.file, min(_SEAL, log.good), max(0, log.good - _SEAL))
        log.tail = os.pread(self.file, min(size - log.good, 4096), log.good) if size > log.good else b""


def _check_header(said: HeaderLine) -> None:
    if said.format == FORMAT and said.version > VERSION:
        raise VersionTooNew("the file of this conversation", said.version, VERSION)


def _grow(log: Log, n: int, last: int) -> None:
    row = log.branches.get(n) or BranchRow(conversation=log.id, n=n)
    log.branches[n] = msgspec.structs.replace(row, last=max(row.last, last))


def _apply_append(log: Log, said: AppendLine, commit: int) -> None:
    if said.of:
        return
    _grow(log, said.branch, said.last if said.last >= said.first else 0)
    if said.totals is not None:
        log.branches[said.branch] = msgspec.structs.replace(log.branches[said.branch], totals=said.totals)
    log.last = max(log.last, said.last)
    if said.last >= said.first:
        log.appends.append(Appended(commit, said.place, said.branch, said.first, said.last))
    if log.row is not None and said.ts > log.row.updated:
        log.row = msgspec.structs.replace(log.row, updated=said.ts)


def _apply(log: Log, said: Control, offset: int) -> None:
    if isinstance(said, ConversationLine):
        log.row, log.row_at = row_of(log.id, said), offset
    elif isinstance(said, BranchLine):
        row = branch_of(log.id, said)
        if said.of:
            log.ancestors[said.of, said.n] = row
            log.sessions[said.of] = said.session
        else:
            log.branches[said.n] = row
            log.last = max(log.last, row.at, row.last)
    elif isinstance(said, BlobsLine):
        owned = log.blobs.setdefault((said.of, said.branch), {})
        owned[said.seq] = owned.get(said.seq, frozenset()) | frozenset(said.refs)


def scan(log: Log, path: Path) -> bool:
    """Brings the log up to the file's state; False when there is no such file, or no batch in it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        found = os.fstat(file)
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        known = log.stamp[0] == stamp[0]
        known = known and os.pread(file, len(log.seal), log.good - len(log.seal)) == log.seal
        if known and stamp == log.stamp:
            return log.batches > 0
        if not known or stamp[1] <= log.stamp[1] or log.unended:
            fresh = Log(log.id)
            log.__dict__.update(fresh.__dict__)
        _Scan(log, file).run()
    finally:
        os.close(file)
    return log.batches > 0


def lines_of(file: int, track: Track, places: Sequence[int]) -> Iterator[bytes]:
    """The lines of a track at these places (rising or falling), read in pieces where they lie together."""
    piece: list[int] = []
    low = high = 0
    for place in places:
        offset, end = track.offsets[place], track.offsets[place] + track.sizes[place]
        if piece and (max(high, end) - min(low, offset) > 1 << 20 or len(piece) >= 256):
            yield from _cut(file, track, piece, low, high)
            piece = []
        low, high = (min(low, offset), max(high, end)) if piece else (offset, end)
        piece.append(place)
    yield from _cut(file, track, piece, low, high)


def _cut(file: int, track: Track, piece: list[int], low: int, high: int) -> Iterator[bytes]:
    data = os.pread(file, high - low, low) if piece else b""
    for place in piece:
        start = track.offsets[place] - low
        yield data[start : start + track.sizes[place]]


def is_ours(log: Log) -> bool:
    """Whether the file may be written: it is empty, or something of it was written by us."""
    start = b'{"type":"~header"'
    began = log.good == 0 and (log.tail.startswith(start) or start.startswith(log.tail))
    return log.header is not None or log.batches > 0 or began


def not_ours(path: Path, log: Log) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path} is no conversation that tertulia wrote",
        hint="move it away, or choose another file; it was left as it is",
        conversation=log.id,
    )
