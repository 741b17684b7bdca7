"""list, glob, grep: finding one's way. What .gitignore names is left out, as are the insides of .git."""

import os
import re
import stat
import time
from collections.abc import Callable, Iterator

from ...records.errors import InvalidInput
from ...sandbox.walk import Entry, walk
from ..base import tool
from ..context import ToolContext
from .ignore import Ignore
from .matching import Matcher
from .names import named

ENTRIES = 500
MATCHES = 200
LARGEST = 4 * 1024 * 1024
"""Larger files are not searched."""

SECONDS = 20.0
WIDTH = 400


def list_folder(context: ToolContext, path: str = ".", hidden: bool = False) -> str:
    """List a folder: folders end with a slash, files come with their size. `hidden` adds names with a dot in front."""
    found = []
    with context.sandbox.files.folder(path) as (descriptor, _), os.scandir(descriptor) as entries:
        for entry in entries:
            if hidden or not entry.name.startswith("."):
                found.append((not entry.is_dir(follow_symlinks=False), entry.name, _about(entry)))
    lines = [line for _, _, line in sorted(found)]
    return _joined(lines, ENTRIES) or f"{path} is empty"


def glob(pattern: str, context: ToolContext, path: str = ".") -> str:
    """Find files by name, the latest first: `*.py` in any folder, `src/**/*.py` below one."""
    fits = named(pattern)
    found = sorted(_files(context, path, fits), key=lambda entry: -entry.changed)
    return (
        _joined([os.path.normpath(os.path.join(path, entry.path)) for entry in found], ENTRIES)
        or "no file matches"
    )


def grep(
    pattern: str,
    context: ToolContext,
    path: str = ".",
    include: str = "*",
    ignore_case: bool = False,
    around: int = 0,
) -> str:
    """Search the contents of files for a regular expression (Python's). Answers with `file:line: text`.

    `path` is a folder or one file, `include` limits the names, `around` shows that many lines before and after.
    """
    flags = re.IGNORECASE if ignore_case else 0
    try:
        re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{pattern!r} is no regular expression: {error}") from error
    lines: list[str] = []
    left = MATCHES
    with Matcher(pattern, flags, SECONDS) as matcher:
        for name, data in _contents(context, path, named(include)):
            found = matcher.lines(data)
            lines += _shown(name, data.decode("utf-8", "replace").splitlines(), found[:left], max(around, 0))
            left -= len(found)
            if left <= 0 or matcher.late:
                lines.append("[there may be more: search a smaller folder, or for something rarer]")
                break
    return "\n".join(lines) or "no line matches"


def _contents(context: ToolContext, path: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    files = context.sandbox.files
    if not os.path.isdir(files.locate(path).real):
        yield path, files.read(path, LARGEST)
        return
    for entry in _files(context, path, fits):
        data = entry.read(LARGEST)
        if data is not None and b"\0" not in data[:8192]:
            yield os.path.normpath(os.path.join(path, entry.path)), data


def _files(context: ToolContext, path: str, fits: Callable[[str], bool]) -> Iterator[Entry]:
    files, until = context.sandbox.files, time.monotonic() + SECONDS
    with files.folder(path) as (folder, top):
        ignore = Ignore(files, top)

        def keep(folder: int, real: str, entry: "os.DirEntry[str]") -> bool:
            if time.monotonic() > until:
                raise InvalidInput("there is too much to look through", hint="search a smaller folder")
            return ignore.keep(folder, real, entry)

        yield from (entry for entry in walk(files, folder, top, keep) if fits(entry.path))


def _shown(name: str, lines: list[str], found: list[int], around: int) -> list[str]:
    wanted = {n for hit in found for n in range(max(hit - around, 0), min(hit + around + 1, len(lines)))}
    hits = set(found)
    return [f"{name}:{n + 1}{':' if n in hits else '-'} {_cut(lines[n])}" for n in sorted(wanted)]


def _about(entry: "os.DirEntry[str]") -> str:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return entry.name
    if stat.S_ISDIR(found.st_mode):
        return entry.name + "/"
    if stat.S_ISLNK(found.st_mode):
        return entry.name + " (link)"
    return f"{entry.name} ({found.st_size:,} bytes)"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[:WIDTH] + " […]"


def _joined(lines: list[str], most: int) -> str:
    more = [f"[{len(lines) - most} more]"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more])


LIST = tool(name="list")(list_folder)
GLOB = tool(glob)
GREP = tool(grep)
