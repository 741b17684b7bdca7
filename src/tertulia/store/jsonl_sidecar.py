"""What stands beside the conversations: sessions, the inbox, client ids and grants, in one small log, `store.log`.

A line for each batch; now and then, and whenever a conversation is deleted, the log is replaced by what still
counts. The body of an item that was settled is overwritten in place, after its line of departure is durable, so that
it is gone without a rewrite. What other processes wrote is read before anything is decided.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..records.ids import ConversationId, ItemId, SessionId
from . import jsonl_disk as disk
from .base import ClientIdRow, DropInbox, GrantRow, InboxRow
from .order import rank

InboxKey = tuple[ConversationId, ItemId]
ClientKey = tuple[ConversationId, str]

_BODY = re.compile(rb'"body":"([A-Za-z0-9+/=]*)"')
_SEAL = 64
_SMALL = 64 * 1024
_NOTES_A_LINE = 200


class SessionNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`root` None: claimed, and never put (or deleted since); the epoch outlives everything."""

    id: SessionId
    root: ConversationId | None = None
    settings: dict[str, Any] = {}
    epoch: int = 0
    owner: int | None = None
    holder: str | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change; exactly one of these is set."""

    session: SessionNote | None = None
    inbox: InboxRow | None = None
    drop: DropInbox | None = None
    client: ClientIdRow | None = None
    grant: GrantRow | None = None
    ungrant: str | None = None
    gone: ConversationId | None = None
    arrived: tuple[ConversationId, int] | None = None
    mark: int | None = None


class _Line(msgspec.Struct, frozen=True):
    commit: int
    notes: tuple[Note, ...]


_decoder = msgspec.json.Decoder(_Line)


def encode(commit: int, notes: list[Note]) -> bytes:
    return msgspec.json.encode(_Line(commit, tuple(notes))) + b"\n"


class Tables:
    """What a lookup sees. A layer answers for what it holds and asks the one below for the rest; None is gone."""

    def __init__(self, below: "Tables | None" = None) -> None:
        self.below = below
        self.sessions: dict[SessionId, SessionNote | None] = {}
        self.inbox: dict[InboxKey, InboxRow | None] = {}
        self.clients: dict[ClientKey, ClientIdRow | None] = {}
        self.grants: dict[str, GrantRow | None] = {}
        self.arrived: dict[ConversationId, int] = {}
        self.gone: set[ConversationId] = set()  # of these, the layers below count no more
        self.notes: list[Note] = []

    def find(self, table: str, key: object) -> Any:
        layer: Tables | None = self
        while layer is not None:
            entries: dict[object, object] = getattr(layer, table)
            if key in entries:
                return entries[key]
            if layer.gone and table != "grants" and _conversation(key) in layer.gone:
                return None
            layer = layer.below
        return None

    def all_grants(self) -> dict[str, GrantRow]:
        found: dict[str, GrantRow | None] = {}
        if self.below is not None:
            found.update(self.below.all_grants())
        found.update(self.grants)
        return {id: row for id, row in found.items() if row is not None}

    def note(self, note: Note) -> None:
        self.notes.append(note)
        self.take(note)

    def take(self, note: Note) -> None:
        if note.inbox is not None:
            row = note.inbox
            self.inbox[row.conversation, row.item] = row
            arrived = self.find("arrived", row.conversation) or 0
            self.arrived[row.conversation] = max(arrived, row.n)
        elif note.drop is not None:
            self.inbox[note.drop.conversation, note.drop.item] = None
        elif note.client is not None:
            self.clients[note.client.conversation, note.client.client_id] = note.client
        elif note.session is not None:
            self.sessions[note.session.id] = note.session
        elif note.grant is not None:
            self.grants[note.grant.id] = note.grant
        elif note.ungrant is not None:
            self.grants[note.ungrant] = None
        elif note.gone is not None:
            self._drop(note.gone)
            self.gone.add(note.gone)
        elif note.arrived is not None:
            self.arrived[note.arrived[0]] = note.arrived[1]

    def _drop(self, conversation: ConversationId) -> None:
        """All that stands beside it, but for grants, which are dropped by name."""
        for key in [key for key in self.inbox if key[0] == conversation]:
            del self.inbox[key]
        for client in [client for client in self.clients if client[0] == conversation]:
            del self.clients[client]
        self.arrived.pop(conversation, None)

    def merge(self, above: "Tables") -> None:
        """Takes over what a layer above decided."""
        self.sessions.update(above.sessions)
        self.inbox.update(above.inbox)
        self.clients.update(above.clients)
        self.grants.update(above.grants)
        self.arrived.update(above.arrived)
        self.gone |= above.gone
        self.notes += above.notes


class Side(Tables):
    """The log as it stands on disk; `end` is where its last whole line ends."""

    def __init__(self, folder: Path, only: ConversationId | None = None) -> None:
        super().__init__()
        self.path = folder / "store.log"
        self._only = only
        self._reset()

    def _reset(self) -> None:
        super().__init__()
        self.waiting: dict[ConversationId, dict[ItemId, None]] = {}
        self.end = 0
        self.commit = 0
        self.mark = 0
        self.problems: list[str] = []
        self._inode = 0
        self._seal = b""  # the last bytes before `end`: another file may get this one's inode
        self._compact_at = _SMALL
        self._bodies: dict[InboxKey, tuple[int, int]] = {}
        self._stale: list[tuple[int, int]] = []

    def refresh(self) -> None:
        """Reads what was added since."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if self._inode:
                self._reset()
            return
        try:
            found = os.fstat(file)
            same = found.st_ino == self._inode and found.st_size >= self.end
            if not same or os.pread(file, len(self._seal), self.end - len(self._seal)) != self._seal:
                self._reset()
                self._inode = found.st_ino
            if found.st_size > self.end:
                with os.fdopen(os.dup(file), "rb") as lines:
                    lines.seek(self.end)
                    for data in lines:
                        self._line(data)
                self._seal = os.pread(file, min(_SEAL, self.end), max(0, self.end - _SEAL))
        finally:
            os.close(file)

    def _line(self, data: bytes) -> None:
        if data[-1:] != b"\n":
            return  # torn: never acknowledged, overwritten by the next
        start = self.end
        self.end += len(data)
        try:
            line = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.problems.append(f"the line at byte {start} of {self.path.name} cannot be read")
            return
        bodies = _BODY.finditer(data)
        for note in line.notes if self._only is None else [_renamed(note, self._only) for note in line.notes]:
            body = note.inbox.body if note.inbox is not None else note.grant and note.grant.body
            where = next(bodies, None) if body is not None else None
            self.take(note)
            self._index(note, None if where is None else (start + where.start(1), len(where[1])))
        self.commit = max(self.commit, line.commit)

    def _index(self, note: Note, body: tuple[int, int] | None) -> None:
        if note.inbox is not None:
            key = (note.inbox.conversation, note.inbox.item)
            self.waiting.setdefault(key[0], {})[key[1]] = None
            self._wipe_later(key)
            if body is not None:
                self._bodies[key] = body
        elif note.drop is not None:
            key = (note.drop.conversation, note.drop.item)
            self.inbox.pop(key, None)
            self.waiting.get(key[0], {}).pop(key[1], None)
            self._wipe_later(key)
        elif note.ungrant is not None:
            self.grants.pop(note.ungrant, None)
        elif note.gone is not None:
            self._forget(note.gone)
        elif note.mark is not None:
            self.mark = note.mark

    def _wipe_later(self, key: InboxKey) -> None:
        where = self._bodies.pop(key, None)
        if where is not None:
            self._stale.append(where)

    def _forget(self, conversation: ConversationId) -> None:
        for item in self.waiting.pop(conversation, {}):
            self._bodies.pop((conversation, item), None)
        self.gone.clear()
        self._compact_at = 0

    def items(self, conversation: ConversationId) -> list[InboxRow]:
        """In the order of the queue."""
        rows = [self.inbox[conversation, item] for item in self.waiting.get(conversation, {})]
        return sorted((row for row in rows if row is not None), key=rank)

    def tidy(self) -> None:
        """After a write, while the lock is held: wipes what has gone, and replaces the log when it has grown."""
        if self.end >= self._compact_at and self.end:
            self.compact()
        elif self._stale:
            self._wipe()

    def compact(self) -> None:
        disk.replace(self.path, self._snapshot())
        self.refresh()
        self._compact_at = max(_SMALL, 4 * self.end)

    def _wipe(self) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            for start, size in self._stale:
                # Still base64 of nothing in particular, so that the line can be read whatever happens meanwhile.
                old = os.pread(file, size, start)
                blank = b"A" * len(old.rstrip(b"=")) + b"=" * (len(old) - len(old.rstrip(b"=")))
                if old != blank:
                    os.pwrite(file, blank, start)
        finally:
            os.close(file)
        self._stale = []

    def _snapshot(self) -> Iterator[bytes]:
        notes = [Note(mark=self.mark)]
        notes += [Note(session=row) for row in self.sessions.values()]
        notes += [Note(arrived=(conversation, n)) for conversation, n in self.arrived.items()]
        notes += [Note(inbox=row) for row in self.inbox.values()]
        notes += [Note(client=row) for row in self.clients.values()]
        notes += [Note(grant=row) for row in self.grants.values()]
        for start in range(0, len(notes), _NOTES_A_LINE):
            yield encode(self.commit, notes[start : start + _NOTES_A_LINE])


def _renamed(note: Note, id: ConversationId) -> Note:
    """What stands beside the file of one conversation is its own, whatever id it had when this was written."""
    if note.inbox is not None:
        return Note(inbox=msgspec.structs.replace(note.inbox, conversation=id))
    if note.drop is not None:
        return Note(drop=msgspec.structs.replace(note.drop, conversation=id))
    if note.client is not None:
        return Note(client=msgspec.structs.replace(note.client, conversation=id))
    if note.arrived is not None:
        return Note(arrived=(id, note.arrived[1]))
    return note if note.gone is None else Note(gone=id)


def _conversation(key: object) -> object:
    return key[0] if isinstance(key, tuple) else key
