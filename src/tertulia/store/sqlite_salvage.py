"""Rows of a damaged file, read page by page without its trees: what one bad page hides, the others still hold.

Erased rows do not come back: `secure_delete` left zeros where they stood.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from .sqlite_schema import APPLICATION, PAGE_SIZE, SEQ_BITS, VERSION

_LEAF = 0x0D
HEADER = 100
_MAGIC = b"SQLite format 3\0"


class Bytes(Protocol):
    """bytes, or a mapped file."""

    def __len__(self) -> int: ...

    def __getitem__(self, where: slice, /) -> bytes: ...


class Found(NamedTuple):
    """A row of a table (named by its shape), or, with `table` None, one that is damaged."""

    table: str | None
    key: int = 0
    values: tuple[Any, ...] = ()


class _Damaged(Exception):
    pass


def page_size(data: Bytes) -> int:
    size = int.from_bytes(data[16:18], "big")
    known = data[0:16] == _MAGIC and size >= 512 and not size & (size - 1)
    return size if known else PAGE_SIZE


def header(size: int) -> bytes:
    """The first bytes that a file of ours has; its counts of pages are left for SQLite to find out."""
    fields = struct.pack(">HBBBBBBIIII", size, 2, 2, 0, 64, 32, 32, 1, 0, 0, 0)
    more = struct.pack(">IIIIIIII", 1, 4, 0, 0, 1, VERSION, 0, APPLICATION)
    return (_MAGIC + fields + more).ljust(HEADER, b"\0")


def rows(data: Bytes) -> Iterator[Found]:
    size = page_size(data)
    for number in range(len(data) // size):
        start = number * size
        head = start + (HEADER if number == 0 else 0)
        if data[head : head + 1] == bytes([_LEAF]):
            yield from _page(data, size, start, head)


def _page(data: Bytes, size: int, start: int, head: int) -> Iterator[Found]:
    count = int.from_bytes(data[head + 3 : head + 5], "big")
    for index in range(count):
        pointer = head + 8 + 2 * index
        offset = int.from_bytes(data[pointer : pointer + 2], "big")
        if pointer + 2 > start + size or not head - start < offset < size:
            yield Found(None)
            return
        try:
            found = _row(*_cell(data, size, start + offset))
        except (_Damaged, struct.error, UnicodeDecodeError, IndexError):
            found = Found(None)
        if found is not None:
            yield found


def _cell(data: Bytes, size: int, at: int) -> tuple[int, list[Any]]:
    length, at = _varint(data, at)
    key, at = _varint(data, at)
    if length > len(data):
        raise _Damaged
    whole, least = size - 35, (size - 12) * 32 // 255 - 23
    local = length
    if length > whole:
        local = least + (length - least) % (size - 4)
        local = local if local <= whole else least
    parts = [data[at : at + local]]
    following = int.from_bytes(data[at + local : at + local + 4], "big") if local < length else 0
    missing = length - local
    while missing > 0:
        page = (following - 1) * size
        if following < 2 or page + size > len(data):
            raise _Damaged
        following = int.from_bytes(data[page : page + 4], "big")
        parts.append(data[page + 4 : page + 4 + min(missing, size - 4)])
        missing -= size - 4
    return key, _columns(b"".join(parts))


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    value = 0
    window = data[at : at + 9]
    for index in range(8):
        byte = window[index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | window[8], at + 9


_INTEGER = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def _columns(payload: bytes) -> list[Any]:
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != end or end > len(payload):
        raise _Damaged
    values: list[Any] = []
    for kind in kinds:
        width = _INTEGER.get(kind, 8 if kind == 7 else (kind - 12) // 2 if kind >= 12 else 0)
        part = payload[at : at + width]
        if len(part) < width or kind in (10, 11):
            raise _Damaged
        values.append(_value(kind, part))
        at += width
    if at != len(payload):
        raise _Damaged
    return values


def _value(kind: int, part: bytes) -> Any:
    if kind == 0:
        return None
    if kind in (8, 9):
        return kind - 8
    if kind == 7:
        return struct.unpack(">d", part)[0]
    if kind < 12:
        return int.from_bytes(part, "big", signed=True)
    return part.decode() if kind & 1 else part


# ── whose row it is ───────────────────────────────────────────────────────────

# One letter for each column behind the key: i integer, t text, b blob, n number; a capital may be NULL.
SHAPES = {
    "session": "tiITTB",
    "conversation": "tiiTiTIiibii",
    "branch": "iiTIIiiibb",
    "record": "b",
    "blob_data": "b",
    "change": "iiiii",
    "inbox": "ittBNtTi",
    "client": "itbTTb",
    "grants": "tTTIb",
    "blob": "tii",
    "owner": "ii",
}
_IS: dict[str, Callable[[Any], bool]] = {
    "i": lambda value: isinstance(value, int),
    "t": lambda value: isinstance(value, str),
    "b": lambda value: isinstance(value, bytes),
    "n": lambda value: isinstance(value, (int, float)),
}


def _row(key: int, values: list[Any]) -> Found | None:
    """None for rows of SQLite's own tables and of `counter`."""
    if not values or values[0] is not None:
        return None
    for table, shape in SHAPES.items():
        if len(shape) == len(values) - 1 and all(map(_fits, shape, values[1:])):
            if table == "record" and key >> SEQ_BITS == 0:
                table = "blob_data"
            return Found(table, key, tuple(values[1:]))
    return Found(None)


def _fits(letter: str, value: Any) -> bool:
    return (letter.isupper() and value is None) or _IS[letter.lower()](value)
