"""Who writes a Session: the epoch and the owner in its row, the owner's life in the sidecar file."""

import os
import socket
import threading
from datetime import UTC, datetime

from ..records.clock import Clock
from ..records.errors import SessionHeld, StoreCorrupt, StoreReadOnly
from ..records.ids import SessionId
from .base import Fence
from .owners import Owners
from .sqlite_tx import Tx


class Claims:
    """What one opener of the store holds. It takes its number when it first claims something."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._path = f"{name}-owners"
        self._clock = clock
        self._lock = threading.RLock()  # a forgotten store may be collected by the thread that holds it
        self._owners: Owners | None = None
        self._number: int | None = None

    def alive(self, number: int) -> bool:
        if number == self._number:
            return True
        try:
            return self._open().alive(number)
        except StoreReadOnly:  # no such file, and nobody can make it: nobody ever claimed here
            return False

    def close(self) -> None:
        """Frees all that was claimed: whose owner is not alive is free."""
        with self._lock:
            if self._owners is not None:
                self._owners.close()
            self._owners = self._number = None

    def _open(self) -> Owners:
        with self._lock:
            if self._owners is None:
                self._owners = Owners(self._path)
            return self._owners

    # ── jobs of the writer ──

    def claim(self, tx: Tx, session: SessionId) -> Fence:
        if self._number is None:
            self._number = self._open().join()
        row = tx.execute("SELECT epoch, owner, holder FROM session WHERE id = ?", (session,)).fetchone()
        if row is None:
            row = (0, None, None)
            tx.execute("INSERT INTO session (id, epoch) VALUES (?, 0)", (session,))
        epoch, owner, holder = row
        if owner is not None and not isinstance(owner, int):
            raise StoreCorrupt(f"the row of session {session} is damaged", hint="run `tertulia store check`")
        if owner is not None and owner != self._number and self.alive(owner):
            raise SessionHeld(session, holder or "another process")
        tx.execute(
            "UPDATE session SET epoch = ?, owner = ?, holder = ? WHERE id = ?",
            (epoch + 1, self._number, self._holder(), session),
        )
        tx.forget_session(session)
        return Fence(session=session, epoch=epoch + 1)

    def release(self, tx: Tx, fence: Fence) -> None:
        tx.execute(
            "UPDATE session SET owner = NULL, holder = NULL WHERE id = ? AND epoch = ? AND owner = ?",
            (fence.session, fence.epoch, self._number),
        )

    def _holder(self) -> str:
        since = datetime.fromtimestamp(self._clock.now() / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"process {os.getpid()} on {socket.gethostname()}, since {since}"
