"""Changes of files: made when a file holds what is expected, shown as a diff; and contents that no store keeps."""

import contextlib
import difflib
import io
import os
import threading
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from ..records.errors import Conflict, NotFound
from .files import Files, Place

LARGEST = 16 * 1024 * 1024
"""Bytes of a file that is kept, to be shown and put back later."""

KEPT = 64 * 1024 * 1024
"""Bytes of contents in memory, compressed; the oldest are forgotten beyond that."""

LINES = 200_000
"""Lines of both sides together that are compared, without those that are the same at either end."""

STEPS = 10_000_000
"""What a comparison may cost: about a second."""

WINDOWS = 1, 8
"""Lines that are looked for together, where a file is divided. Single ones may all recur, as in tables."""

AROUND = 3
"""Lines around a change that a diff shows."""

Match = tuple[int, int, int]
"""Lines that are the same: where they start before and after, and how many they are."""


class Changes:
    """`lock` keeps a file from being changed between reading and writing it; threads take it, the loop never does.

    `writing` does the same between the last look at a file and its replacement. It is taken after `lock`, and nobody
    who holds it waits for anything: `lock` is held by calls that wait for the loop.

    The contents are those that a retention keeps out of the store: they end with the Session.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.writing = threading.Lock()
        self._keeping = threading.Lock()
        self._contents: dict[str, bytes] = {}

    def keep(self, name: str, data: bytes) -> None:
        """Takes a while: for threads, as `get` is."""
        packed = zlib.compress(data, 1)
        with self._keeping:
            self._contents.pop(name, None)
            self._contents[name] = packed
            while sum(map(len, self._contents.values())) > KEPT and len(self._contents) > 1:
                del self._contents[next(iter(self._contents))]

    def get(self, name: str) -> bytes | None:
        packed = self._contents.get(name)
        return None if packed is None else zlib.decompress(packed)


def content(files: Files, path: str) -> bytes | None:
    """What the file holds; None when there is none."""
    try:
        return files.read(path)
    except NotFound:
        return None


def replace(
    files: Files, path: str, data: bytes | None, before: bytes | None, mode: int | None = None
) -> Place:  # fmt: skip
    """Let the file hold `data` (None: let there be none), with these permissions, else those that it has.

    Conflict when it does not hold `before`. Whoever calls holds `Changes.writing`.
    """
    if content(files, path) != before:
        raise Conflict(f"{path} was changed by someone else just now", hint="read it again")
    if data is not None:
        place = files.write(path, data)
        if mode is not None:
            with (
                files.opened(path) as descriptor,
                contextlib.suppress(OSError),
            ):  # some file systems have no modes
                os.fchmod(descriptor, mode)
        return place
    place = files.locate(path, write=True)
    if before is not None:
        files.remove(path)
    return place


def unified(path: str, before: bytes | None, after: bytes | None) -> str:
    """As `git diff` would show it; in one line what is no text, or too much.

    What it costs is bounded, whatever the lines are: of many lines, more may be shown as changed than were.
    """
    if before == after:
        return ""
    try:
        old, new = (before or b"").decode(), (after or b"").decode()
    except UnicodeDecodeError:
        return f"Binary file {path} changed\n"
    start, end = _same_ends(old, new)
    skipped = old.count("\n", 0, start)
    middles = old[start : len(old) - end], new[start : len(new) - end]
    if sum(each.count("\n") for each in middles) > LINES:
        counts = [each.count("\n") for each in (old, new)]
        return f"File {path} changed, in too many lines to be shown: it had {counts[0]:,}, and has {counts[1]:,}\n"
    names = "/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}"
    shown = "".join(_hunks(_lines(middles[0]), _lines(middles[1]), skipped))
    return f"--- {names[0]}\n+++ {names[1]}\n{shown}" if shown else ""


def _lines(text: str) -> list[str]:
    r"""Ended by \n and nothing else, as in every diff."""
    return io.StringIO(text, newline="\n").readlines()


def _same_ends(old: str, new: str) -> tuple[int, int]:
    """How much both have in common at the start and at the end, in whole lines, without those that are to be shown."""
    most = min(len(old), len(new))
    same = _largest(most, lambda low, high: old[low:high] == new[low:high])
    start = old.rfind("\n", 0, same) + 1
    for _ in range(AROUND):
        start = old.rfind("\n", 0, max(start - 1, 0)) + 1
    a, b = len(old), len(new)
    alike = _largest(most - same, lambda low, high: old[a - high : a - low] == new[b - high : b - low])
    end = a - alike
    for _ in range(AROUND + 1):
        end = old.find("\n", end) + 1 or a
    return start, a - end


def _largest(most: int, same: Callable[[int, int], bool]) -> int:
    """How far two texts are the same. It compares slices: one character after the other takes long."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if same(low, middle) else (low, middle - 1)
    return low


