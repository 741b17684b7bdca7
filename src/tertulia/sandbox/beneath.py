"""Opening a path below a folder so that nothing on the way leads out of it, whatever changes meanwhile."""

import errno
import functools
import os
import stat
from typing import Any

OPENAT2 = 437
BENEATH, NO_SYMLINKS, NO_MAGIC = 0x08, 0x04, 0x02


def open_beneath(folder: int, path: str, flags: int) -> int:
    """A descriptor of `path` (without symbolic links on it) below the folder. OSError, ELOOP for a link.

    With openat2 where the kernel has it, else component by component.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    if has_openat2():
        return _openat2(folder, "/".join(parts) or ".", flags, BENEATH | NO_SYMLINKS | NO_MAGIC)
    return _step_by_step(folder, parts, flags)


def open_folder(path: str) -> int:
    """The folder that everything is relative to; its own path is real already."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@functools.cache
def has_openat2() -> bool:
    folder = open_folder("/")
    try:
        os.close(_openat2(folder, ".", os.O_PATH | os.O_CLOEXEC, BENEATH))
    except (OSError, AttributeError):
        return False
    finally:
        os.close(folder)
    return True


def _openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    import ctypes

    library = _library()
    how = (ctypes.c_uint64 * 3)(flags, 0, resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    opened = int(library.syscall(ctypes.c_long(OPENAT2), folder, os.fsencode(path), how, size))
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return opened


@functools.cache
def _library() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _step(here: int, part: str) -> int:
    try:
        return os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    except NotADirectoryError as error:
        if stat.S_ISLNK(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from error
        raise


def _step_by_step(folder: int, parts: list[str], flags: int) -> int:
    here = os.dup(folder)
    try:
        for part in parts[:-1]:
            below = _step(here, part)
            os.close(here)
            here = below
        opened = os.open(parts[-1] if parts else ".", flags, dir_fd=here)
    finally:
        os.close(here)
    if flags & os.O_PATH and stat.S_ISLNK(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), "/".join(parts))
    return opened
