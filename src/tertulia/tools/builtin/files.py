"""read, write, edit: one file each."""

import mimetypes
from typing import Any

from ...records.errors import Conflict, InvalidInput, NotFound
from ...records.parts import Data, Image, Text
from ...sandbox.changes import unified
from ..base import tool
from ..context import ToolContext

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
LARGEST = 16 * 1024 * 1024
LARGEST_IMAGE = 5 * 1024 * 1024
LINES = 2000
WIDTH = 2000
"""Characters of one line that are shown."""


def read(path: str, context: ToolContext, offset: int = 1, limit: int = LINES) -> Any:
    """Read a file. Text comes with line numbers: `limit` lines from line `offset` on. Images are shown as such."""
    if offset < 1 or limit < 1:
        raise InvalidInput("offset and limit count from 1")
    files = context.sandbox.files
    kind = mimetypes.guess_type(path)[0]
    if kind in IMAGES:
        return Image(media=kind, data=files.read(path, LARGEST_IMAGE), name=path)
    text = _text(files.read(path, LARGEST), path)
    lines = text.splitlines()
    if not lines:
        return f"{path} is empty"
    if offset > len(lines):
        raise InvalidInput(f"{path} has {len(lines)} lines; there is no line {offset}")
    shown = lines[offset - 1 : offset - 1 + limit]
    numbered = [f"{number:>6}\t{_cut(line)}" for number, line in enumerate(shown, offset)]
    left = len(lines) - (offset - 1) - len(shown)
    if left:
        numbered.append(f"[{left} more lines; go on with offset={offset + len(shown)}]")
    return "\n".join(numbered)


def write(path: str, content: str, context: ToolContext) -> list[Any]:
    """Write a file, whole: what was there is replaced. Folders on the way are made."""
    before = _before(context, path)
    return _put(context, path, before, content.encode("utf-8", "surrogateescape"))


def edit(path: str, old: str, new: str, context: ToolContext, replace_all: bool = False) -> list[Any]:
    """Replace a piece of text in a file.

    `old` must stand there exactly, with its spaces and line breaks, and once only unless `replace_all`.
    """
    if not old:
        raise InvalidInput("`old` is empty", hint="`write` makes a new file")
    if old == new:
        raise InvalidInput("`old` and `new` are the same: nothing would change")
    before = context.sandbox.files.read(path, LARGEST)
    text = _text(before, path)
    old, new = _as_in(text, old), _as_in(text, new)
    found = text.count(old)
    if not found:
        raise InvalidInput(f"`old` does not stand in {path}", hint="read the file again, and copy it exactly")
    if found > 1 and not replace_all:
        raise InvalidInput(
            f"`old` stands in {path} {found} times", hint="give more of the text around it, or replace_all"
        )
    return _put(context, path, before, text.replace(old, new).encode())


def _put(context: ToolContext, path: str, before: bytes | None, after: bytes) -> list[Any]:
    files, changes = context.sandbox.files, context.sandbox.changes
    if before is not None and files.read(path, LARGEST) != before:
        raise Conflict(f"{path} was changed by someone else just now", hint="read it again")
    place = files.write(path, after)
    changes.note(context.turn_id, place.real, before, after)
    shown = files.shown(place)
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


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[:WIDTH]} [… {len(line) - WIDTH} more characters]"


READ = tool(read)
WRITE = tool(ask=True)(write)
EDIT = tool(ask=True)(edit)
