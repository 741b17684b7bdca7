"""Files and folders under the JSONL store: where things stand, and the few ways in which they are written.

Every write ends in an fsync of the file and, where a name is new or gone, of its folder.
"""

import errno
import fcntl
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..records.errors import (
    ConversationNotFound,
    InvalidInput,
    StorageError,
    StoreFull,
    StoreReadOnly,
)
from ..records.ids import ConversationId
from .jsonl_lines import SUFFIX, file_name, id_of

PATIENCE = 10.0
"""Seconds that a write waits for another process to finish its own."""


class Folder:
    """A store that is a folder: a file for each conversation, and a few for what stands beside them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.side = path
        self.only: ConversationId | None = None  # the conversation whose file it is, where it is a file
        self.adopts = False
        """Whether a conversation may be given to another session: a file that someone brought may."""

    def file(self, conversation: str) -> Path:
        return self.path / file_name(conversation)

    def accepts(self, conversation: str) -> None:
        """Any id may be put here."""

    def files(self) -> Iterator[tuple[ConversationId | None, Path]]:
        """Each conversation's file; the id is None where the file's name does not tell it."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.path) if entry.name.endswith(SUFFIX))
        except FileNotFoundError:
            return
        for name in names:
            found = id_of(name)
            if found is not None or "%~" in name:
                yield (None if found is None else ConversationId(found)), self.path / name

    def leftovers(self) -> Iterator[Path]:
        """Files that were being written when their writer died."""
        yield from self.path.glob("*" + SUFFIX + ".tmp")


class OneFile(Folder):
    """A store that is one conversation's file, with a folder beside it for the rest."""

    def __init__(self, path: Path, conversation: ConversationId) -> None:
        super().__init__(path.parent)
        self.adopts = True
        self.only = conversation
        self._file = path
        self.side = path.with_name(path.name + ".side")

    def file(self, conversation: str) -> Path:
        if conversation != self.only:
            raise ConversationNotFound(f"{self._file} is the file of {self.only}", conversation=conversation)
        return self._file

    def accepts(self, conversation: str) -> None:
        if conversation != self.only:
            raise InvalidInput(
                f"{self._file} holds one conversation, {self.only}",
                hint="open a folder as the store to keep several",
            )

    def files(self) -> Iterator[tuple[ConversationId | None, Path]]:
        if self._file.exists():
            yield self.only, self._file

    def leftovers(self) -> Iterator[Path]:
        left = self._file.with_name(self._file.name + ".tmp")
        if left.exists():
            yield left


def failed(error: OSError, path: str | os.PathLike[str]) -> StorageError:
    """The typed form of what the operating system said."""
    what = f"cannot write {os.fspath(path)}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(what, hint="make room on the disk; nothing of this batch was written")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreReadOnly(what, hint="make it writable, or open another store; reading goes on")
    return StorageError(what, hint="nothing of this batch was written")


def write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def append(path: Path, at: int, data: bytes) -> None:
    """Writes at the end of what is good; whatever stood behind it goes. When this fails nothing was added."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        at = min(at, os.fstat(file).st_size)  # never a hole
        os.ftruncate(file, at)
        os.lseek(file, at, os.SEEK_SET)
        write_all(file, data)
        os.fdatasync(file)
    finally:
        os.close(file)


def write_new(path: Path, pieces: Iterable[bytes]) -> None:
    """A whole file under a name of its own, for `os.replace` to put in place."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            write_all(file, piece)
        os.fsync(file)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace(path: Path, pieces: Iterable[bytes]) -> None:
    """The file's new content, or its old one: nothing between."""
    fresh = path.with_name(path.name + ".tmp")
    write_new(fresh, pieces)
    os.replace(fresh, path)
    sync_folder(path.parent)


def put_aside(path: Path, pieces: list[bytes]) -> Path:
    """What cannot stay in a file goes to one beside it, named `.torn-<n>`; without content, nothing is written."""
    n = 1
    while (aside := path.with_name(f"{path.name}.torn-{n}")).exists():
        n += 1
    if pieces:
        write_new(aside, pieces)
    return aside


def make_folder(path: Path) -> None:
    """Creates it and its parents, so that they are there after a power failure."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


class Turn:
    """Who may write, over all processes, for as long as one group of commits takes; and the commit counter."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    @contextmanager
    def held(self) -> Iterator[None]:
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._take()
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take(self) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StorageError(
                        f"another process has been writing {self._path.parent} for {PATIENCE:.0f} s",
                        hint="see whether it is stopped, and try again",
                    ) from None
                time.sleep(0.001)

    def counter(self) -> int:
        """The last commit number given, as far as the machine remembers; only while held."""
        text = os.pread(self._file, 20, 0)
        return int(text) if text.strip().isdigit() else 0

    def count(self, number: int) -> None:
        os.pwrite(self._file, b"%020d" % number, 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# ── the intent: what a commit over several files is about to do ──────────────
class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Done unless the file has reached `commit`: `data` stands at `at`, or the file is replaced by `fresh`, or gone."""

    path: str
    commit: int
    at: int = 0
    data: bytes = b""
    fresh: str | None = None
    new: bool = False
    gone: bool = False


_steps = msgspec.json.Decoder(tuple[Step, ...])


def write_intent(path: Path, steps: tuple[Step, ...]) -> None:
    """The steps name their files by the way to them from here, so that a store can be moved."""
    near = tuple(_moved(step, lambda file: os.path.relpath(file, path.parent)) for step in steps)
    body = msgspec.json.encode(near)
    append(path, 0, b"%08x " % zlib.crc32(body) + body)


def read_intent(path: Path) -> tuple[Step, ...]:
    """What was about to be done; nothing when there is none, or when its writer died before it was complete."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    if len(data) < 10 or data[:9] != b"%08x " % zlib.crc32(data[9:]):
        return ()
    steps = _steps.decode(data[9:])
    return tuple(_moved(step, lambda file: os.path.normpath(path.parent / file)) for step in steps)


def _moved(step: Step, move: Callable[[str], str]) -> Step:
    fresh = None if step.fresh is None else move(step.fresh)
    return msgspec.structs.replace(step, path=move(step.path), fresh=fresh)


def clear_intent(path: Path) -> None:
    if path.exists():
        os.truncate(path, 0)


def pending(path: Path) -> bool:
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def do(step: Step) -> None:
    """Carries out one step; the caller has seen that the file has not reached it yet."""
    path = Path(step.path)
    if step.gone:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    elif step.fresh is not None:
        fresh = Path(step.fresh)
        if fresh.exists():
            os.replace(fresh, path)
            sync_folder(path.parent)
    else:
        new = not path.exists()
        append(path, step.at, step.data)
        if new:
            sync_folder(path.parent)
