"""Changes of files: made when a file holds what is expected, shown as a diff; and contents that no store keeps."""

import difflib
import threading
import zlib

from ..records.errors import Conflict, NotFound
from .files import Files, Place

LARGEST = 16 * 1024 * 1024
"""Bytes of a file that is kept, to be shown and put back later."""

KEPT = 64 * 1024 * 1024
"""Bytes of contents in memory, compressed; the oldest are forgotten beyond that."""


class Changes:
    """`lock` keeps a file from being changed between reading and writing it; threads take it, the loop never does.

    The contents are those that a retention keeps out of the store: they end with the Session.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._contents: dict[str, bytes] = {}

    def keep(self, name: str, data: bytes) -> None:
        self._contents.pop(name, None)
        self._contents[name] = zlib.compress(data, 1)
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


def replace(files: Files, path: str, data: bytes | None, before: bytes | None) -> Place:
    """Let the file hold `data` (None: let there be none). Conflict when it does not hold `before`."""
    if content(files, path) != before:
        raise Conflict(f"{path} was changed by someone else just now", hint="read it again")
    if data is not None:
        return files.write(path, data)
    place = files.locate(path, write=True)
    if before is not None:
        files.remove(path)
    return place


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
