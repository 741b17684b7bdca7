"""Who writes which session: the epoch of its last claim, and the opener that made it, as the kernel knows it."""

import os
import socket
from pathlib import Path

import msgspec

from ..records.errors import SessionHeld, StorageError
from ..records.ids import SessionId
from .base import Fence
from .jsonl_gate import Gate
from .jsonl_sidecar import Note, SessionNote
from .owners import Owners

_local: dict[tuple[int, str], set[int]] = {}
"""By process and folder, which openers are its own: a second one in a process takes over from the first."""


class Claims:
    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.side = gate.side
        self._path: Path = gate.folder.side / "owners.lock"
        self._owners: Owners | None = None
        self._number: int | None = None
        self._claimed: dict[SessionId, Fence] = {}
        self._ours = _local.setdefault((os.getpid(), os.path.realpath(gate.folder.side)), set())

    def claim(self, session: SessionId) -> Fence:
        with self.gate.typed(), self.gate.writing():
            number = self._join()
            found: SessionNote = self.side.find("sessions", session) or SessionNote(id=session)
            if (other := self.elsewhere(session)) is not None:
                raise SessionHeld(session, other)
            holder = f"process {os.getpid()} on {socket.gethostname()}"
            claimed = msgspec.structs.replace(found, epoch=found.epoch + 1, owner=number, holder=holder)
            self.gate.note(Note(session=claimed))
            fence = Fence(session=session, epoch=claimed.epoch)
            self._claimed[session] = fence
            return fence

    def release(self, fence: Fence) -> None:
        self._claimed.pop(fence.session, None)
        with self.gate.typed(), self.gate.writing():
            found: SessionNote | None = self.side.find("sessions", fence.session)
            if found is not None and found.epoch == fence.epoch and found.owner == self._number:
                self.gate.note(Note(session=msgspec.structs.replace(found, owner=None, holder=None)))

    def holder(self, found: SessionNote) -> str | None:
        """Who writes it now, when someone living does."""
        if found.owner is None or not (self._owners or self._path.exists()):
            return None
        return (found.holder or "another process") if self._owned().alive(found.owner) else None

    def elsewhere(self, session: str) -> str | None:
        """Who else writes it now: another process, that lives."""
        found: SessionNote | None = self.side.find("sessions", session)
        if found is None or found.owner is None or found.owner in self._ours:
            return None
        return self.holder(found)

    def _owned(self) -> Owners:
        if self._owners is None:
            self._owners = Owners(self._path)
        return self._owners

    def _join(self) -> int:
        if self._number is None:
            self._number = self._owned().join()
            self._ours.add(self._number)
        return self._number

    def close(self) -> None:
        """Gives up what it holds. A claim that cannot be given back ends with this process's lock."""
        for fence in list(self._claimed.values()):
            try:
                self.release(fence)
            except StorageError:
                break
        if self._owners is not None:
            self._owners.close()
        self.gate.close()
