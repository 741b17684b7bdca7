"""A conversation's file written anew: without what was erased, with everything else as it was."""

import os
from collections.abc import Iterator

from .jsonl_draft import Draft, Records, block_lines, ended, stretch
from .jsonl_file import BranchKey
from .jsonl_lines import AppendLine, BlobsLine, branch_line, line, record_line, row_line


def rebuilt(draft: Draft, file: int, commit: int) -> Iterator[bytes]:
    """The whole file, and after it the batch of the draft. `file` is open on what stands there now."""
    header = draft.header()
    yield header
    draft.at = len(header)
    for offset, size in draft.log.strays:
        data = ended(os.pread(file, size, offset))
        yield data
        draft.at += len(data)
    for number, lines in _batches(draft, file):
        if number == 0:
            draft.row_at = draft.at
        yield from lines
        size = sum(map(len, lines))
        closed = draft.close(number, len(lines), size)
        yield closed
        draft.at += size + len(closed)
    yield draft.batch(commit)


def _batches(draft: Draft, file: int) -> Iterator[tuple[int, list[bytes]]]:
    """First what the conversation is and what it inherited (as number 0), then its own appends."""
    log = draft.log
    own = [branch_line(row, draft.id) for _, row in sorted(log.branches.items())]
    yield 0, [row_line(log.current), *_inherited(draft, file), *own]
    lines: list[bytes] = []
    number = 0
    for commit, place, n, first, last in log.appends:
        if number not in (0, commit):
            yield number, lines
            lines = []
        number = commit
        records = _kept(draft, file, ("", n), first, last)
        lines += block_lines(AppendLine(branch=n, first=first, last=last, place=place), records)
        lines += _blobs(draft, ("", n), first, last)
    if lines:
        yield number, lines


def _inherited(draft: Draft, file: int) -> Iterator[bytes]:
    for key, row in draft.log.ancestors.items():
        yield branch_line(row, draft.id, draft.sessions.get(key[0], ""))
        said = AppendLine(branch=row.n, first=row.at + 1, last=row.last, of=key[0])
        yield from block_lines(said, _kept(draft, file, key, row.at + 1, row.last))
        yield from _blobs(draft, key, row.at + 1, row.last)


def _blobs(draft: Draft, key: BranchKey, first: int, last: int) -> Iterator[bytes]:
    gone = draft.erased.get(key, {})
    for seq, refs in sorted(draft.log.blobs.get(key, {}).items()):
        if first <= seq <= last and seq not in gone:
            yield line(BlobsLine(branch=key[1], seq=seq, refs=tuple(sorted(refs)), of=key[0]))


def _kept(draft: Draft, file: int, key: BranchKey, first: int, last: int) -> Records:
    changes = draft.erased.get(key, {})
    track = draft.log.track(key)
    kept = {seq: data for seq, data in stretch(file, track, first - 1, last) if seq not in changes}
    for seq, data in changes.items():
        if data is not None and first <= seq <= last:
            kept[seq] = record_line(seq, data)
    return sorted(kept.items())