class _Matched(difflib.SequenceMatcher[str]):
    """Groups changes for a diff, by matches that are known."""

    def __init__(self, matches: list[Match]) -> None:
        super().__init__()
        self._matches = [difflib.Match(*each) for each in matches]

    def get_matching_blocks(self) -> list[difflib.Match]:
        return self._matches


def _hunks(old: list[str], new: list[str], skipped: int) -> Iterator[str]:
    matches = [*_matches(old, new), (len(old), len(new), 0)]
    for group in _Matched(matches).get_grouped_opcodes(AROUND):
        (_, a, _, b, _), (_, _, a_end, _, b_end) = group[0], group[-1]
        yield f"@@ -{_span(a + skipped, a_end - a)} +{_span(b + skipped, b_end - b)} @@\n"
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                yield from (_line(" ", line) for line in old[i:i_end])
            else:
                yield from (_line("-", line) for line in old[i:i_end])
                yield from (_line("+", line) for line in new[j:j_end])


def _span(start: int, count: int) -> str:
    """From the first line, counted from 1; when there is none, from the one before."""
    return f"{start + 1}" if count == 1 else f"{start + (count > 0)},{count}"


def _line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"


def _matches(old: list[str], new: list[str]) -> list[Match]:
    """Where comparing all lines with all would take long, what both have once divides them first.

    What then still would, between two of these, counts as changed.
    """
    found: list[Match] = []
    left, i, j = STEPS, 0, 0
    anchors: list[tuple[int, int]] = []
    if _steps(old, new) > STEPS:
        anchors = max((_anchors(_windows(old, size), _windows(new, size)) for size in WINDOWS), key=len)
    for a, b in (*anchors, (len(old), len(new))):
        steps = _steps(old[i:a], new[j:b])
        if 0 < steps <= left:
            left -= steps
            compared = difflib.SequenceMatcher(None, old[i:a], new[j:b]).get_matching_blocks()
            found += [(i + match.a, j + match.b, match.size) for match in compared]
        found.append((a, b, int(a < len(old))))
        i, j = a + 1, b + 1
    return _joined(found)


def _joined(matches: list[Match]) -> list[Match]:
    found: list[Match] = []
    for a, b, size in matches:
        if size and found and (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]) == (a, b):
            a, b, size = found[-1][0], found[-1][1], found.pop()[2] + size
        if size:
            found.append((a, b, size))
    return found


def _steps(old: list[str], new: list[str]) -> int:
    """What difflib takes at worst: one match found in each round, and all pairs looked at for it."""
    if not old or not new:
        return 0
    counts = Counter(new)
    return sum(counts[line] for line in old) * min(len(old), len(new))


def _windows(lines: list[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(lines[start:] for start in range(size)), strict=False))


def _anchors(old: list[tuple[str, ...]], new: list[tuple[str, ...]]) -> list[tuple[int, int]]:
    """Where what stands once in both does, as much as is in the same order: the longest rising sequence."""
    counts = Counter(old), Counter(new)
    place = {each: b for b, each in enumerate(new) if counts[1][each] == 1}
    ends: list[int] = []  # the lowest place at which a sequence of that length ends
    chains: list[tuple[int, int, int | None]] = []  # where before, where after, the link that comes first
    last: list[int] = []
    for a, each in enumerate(old):
        b = place.get(each)
        if b is not None and counts[0][each] == 1:
            at = bisect_left(ends, b)
            chains.append((a, b, last[at - 1] if at else None))
            ends[at : at + 1], last[at : at + 1] = [b], [len(chains) - 1]
    found, link = [], last[-1] if last else None
    while link is not None:
        a, b, link = chains[link]
        found.append((a, b))
    return found[::-1]
