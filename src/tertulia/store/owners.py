"""Who is alive, told by byte locks in a sidecar file that the kernel drops when a process dies.

No lease to renew and no clock to trust: a stopped process still holds its byte, a killed one never does.
"""

import errno
import fcntl
import os
import random
import struct
import sys
import threading

from ..records.errors import StorageError, StoreReadOnly

OFD = sys.platform == "linux" and sys.maxsize > 2**32 and hasattr(fcntl, "F_OFD_SETLK")
"""Locks of an open file, not of a process: two openers of one process are told apart."""

_FLOCK = struct.Struct("@hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid (0 for these locks)
_BUSY = (errno.EACCES, errno.EAGAIN)


class Owners:
    """Which openers of a store are alive: each holds a byte of one file, and the kernel knows who does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Creates the file when it is missing. Where it cannot be written, `alive` still answers."""
        self._path = os.path.realpath(path)
        self._own: set[int] = set()
        self._pid = os.getpid()
        self._file = _open(self._path) if OFD else _shared_open(self._path)

    def join(self) -> int:
        """Takes a free random byte; this opener's number."""
        while True:
            number = random.SystemRandom().randrange(1, 2**62)
            if number not in self._own and _lock(self._file, number, self._path):
                self._own.add(number)
                if not OFD:
                    _process[self._path].held.add(number)
                return number

    def alive(self, number: int) -> bool:
        """Whether someone, ourselves included, holds that byte."""
        if number in self._own:
            return True
        if not OFD:
            return number in _process[self._path].held or _held_elsewhere(self._file, number)
        answer = fcntl.fcntl(
            self._file, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        )
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Gives all bytes back. In a forked child it only closes: the bytes are its parent's."""
        if self._file < 0:
            return
        file, self._file = self._file, -1
        ours = os.getpid() == self._pid
        if ours:
            for number in self._own:
                _unlock(file, number)
        if OFD:
            os.close(file)
        elif ours:
            _shared_close(self._path, self._own)
        self._own = set()


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreReadOnly(
            f"cannot create {path}: {error.strerror}", hint="make its folder writable"
        ) from error


def _lock(file: int, number: int, path: str) -> bool:
    try:
        if OFD:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
        else:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno == errno.EBADF:
            raise StoreReadOnly(f"cannot write {path}", hint="open it where it can be written") from error
        raise StorageError(f"cannot lock {path}: {error.strerror}", hint="use a local file system") from error
    return True


def _unlock(file: int, number: int) -> None:
    if OFD:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0))
    else:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number)


# ── without such locks ────────────────────────────────────────────────────────
# A process loses all its locks on a file when it closes any descriptor of it, so one process shares one.


class _Shared:
    def __init__(self, file: int) -> None:
        self.file = file
        self.users = 0
        self.held: set[int] = set()


_process: dict[str, _Shared] = {}
_process_lock = threading.Lock()


def _shared_open(path: str) -> int:
    with _process_lock:
        if path not in _process:
            _process[path] = _Shared(_open(path))
        _process[path].users += 1
        return _process[path].file


def _shared_close(path: str, numbers: set[int]) -> None:
    with _process_lock:
        shared = _process[path]
        shared.held -= numbers
        shared.users -= 1
        if not shared.users:
            os.close(shared.file)
            del _process[path]


def _held_elsewhere(file: int, number: int) -> bool:
    if not _lock(file, number, ""):
        return True
    fcntl.lockf(file, fcntl.LOCK_UN, 1, number)
    return False
