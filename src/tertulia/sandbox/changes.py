"""What a turn's file tools changed: shown as one diff, and taken back."""

import difflib
import threading
import zlib
from collections.abc import Iterable

from ..records.errors import Conflict, NotFound
from .files import Files

KEPT = 64 * 1024 * 1024
"""Bytes of before-images, compressed; the oldest turns are forgotten beyond that."""


class Image:
    """A file as it was; None when there was none."""

    def __init__(self, data: bytes | None) -> None:
        self._packed = None if data is None else zlib.compress(data, 1)
        self.size = len(self._packed or b"")

    @property
    def data(self) -> bytes | None:
        return None if self._packed is None else zlib.decompress(self._packed)


class Changes:
    """For each turn and file: the content before the first change and after the last. Kept in memory, not stored."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._turns: dict[str, dict[str, tuple[Image, Image]]] = {}
        self._lock = threading.Lock()

    def note(self, turn: str, real: str, before: bytes | None, after: bytes | None) -> None:
        with self._lock:
            files = self._turns.setdefault(turn, {})
            first = files[real][0] if real in files else Image(before)
            files[real] = (first, Image(after))
            self._forget(turn)

    def turns(self) -> list[str]:
        """The turns that changed something, in the order of their first change."""
        return list(self._turns)

    def diff(self, turn_id: str) -> str:
        """One unified diff of what the turn's file tools changed; what its commands wrote is not in it."""
        parts = [
            unified(self._shown(real), before.data, after.data)
            for real, (before, after) in sorted(self._of(turn_id).items())
        ]
        return "".join(parts)

    def rewind(self, turn_id: str) -> list[str]:
        """Put the turn's files back as they were before it; their paths. Conflict when one has changed since."""
        found = self._of(turn_id)
        changed = [real for real, (_, after) in found.items() if self._now(real) != after.data]
        if changed:
            raise Conflict(
                f"changed since turn {turn_id}: " + ", ".join(sorted(map(self._shown, changed))),
                hint="nothing was put back; rewind the later turns first, or keep the changes",
            )
        for real, (before, _) in found.items():
            data = before.data
            if data is not None:
                self._files.write(real, data)
            elif self._now(real) is not None:
                self._files.remove(real)
        with self._lock:
            self._turns.pop(turn_id, None)
        return sorted(map(self._shown, found))

    def _of(self, turn_id: str) -> dict[str, tuple[Image, Image]]:
        if turn_id not in self._turns:
            raise NotFound(
                f"no file changes of turn {turn_id} are known",
                hint="they are kept while the session is open, the latest first",
            )
        return dict(self._turns[turn_id])

    def _now(self, real: str) -> bytes | None:
        try:
            return self._files.read(real)
        except NotFound:
            return None

    def _shown(self, real: str) -> str:
        return self._files.shown(self._files.locate(real))

    def _forget(self, keep: str) -> None:
        while _size(self._turns.values()) > KEPT and next(iter(self._turns)) != keep:
            del self._turns[next(iter(self._turns))]


def _size(turns: Iterable[dict[str, tuple[Image, Image]]]) -> int:
    return sum(before.size + after.size for files in turns for before, after in files.values())


def unified(path: str, before: bytes | None, after: bytes | None) -> str:
    """As `git diff` would show it; a file that is no text in one line."""
    if before == after:
        return ""
    try:
        old, new = (before or b"").decode(), (after or b"").decode()
    except UnicodeDecodeError:
        return f"Binary file {path} changed\n"
    names = "/dev/null" if before is None else f"a/{path}", "/dev/null" if after is None else f"b/{path}"
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), *names)
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )
