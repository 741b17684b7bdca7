"""What commands may not change inside of the roots: the files that make the host run something later.

Each is mounted over, read-only. Where one is absent, an empty placeholder stands on the host while a command runs, as
a mount needs something to stand on; the last command that uses it takes it away, and the next one what a crash left.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator

import msgspec

from ..records.errors import SandboxError
from .policy import PROTECTED, START_UP_FILES, Bounds, inside

FILES = frozenset(
    {
        ".mcp.json", ".envrc", "config", "commondir", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf",
        ".vault-token", ".git-credentials", "credentials", "credentials.toml",
        *(name for name in START_UP_FILES if not name.startswith(".config/")),
    }
)  # fmt: skip
"""What is a file where it is there; any other placeholder is a folder, which no program takes for a file."""

MARK = 86_399
"""The time of change by which a placeholder is known, in seconds: no file that is in use bears it."""

OF_A_REPOSITORY = ("config", "hooks", "commondir")
DEPTH = 4  # of modules in modules
SAME_FOLDER = b".\n"
"""What an absent `commondir` is taken for by git: an empty file there would break the repository meanwhile."""


class Plan(msgspec.Struct, kw_only=True):
    """How a command's file system differs from the host's. All paths are real."""

    fixed: list[str] = []  # stay writable, but cannot be renamed away with what is protected below them
    read_only: list[str] = []
    opened: list[str] = []  # writable inside of those
    hidden: list[str] = []
    held: list[tuple[str, int]] = []  # placeholders, with the descriptor that says that they are in use

    def release(self) -> None:
        held, self.held = self.held, []
        for path, descriptor in reversed(held):
            _let_go(path, descriptor)


def plan(bounds: Bounds) -> Plan:
    """Look at the disk as it is now. What it holds has to be released."""
    made = Plan(hidden=[path for path in (*bounds.denied, *bounds.store) if os.path.lexists(path)])
    made.opened = [path for path in opened(bounds) if os.path.realpath(path) == path and os.path.exists(path)]
    try:
        for path in guarded(bounds):
            _protect(made, bounds, path)
        for path in bounds.denied:
            if bounds.writing(path) and not os.path.lexists(path):
                _protect(made, bounds, path)
    except BaseException:
        made.release()
        raise
    return made


def guarded(bounds: Bounds) -> list[str]:
    """The protected paths in the roots, whether they are there or not."""
    found: list[str] = []
    for root in bounds.roots:
        found += _of_git(root)
        found += [os.path.join(root, name) for name in PROTECTED if name != ".git"]
    found += [os.path.join(bounds.home, name) for name in START_UP_FILES]
    free = opened(bounds)
    return [
        path
        for path in dict.fromkeys(found)
        if bounds.writing(path) and not any(inside(path, place) for place in free)
    ]


def is_guarded(bounds: Bounds, real: str) -> bool:
    """Whether a file tool may not write here. Stricter than for commands: repositories below the roots count too."""
    if any(inside(real, place) for place in opened(bounds)):
        return False
    if any(inside(real, path) for path in guarded(bounds)):
        return True
    root = bounds.writing(real)
    parts = real[len(root) :].split("/") if root else []
    if ".git" not in parts:
        return False
    rest = parts[parts.index(".git") + 1 :]
    return not rest or rest[0] in (*OF_A_REPOSITORY, "config.worktree", "modules")


def opened(bounds: Bounds) -> list[str]:
    """What the policy lets be written in spite of all this, as far as the roots go."""
    places = (*bounds.roots, bounds.home)
    names = map(os.path.expanduser, bounds.policy.writable)
    found = [os.path.join(place, name) for name in names for place in places]
    return [path for path in dict.fromkeys(found) if bounds.writing(path) and not bounds.hidden(path)]


def _of_git(root: str) -> Iterator[str]:
    """The parts of a root's repository that name programs. Where there is none yet, none can be made."""
    dot = os.path.join(root, ".git")
    kind = _kind(dot)
    if kind == "folder":
        yield from _repository(dot)
    elif kind == "file":
        yield dot
        folder = os.path.realpath(os.path.join(root, _line(dot).removeprefix("gitdir:").strip()))
        yield from _repository(folder)
        yield from _repository(
            os.path.realpath(os.path.join(folder, _line(os.path.join(folder, "commondir"))))
        )
    else:
        yield dot
        if _kind(os.path.join(root, "HEAD")) == "file":
            yield from _repository(root)  # a bare one


