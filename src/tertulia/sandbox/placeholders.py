"""What stands on the host in the place of a protected path that is absent, while a command runs.

A mount needs something to stand on. The last command that uses it takes it away, and the next one what a crash left.
"""

import errno
import fcntl
import os
import stat

from ..records.errors import SandboxError
from .policy import START_UP_FILES

FILES = frozenset(
    {
        "config", "gitdir", "config.worktree", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".vault-token",
        ".git-credentials", "credentials", "credentials.toml", *START_UP_FILES,
    }
)  # fmt: skip
"""What programs would stumble over if it were a folder. Any other placeholder is one: `git add .` does not see it."""

MARK = 86_399
"""The time of change by which a placeholder is known, in seconds: no file that is in use bears it."""

SAME_FOLDER = b".\n"
"""What an absent `commondir` is taken for by git: an empty file there would break the repository meanwhile."""


def hold(path: str) -> int | None:
    """A descriptor that keeps the placeholder; None where the real one is there by now.

    PermissionError where none can be made: then a command cannot make anything there either.
    """
    for _ in range(8):
        try:
            descriptor = _create(path)
        except FileNotFoundError:
            continue  # another command took it away just now
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise PermissionError(path) from error
            raise SandboxError(f"{path} cannot be protected: {error}", hint="free some disk space") from error
        if descriptor is None or os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise SandboxError(f"{path} cannot be protected: it comes and goes", hint="try again")


def let_go(path: str, descriptor: int) -> None:
    """The last one to use it takes it away. What someone has put in its place stays."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found, held = os.lstat(path), os.fstat(descriptor)
        if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino) and is_placeholder(path):
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(path)
            else:
                os.unlink(path)
    except OSError:
        return  # in use by another command, replaced, or filled by someone on the host
    finally:
        os.close(descriptor)


def is_placeholder(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return int(found.st_mtime) == MARK and (stat.S_ISDIR(found.st_mode) or found.st_size <= len(SAME_FOLDER))


def _create(path: str) -> int | None:
    """A descriptor of the placeholder, new or found, under a shared lock; None when something else is there."""
    try:
        name = os.path.basename(path)
        if not _is_file(path):
            os.mkdir(path, 0o755)
        else:
            new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            if name == "commondir":
                os.write(new, SAME_FOLDER)
            os.close(new)
        os.utime(path, (MARK, MARK), follow_symlinks=False)
    except FileExistsError:
        if not is_placeholder(path):
            return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_file(path: str) -> bool:
    folder, name = os.path.split(path)
    if name == "commondir":  # read where there is a repository; a folder is not seen by `git add .`
        return os.path.lexists(os.path.join(folder, "HEAD"))
    return name in FILES or name.endswith("gitconfig")
