"""The files below a folder, for searching: no link is followed, and each folder is opened from the one above it."""

import os
from collections.abc import Callable, Iterator

import msgspec

from .files import Files, Place, read_all

DEEPEST = 100


class Entry(msgspec.Struct, frozen=True):
    """A regular file. It can be read until the walk goes on; `path` is relative to where the walk began."""

    path: str
    real: str
    changed: float
    folder: int
    name: str

    def read(self, limit: int) -> bytes | None:
        """Its content; None for one that is larger, gone, or may not be read."""
        return read_in(self.folder, self.name, limit)


def read_in(folder: int, name: str, limit: int) -> bytes | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        return read_all(descriptor, limit) if os.fstat(descriptor).st_size <= limit else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


Keep = Callable[[int, str, "os.DirEntry[str]"], bool]


def walk(files: Files, folder: int, top: Place, keep: Keep) -> Iterator[Entry]:
    """In order of name, from an open folder and the place that it is.

    `keep` is asked of every file and folder: with the open folder it is in, and its real path.
    """
    return _below(files, folder, top.real, "", keep)


def _below(files: Files, folder: int, real: str, path: str, keep: Keep) -> Iterator[Entry]:
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        inner, place = os.path.join(path, entry.name), os.path.join(real, entry.name)
        if files.hidden(place) or not keep(folder, place, entry):
            continue
        if entry.is_file(follow_symlinks=False):
            try:
                changed = entry.stat(follow_symlinks=False).st_mtime
            except FileNotFoundError:
                continue
            yield Entry(inner, place, changed, folder, entry.name)
        elif entry.is_dir(follow_symlinks=False) and path.count("/") < DEEPEST:
            try:
                below = os.open(entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except OSError:
                continue  # gone, swapped, or not for us
            try:
                yield from _below(files, below, place, inner, keep)
            finally:
                os.close(below)
