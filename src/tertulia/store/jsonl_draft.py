"""What a batch is about to do to one conversation's file, and the bytes that this comes to."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from ..records.ids import ConversationId
from ..transcript.path import BranchRow
from .base import Append, ConversationRow
from .jsonl_file import BranchKey, Log, Track, lines_of
from .jsonl_lines import (
    FORMAT,
    VERSION,
    AppendLine,
    BlobsLine,
    CommitLine,
    HeaderLine,
    branch_line,
    line,
    record_line,
    row_line,
)

Records = list[tuple[int, bytes]]
"""Seqs, and the lines of these records."""


@dataclass
class Block:
    """An append of this batch, and the lines of its records."""

    said: AppendLine
    records: dict[int, bytes]

    def lines(self) -> list[bytes]:
        return block_lines(self.said, sorted(self.records.items()))


@dataclass
class Draft:
    """`parts` and what follows belong to the batch at hand; the rest is the file as it will be before it."""

    log: Log
    row: ConversationRow | None
    branches: dict[int, BranchRow]
    ancestors: dict[BranchKey, BranchRow]
    last: int
    at: int
    row_at: int
    commit: int
    parts: list[bytes | Block] = field(default_factory=list)
    sessions: dict[str, str] = field(default_factory=dict)
    owned: set[str] = field(default_factory=set)
    blobs: dict[BranchKey, dict[int, frozenset[str]]] = field(default_factory=dict)
    erased: dict[BranchKey, dict[int, bytes | None]] = field(default_factory=dict)
    row_part: int | None = None
    whole: bool = False
    gone: Log | None = None  # the conversation that was deleted, whether or not a new one follows

    @property
    def before(self) -> Log:
        """The file as it stands, also when it goes."""
        return self.gone if self.gone is not None else self.log

    @property
    def id(self) -> ConversationId:
        return self.log.id

    @property
    def new(self) -> bool:
        return self.at == 0

    @property
    def named(self) -> bool:
        """Whether writing it changes what stands under its name: a file comes, goes, or is replaced."""
        return self.whole or self.gone is not None or not self.log.batches

    def copy(self) -> "Draft":
        """For the next batch."""
        return Draft(
            self.log,
            self.row,
            dict(self.branches),
            dict(self.ancestors),
            self.last,
            self.at,
            self.row_at,
            self.commit,
            sessions=dict(self.sessions),
        )

    def put_row(self, row: ConversationRow) -> None:
        self.row = row
        self.row_part = len(self.parts)
        self.parts.append(row_line(row))

    def put_branch(self, row: BranchRow) -> None:
        self.branches[row.n] = row
        self.last = max(self.last, row.at)
        self.parts.append(branch_line(row, self.id))

    def append(self, op: Append, place: int) -> None:
        n, first, last = op.branch, op.first, op.last
        said = AppendLine(branch=n, first=first, last=last, place=place, totals=op.totals, ts=op.ts)
        self.parts.append(Block(said, {row.seq: record_line(row.seq, row.data) for row in op.rows}))
        before = self.branches[n]
        end = max(before.last, last) if last >= first else before.last
        self.branches[n] = msgspec.structs.replace(before, last=end, totals=op.totals)
        self.last = last
        if self.row is not None and op.ts > self.row.updated:
            self.row = msgspec.structs.replace(self.row, updated=op.ts)

    def add_blobs(self, key: BranchKey, seq: int, refs: tuple[str, ...]) -> None:
        owned = self.blobs.setdefault(key, {})
        owned[seq] = owned.get(seq, frozenset()) | frozenset(refs)
        self.owned.update(refs)
        self.parts.append(line(BlobsLine(branch=key[1], seq=seq, refs=refs, of=key[0])))

    def inherit(
        self, session: str, row: BranchRow, records: Records, blobs: dict[int, frozenset[str]]
    ) -> None:
        """A stretch of another conversation's branch, copied here."""
        key = (str(row.conversation), row.n)
        self.ancestors[key] = row
        self.sessions[key[0]] = session
        self.blobs.setdefault(key, {}).update(blobs)
        self.parts.append(branch_line(row, self.id, session))
        said = AppendLine(branch=row.n, first=row.at + 1, last=row.last, of=row.conversation)
        self.parts.append(Block(said, dict(records)))
        for seq, refs in sorted(blobs.items()):
            self.parts.append(
                line(BlobsLine(branch=row.n, seq=seq, refs=tuple(sorted(refs)), of=row.conversation))
            )

    def pending(self, key: BranchKey) -> Iterator[Block]:
        for part in self.parts:
            if isinstance(part, Block) and (part.said.of, part.said.branch) == key:
                yield part

    def rewrite(self, key: BranchKey, rows: Iterable[tuple[int, bytes]]) -> None:
        track = self.log.track(key)
        changes: dict[int, bytes | None] = {}
        for seq, data in rows:
            if track.has(seq):
                changes[seq] = data
            for block in self.pending(key):
                if seq in block.records:
                    block.records[seq] = record_line(seq, data)
        if changes:
            self._erase(key, changes)

    def drop_range(self, key: BranchKey, first: int, through: int, tombstone: bytes) -> None:
        for block in self.pending(key):
            for seq in [seq for seq in block.records if first <= seq <= through]:
                del block.records[seq]
            if block.said.first <= first <= block.said.last:
                block.records[first] = record_line(first, tombstone)
        track = self.log.track(key)
        changes: dict[int, bytes | None] = {track.seqs[n]: None for n in track.between(first - 1, through)}
        self._erase(key, {**changes, first: tombstone})

    def _erase(self, key: BranchKey, changes: dict[int, bytes | None]) -> None:
        """Records of the file get other bytes, or (None) go; their blobs go in any case."""
        self.erased.setdefault(key, {}).update(changes)
        self.whole = self.whole or bool(self.log.batches)

    def disowned(self) -> set[str]:
        """The blobs that this batch takes from their owners here."""
        refs: set[str] = set()
        for key, owned in self.before.blobs.items():
            gone = self.erased.get(key, {})
            for seq, names in owned.items():
                if self.gone is not None or seq in gone:
                    refs |= names
        return refs

    def batch(self, commit: int) -> bytes:
        """The lines of the batch, closed; moves on to where the next one will begin."""
        prefix = b""
        if self.new:
            prefix = self.header()
        elif self.log.unended and self.at == self.log.good:
            prefix = b"\n"
        lines: list[bytes] = []
        for n, part in enumerate(self.parts):
            if n == self.row_part:
                self.row_at = self.at + len(prefix) + sum(map(len, lines))
            lines += part.lines() if isinstance(part, Block) else [part]
        body = b"".join(lines)
        data = prefix + body + self.close(commit, len(lines), len(body))
        self.at += len(data)
        self.commit = commit
        return data

    def close(self, commit: int, lines: int, size: int) -> bytes:
        updated = self.row.updated if self.row is not None else 0
        return line(CommitLine(commit=commit, lines=lines, bytes=size, row=self.row_at, updated=updated))

    def header(self) -> bytes:
        row = self.row if self.row is not None else self.log.current
        inherits = tuple(dict.fromkeys(key[0] for key in self.ancestors))
        said = HeaderLine(
            format=FORMAT,
            version=VERSION,
            conversation=self.id,
            session=row.session,
            created=row.created,
            inherits=inherits,
        )
        return line(said)


def stretch(file: int, track: Track, after: int, until: int) -> Records:
    """The lines of the records with after < seq <= until."""
    places = track.between(after, until)
    return [
        (track.seqs[n], ended(data)) for n, data in zip(places, lines_of(file, track, places), strict=True)
    ]


def ended(data: bytes) -> bytes:
    return data if data[-1:] == b"\n" else data + b"\n"


def block_lines(said: AppendLine, records: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """An append line and its records; it names the seqs only where some are missing."""
    records = list(records)
    if len(records) != said.last - said.first + 1:
        said = msgspec.structs.replace(said, seqs=tuple(seq for seq, _ in records))
    return [line(said), *(data for _, data in records)]


def draft_of(log: Log) -> Draft:
    row = log.current if log.batches else None
    return Draft(
        log,
        row,
        dict(log.branches),
        dict(log.ancestors),
        log.last,
        log.good if log.batches else 0,
        log.row_at,
        log.commit,
        sessions=dict(log.sessions),
    )