def _repository(folder: str, depth: int = 0) -> Iterator[str]:
    """Of one repository, and of those of its submodules."""
    for name in OF_A_REPOSITORY:
        yield os.path.join(folder, name)
    if _kind(os.path.join(folder, "config.worktree")) != "absent":
        yield os.path.join(folder, "config.worktree")
    modules = os.path.join(folder, "modules")
    if _kind(modules) == "folder" and depth < DEPTH:
        yield from _modules(modules, depth)


def _modules(folder: str, depth: int) -> Iterator[str]:
    for entry in os.scandir(folder):
        if not entry.is_dir(follow_symlinks=False):
            continue
        if _kind(os.path.join(entry.path, "HEAD")) == "file":
            yield from _repository(entry.path, depth + 1)
        elif depth < DEPTH:
            yield from _modules(entry.path, depth + 1)


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.readline(4096).strip()
    except OSError:
        return ""


def _kind(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "absent"
    return "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


def _protect(made: Plan, bounds: Bounds, path: str) -> None:
    """Every folder on the way is fixed in its place; what is not there is held by a placeholder."""
    root = bounds.writing(path) or path
    step = root
    for name in path[len(root) :].strip("/").split("/"):
        step = os.path.join(step, name)
        kind = _kind(step)
        if kind == "link":
            raise SandboxError(
                f"{step} is a symbolic link, which a command could replace",
                hint=f"make it a file or folder, or open it: Policy(writable=({os.path.relpath(step, root)!r},))",
            )
        if kind == "absent" or _ours(step):
            _hold(made, step)
            return
        if step != path:
            made.fixed.append(step)
    made.read_only.append(path)


def _hold(made: Plan, path: str) -> None:
    if any(path == held for held, _ in made.held):
        return
    folder = os.path.basename(path) not in FILES
    for _ in range(8):
        try:
            descriptor = _create(path, folder)
        except FileNotFoundError:
            continue  # another command took it away just now
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                return  # what we cannot create, the command cannot either
            raise SandboxError(f"{path} cannot be protected: {error}", hint="free some disk space") from error
        if descriptor is None:
            made.read_only.append(path)  # someone has created the real one
            return
        if os.fstat(descriptor).st_nlink:
            made.held.append((path, descriptor))
            made.read_only.append(path)
            return
        os.close(descriptor)
    raise SandboxError(f"{path} cannot be protected: it comes and goes", hint="try again")


def _create(path: str, folder: bool) -> int | None:
    """A descriptor of the placeholder, new or found, under a shared lock; None when something else is there."""
    try:
        if folder:
            os.mkdir(path, 0o755)
        else:
            new = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            if os.path.basename(path) == "commondir":
                os.write(new, SAME_FOLDER)
            os.close(new)
        os.utime(path, (MARK, MARK), follow_symlinks=False)
    except FileExistsError:
        if not _ours(path):
            return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return int(found.st_mtime) == MARK and (stat.S_ISDIR(found.st_mode) or found.st_size <= len(SAME_FOLDER))


def _let_go(path: str, descriptor: int) -> None:
    """The last one to use it takes it away. What someone has put in its place stays."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found, held = os.lstat(path), os.fstat(descriptor)
        if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino) and _ours(path):
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(path)
            else:
                os.unlink(path)
    except OSError:
        return  # in use by another command, replaced, or filled by someone on the host
    finally:
        os.close(descriptor)
