"""The lines of a conversation's file, and the names of files.

A file is made of JSON objects, one a line. Record lines are exactly what `records.codec` made. Between them stand
control lines, whose type begins with `~`; a batch begins with one and is closed by `~commit`, which says how many
lines and bytes it closes. What no `~commit` closes was never committed.
"""

import hashlib
import re
from typing import Any

import msgspec

from ..records.ids import ConversationId, SessionId
from ..records.record import Totals
from ..transcript.path import BranchRow
from .base import ConversationRow

FORMAT = "tertulia.jsonl"
VERSION = 1
SUFFIX = ".jsonl"
CONTROL = b'{"type":"~'
COMMIT = b'{"type":"~commit"'
RAW = b'{"type":"~raw"'


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class HeaderLine(_Line, tag="~header", frozen=True, kw_only=True):
    """`inherits`: the conversations whose records stand in this file too, because it was forked from them."""

    format: str
    version: int
    conversation: str
    session: str = ""
    created: int = 0
    inherits: tuple[str, ...] = ()


class ConversationLine(_Line, tag="~conversation", frozen=True, kw_only=True):
    session: str
    active: int = 0
    title: str | None = None
    archived: bool = False
    parent: tuple[str, int] | None = None
    created: int = 0
    updated: int = 0
    settings: dict[str, Any] = {}


class BranchLine(_Line, tag="~branch", frozen=True, kw_only=True):
    """`of`: of which conversation (and which session's), where it is not this file's own."""

    n: int
    of: str = ""
    session: str = ""
    parent: tuple[str, int] | None = None
    at: int = 0
    last: int = 0
    base: Totals = Totals()
    totals: Totals = Totals()


class AppendLine(_Line, tag="~append", frozen=True, kw_only=True):
    """The record lines that follow are those of `seqs`; without it, of every seq from `first` to `last`.

    `place`: its place among the appends of its batch, which may be spread over several files.
    """

    branch: int
    first: int
    last: int
    of: str = ""
    seqs: tuple[int, ...] | None = None
    place: int = 0
    totals: Totals | None = None
    ts: int = 0


class BlobsLine(_Line, tag="~blobs", frozen=True, kw_only=True):
    branch: int
    seq: int
    refs: tuple[str, ...]
    of: str = ""


class RawLine(_Line, tag="~raw", frozen=True, kw_only=True):
    """A record whose bytes cannot stand on a line of their own."""

    seq: int
    data: bytes


class CommitLine(_Line, tag="~commit", frozen=True, kw_only=True):
    """`row` is where the last `~conversation` line begins, so that a list reads two lines and not the file."""

    commit: int
    lines: int
    bytes: int
    row: int = 0
    updated: int = 0


Control = HeaderLine | ConversationLine | BranchLine | AppendLine | BlobsLine | RawLine | CommitLine


class _Seq(msgspec.Struct):
    seq: int


_control: msgspec.json.Decoder[Control] = msgspec.json.Decoder(Control)
_seq = msgspec.json.Decoder(_Seq)
_encoder = msgspec.json.Encoder()


def line(control: Control) -> bytes:
    return _encoder.encode(control) + b"\n"


def control_of(data: bytes) -> Control | None:
    """None for what is no control line of this version."""
    try:
        return _control.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def seq_of(data: bytes) -> int | None:
    """The seq that a record line itself names."""
    try:
        return _seq.decode(data).seq
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def is_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def record_line(seq: int, data: bytes) -> bytes:
    if data[:1] == b"{" and data[-1:] == b"}" and b"\n" not in data and not data.startswith(CONTROL):
        return data + b"\n"
    return line(RawLine(seq=seq, data=data))


def record_of(data: bytes) -> bytes:
    """The record's bytes in a line of the file."""
    data = data.removesuffix(b"\n")
    if data.startswith(RAW) and isinstance(raw := control_of(data), RawLine):
        return raw.data
    return data


def row_line(row: ConversationRow) -> bytes:
    return line(
        ConversationLine(
            session=row.session,
            active=row.active,
            title=row.title,
            archived=row.archived,
            parent=row.parent,
            created=row.created,
            updated=row.updated,
            settings=row.settings,
        )
    )


def row_of(conversation: ConversationId, said: ConversationLine) -> ConversationRow:
    parent = None if said.parent is None else (ConversationId(said.parent[0]), said.parent[1])
    return ConversationRow(
        id=conversation,
        session=SessionId(said.session),
        active=said.active,
        title=said.title,
        archived=said.archived,
        parent=parent,
        created=said.created,
        updated=said.updated,
        settings=said.settings,
    )


def branch_line(row: BranchRow, own: str, session: str = "") -> bytes:
    """What belongs to the file's own conversation is written without its name: the file may be renamed."""
    parent = None
    if row.parent is not None:
        parent = ("" if row.parent[0] == own else str(row.parent[0]), row.parent[1])
    return line(
        BranchLine(
            n=row.n,
            of="" if row.conversation == own else row.conversation,
            session=session,
            parent=parent,
            at=row.at,
            last=row.last,
            base=row.base,
            totals=row.totals,
        )
    )


def branch_of(conversation: ConversationId, said: BranchLine) -> BranchRow:
    parent = None
    if said.parent is not None:
        parent = (ConversationId(said.parent[0]) if said.parent[0] else conversation, said.parent[1])
    return BranchRow(
        conversation=ConversationId(said.of) if said.of else conversation,
        n=said.n,
        parent=parent,
        at=said.at,
        last=said.last,
        base=said.base,
        totals=said.totals,
    )


# ── names ────────────────────────────────────────────────────────────────────
_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_UNSAFE_BYTE = re.compile(rb"[^A-Za-z0-9._-]")
_LONGEST = 120


def file_name(conversation: str) -> str:
    """The id verbatim where that is safe, else `%XX` for each unsafe byte, else a part of that and a digest.

    One-to-one: only encoded names hold a `%`, only digested ones a `%~`.
    """
    if _SAFE.fullmatch(conversation):
        return conversation + SUFFIX
    raw = conversation.encode("utf-8", "surrogatepass")
    name = _UNSAFE_BYTE.sub(lambda byte: b"%%%02X" % byte[0][0], raw).decode("ascii")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST or "%" not in name:
        name = f"{name[:60]}%~{hashlib.sha256(raw).hexdigest()}"
    return name + SUFFIX


def id_of(name: str) -> str | None:
    """The conversation in a file of this name; None when the name is a digest, or none of ours."""
    stem = name.removesuffix(SUFFIX)
    if "%~" in stem:
        return None
    raw = re.sub(
        rb"%([0-9A-F]{2})", lambda code: bytes([int(code[1], 16)]), stem.encode("utf-8", "surrogateescape")
    )
    try:
        conversation = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return conversation if conversation and file_name(conversation) == name else None
