"""Files as tools see them: inside of the roots, whatever a path says.

A path is resolved first, then opened from its root with no symbolic link allowed on the way: when something was swapped
in between, the opening fails. Writes replace a file as a whole.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ..records.errors import InvalidInput, NotFound, SandboxError
from .beneath import open_beneath, open_folder
from .policy import Bounds
from .protected import is_guarded

TRIES = 4
LARGEST = 256 * 1024 * 1024


class Place(msgspec.Struct, frozen=True):
    """Where a path really is: a folder that may be used, and the way from there."""

    root: str
    rest: str

    @property
    def real(self) -> str:
        return os.path.join(self.root, self.rest) if self.rest else self.root


class Files:
    """Without bounds everything may be read and written, as `sandbox="off"` says. Any thread may call."""

    def __init__(self, bounds: Bounds | None, cwd: str) -> None:
        self._bounds = bounds
        self.cwd = os.path.realpath(cwd)

    def locate(self, path: str, *, write: bool = False) -> Place:
        """SandboxError for what lies outside, is hidden, or (to be written) is protected."""
        if not path or "\0" in path:
            raise InvalidInput(f"{path!r} is no path", hint="give the path of a file or folder")
        real = _real(os.path.join(self.cwd, os.path.expanduser(path)), path)
        bounds = self._bounds
        if bounds is None:
            return Place("/", real.lstrip("/"))
        if bounds.hidden(real):
            raise SandboxError(f"{path} holds keys or settings that tools do not see")
        root = bounds.readable(real)
        if root is None:
            raise SandboxError(
                f"{path} is outside of the folders that this session may use",
                hint="they are " + ", ".join((*bounds.roots, *bounds.read_only)),
            )
        if write and root not in bounds.roots:
            raise SandboxError(f"{path} may be read only")
        if write and is_guarded(bounds, real):
            raise SandboxError(
                f"{path} is protected: the host would run what stands there",
                hint="a person can open it with Policy(writable=…)",
            )
        return Place(root, os.path.relpath(real, root) if real != root else "")

    def shown(self, place: Place) -> str:
        """The path as a model is told it: relative to cwd where it is below."""
        real = place.real
        return os.path.relpath(real, self.cwd) if (real + "/").startswith(self.cwd + "/") else real

    def hidden(self, real: str) -> bool:
        return self._bounds is not None and self._bounds.hidden(real)

    def read(self, path: str, limit: int = LARGEST) -> bytes:
        """The whole of a file; InvalidInput when it is larger than the limit, or no file."""
        with self.opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise InvalidInput(f"{path} has {size:,} bytes; at most {limit:,} can be read at once")
            return read_all(descriptor, limit)

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """A descriptor of a regular file, to be read."""
        descriptor, _ = self._open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
                raise InvalidInput(f"{path} is {what}", hint="`list` shows what is in a folder")
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def folder(self, path: str) -> Iterator[tuple[int, Place]]:
        """A descriptor of a folder, to be listed, and where that very folder is: looked up again, it may be another."""
        descriptor, place = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield descriptor, place
        finally:
            os.close(descriptor)

    def write(self, path: str, data: bytes) -> Place:
        """Put the data in the place of what is there, all or nothing. Folders on the way are made."""
        for _ in range(TRIES):
            place = self.locate(path, write=True)
            folder, name = os.path.split(place.rest)
            if not name:
                raise InvalidInput(f"{path} is a folder")
            with contextlib.suppress(_Swapped), _named(path):
                parent = _make_folders(place.root, folder)
                try:
                    _replace(parent, name, data)
                finally:
                    os.close(parent)
                return place
        raise _unsteady(path)

    def remove(self, path: str) -> None:
        place = self.locate(path, write=True)
        folder, name = os.path.split(place.rest)
        with contextlib.suppress(_Swapped), _named(path), _root(place.root) as root:
            parent = open_beneath(root, folder, os.O_PATH | os.O_DIRECTORY)
            try:
                os.unlink(name, dir_fd=parent)
            finally:
                os.close(parent)
            return
        raise _unsteady(path)

    def _open(self, path: str, flags: int) -> tuple[int, Place]:
        for _ in range(TRIES):
            place = self.locate(path)
            with contextlib.suppress(_Swapped), _named(path), _root(place.root) as root:
                return open_beneath(root, place.rest, flags), place
        raise _unsteady(path)


class _Swapped(Exception):
    """A link stands where none was a moment ago."""


def _real(path: str, given: str) -> str:
    for _ in range(TRIES):
        with contextlib.suppress(OSError):  # it changed between two looks at it
            return os.path.realpath(path)
    raise _unsteady(given)


def _unsteady(path: str) -> SandboxError:
    return SandboxError(f"{path} is a loop of links, or changes while it is being opened")


def read_all(descriptor: int, limit: int) -> bytes:
    chunks, left = [], limit
    while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


@contextmanager
def _root(path: str) -> Iterator[int]:
    root = open_folder(path)
    try:
        yield root
    finally:
        os.close(root)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """What the system says, in words that name the path as it was given."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"there is no file or folder {path}", hint="`glob` finds files by name") from error
    except NotADirectoryError as error:
        raise InvalidInput(f"{path}: not a folder") from error
    except IsADirectoryError as error:
        raise InvalidInput(f"{path} is a folder") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EXDEV):
            raise _Swapped from error
        raise InvalidInput(f"{path}: {error.strerror}") from error


def _make_folders(root: str, folder: str) -> int:
    """The folder that a file goes into; each one made is opened without following links."""
    with _root(root) as start:
        here = os.dup(start)
    for name in folder.split("/") if folder else ():
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=here)
            below = open_beneath(here, name, os.O_PATH | os.O_DIRECTORY)
        finally:
            os.close(here)
        here = below
    return here


def _replace(parent: int, name: str, data: bytes) -> None:
    mode = _mode_of(parent, name)
    made = f".{name[:100]}.{os.urandom(6).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(made, flags, 0o666, dir_fd=parent)
    try:
        try:
            _write_all(descriptor, data)
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(made, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made, dir_fd=parent)
        raise


def _mode_of(parent: int, name: str) -> int | None:
    """The permissions that are kept; None for a new file."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", name)
    if not os.access(name, os.W_OK, dir_fd=parent):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), name)
    return stat.S_IMODE(found.st_mode)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
