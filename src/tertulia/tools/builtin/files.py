"""read, write, edit: one file each."""

import mimetypes
from typing import Any

from ...records.errors import InvalidInput, NotFound
from ...records.parts import Data, Image, Text
from ...sandbox.changes import LARGEST, unified
from ...sandbox.files import Place
from ..base import tool
from ..context import OUTPUT, ToolContext

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
LARGEST_IMAGE = 5 * 1024 * 1024
LINES = 2000
WIDTH = 2000
"""Characters of one line that are shown."""

WIDE = 40_000
"""The same where one line is all that is asked for."""

ROOM = 200
"""Characters of a page for what is said of the rest."""


def read(path: str, context: ToolContext, offset: int = 1, limit: int = LINES, column: int = 1) -> Any:
    """Read a file. Text comes with line numbers: `limit` lines from line `offset` on. Images are shown as such.

    Where a result was cut, its end names the whole output: give that as `path`. Long lines are shown from character
    `column` on, 2000 of them; with limit=1 up to 40000.
    """
    if offset < 1 or limit < 1 or column < 1:
        raise InvalidInput("offset, limit and column count from 1")
    files = context.sandbox.files
    kind = mimetypes.guess_type(path)[0]
    if path.startswith(OUTPUT):
        data = context.portal.call(context.get_blob, path.removeprefix(OUTPUT))
    elif kind in IMAGES:
        return Image(media=kind, data=files.read(path, LARGEST_IMAGE), name=path)
    else:
        data = files.read(path, LARGEST)
    lines = _text(data, path).splitlines()
    if not lines:
        return f"{path} is empty"
    if offset > len(lines):
        raise InvalidInput(f"{path} has {len(lines)} lines; there is no line {offset}")
    return _page(lines, offset, limit, column, max(ROOM, context.max_output - ROOM))


def _page(lines: list[str], offset: int, limit: int, column: int, room: int) -> str:
    """As many lines as a result has room for, numbered, and how to go on."""
    width = min(WIDE if limit == 1 else WIDTH, room)
    shown: list[str] = []
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        text = f"{number:>6}\t{_cut(line, column - 1, width)}"
        room -= len(text) + 1
        if room < 0 and shown:
            break
        shown.append(text)
    left = len(lines) - (offset - 1) - len(shown)
    if left:
        shown.append(f"[{left} more lines; go on with offset={offset + len(shown)}]")
    return "\n".join(shown)


def write(path: str, content: str, context: ToolContext) -> list[Any]:
    """Write a file, whole: what was there is replaced. Folders on the way are made."""
    with context.sandbox.changes.lock:
        before, after = _before(context, path), content.encode("utf-8", "surrogateescape")
        place = context.portal.call(context.write_file, path, after, before)
    return _told(context, place, before, after)


def edit(path: str, old: str, new: str, context: ToolContext, replace_all: bool = False) -> list[Any]:
    """Replace a piece of text in a file.

    `old` must stand there exactly, with its spaces and line breaks, and once only unless `replace_all`.
    """
    if not old:
        raise InvalidInput("`old` is empty", hint="`write` makes a new file")
    if old == new:
        raise InvalidInput("`old` and `new` are the same: nothing would change")
    with context.sandbox.changes.lock:  # of two edits of one answer, the second finds what the first has made
        before = context.sandbox.files.read(path, LARGEST)
        text = _text(before, path)
        old, new = _as_in(text, old), _as_in(text, new)
        found = text.count(old)
        if not found:
            raise InvalidInput(
                f"`old` does not stand in {path}", hint="read the file again, and copy it exactly"
            )
        if found > 1 and not replace_all:
            raise InvalidInput(
                f"`old` stands in {path} {found} times",
                hint="give more of the text around it, or replace_all",
            )
        after = text.replace(old, new).encode()
        place = context.portal.call(context.write_file, path, after, before)
    return _told(context, place, before, after)


def _told(context: ToolContext, place: Place, before: bytes | None, after: bytes) -> list[Any]:
    """Called without the lock: a diff takes its time, and others want to write."""
    shown = context.sandbox.files.shown(place)
    what = "created" if before is None else "unchanged" if before == after else "changed"
    return [Text(text=f"{shown} {what}"), Data(name="diff", value=unified(shown, before, after))]


def _before(context: ToolContext, path: str) -> bytes | None:
    try:
        return context.sandbox.files.read(path, LARGEST)
    except NotFound:
        return None


def _text(data: bytes, path: str) -> str:
    if b"\0" in data[:8192]:
        raise InvalidInput(f"{path} is binary ({len(data):,} bytes), not text")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: byte {error.start} is {data[error.start]:#04x}") from error


def _as_in(text: str, piece: str) -> str:
    """A model writes \\n also where a file has \\r\\n."""
    windows = "\r\n" in text and "\r\n" not in piece and piece not in text
    return piece.replace("\n", "\r\n") if windows else piece


def _cut(line: str, start: int, width: int) -> str:
    left = len(line) - start - width
    more = f" [… {left} more characters; go on with column={start + width + 1}]" if left > 0 else ""
    return line[start : start + width] + more


READ = tool(read)
WRITE = tool(ask=True)(write)
EDIT = tool(ask=True)(edit)
