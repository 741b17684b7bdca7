"""Which files of git repositories make the host run something, when somebody types `git status` there."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from .git_config import INCLUDES, line, of_user, settings

OF_A_REPOSITORY = ("config", "hooks", "commondir", "config.worktree")
OF_A_WORKTREE = ("commondir", "gitdir", "config.worktree")
FREE = ("info",)
"""What of a repository file tools may write: only commands, by git itself, have to do with the rest."""

PIECES = ("HEAD", "objects", "refs")
"""Without one of these a folder is no repository."""

HERE = b".\n"
DEPTH = 4  # of modules in modules


def of_root(root: str) -> Iterator[str]:
    """The parts of a root's repository that name programs. Where there is none yet, none can be made."""
    dot = os.path.join(root, ".git")
    kind = kind_of(dot)
    if kind not in ("folder", "file"):
        yield dot
        yield from _at(_top(root))
    yield from _at(root)
    if kind_of(os.path.join(root, "HEAD")) in ("file", "link"):  # it may be a repository itself
        yield from _repository(root, [root])


def is_bare(folder: str) -> bool:
    """Whether git takes the folder itself for a repository, as far as names tell: whatever else is in it."""
    head, *rest = (kind_of(os.path.join(folder, name)) for name in PIECES)
    return head in ("file", "link") and ("absent" not in rest or _leads_elsewhere(folder))


def _leads_elsewhere(folder: str) -> bool:
    """Whether `commondir` says where git finds the rest. A placeholder says that it is here, or nothing."""
    path = os.path.join(folder, "commondir")
    kind = kind_of(path)
    if kind != "file":
        return kind == "link"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return os.read(descriptor, len(HERE) + 1) not in (b"", HERE)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def unmake(folder: str) -> None:
    """A repository no more: git looks for the name."""
    head = os.path.join(folder, "HEAD")
    with contextlib.suppress(OSError):  # gone by itself, or it is what nobody here can change
        os.rename(head, f"{head}.{os.urandom(4).hex()}")


def is_part(root: str, real: str) -> bool:
    """Whether a path belongs to any repository below a root, or would make a folder one."""
    parts = os.path.relpath(real, root).split("/")
    if ".git" in parts:
        rest = parts[parts.index(".git") + 1 :]
        return not rest or rest[0] not in FREE
    if parts[-1] == "HEAD":
        return True
    folder = root
    for part in parts:
        if (
            part in (*OF_A_REPOSITORY, *PIECES, "modules", "worktrees")
            and kind_of(os.path.join(folder, "HEAD")) != "absent"
        ):
            return True
        folder = os.path.join(folder, part)
    return False


def kind_of(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "absent"
    return "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


def _top(folder: str) -> str:
    """The work tree that a folder lies in, if it lies in any: what its config names may be in the folder."""
    while kind_of(os.path.join(folder, ".git")) == "absent" and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _at(top: str) -> Iterator[str]:
    """Of the repository whose work tree this is."""
    dot = os.path.join(top, ".git")
    kind = kind_of(dot)
    if kind == "folder":
        yield from _repository(dot, [top])
    elif kind == "file":
        yield dot
        folder = os.path.realpath(os.path.join(top, line(dot).removeprefix("gitdir:").strip()))
        yield from _repository(folder, [top])
        yield from (
            os.path.join(folder, name)
            for name in OF_A_WORKTREE
            if kind_of(os.path.join(folder, name)) == "file"
        )
        shared = line(os.path.join(folder, "commondir"))
        yield from _repository(os.path.realpath(os.path.join(folder, shared)), [top])


def _repository(folder: str, tops: Iterable[str], depth: int = 0) -> Iterator[str]:
    """Of one repository with these work trees, and of its submodules and linked worktrees."""
    yield from (os.path.join(folder, name) for name in OF_A_REPOSITORY)
    configs = [os.path.join(folder, "config"), os.path.join(folder, "config.worktree")]
    more: list[str] = []
    for entry in _folders(os.path.join(folder, "worktrees")):
        yield from (os.path.join(entry, name) for name in OF_A_WORKTREE)
        configs.append(os.path.join(entry, "config.worktree"))
        if tied := line(os.path.join(entry, "gitdir")):
            more.append(os.path.dirname(os.path.join(entry, tied)))
    found = [each for each in settings([*configs, *of_user()]) if each.value]
    more += [each.path(folder) for each in found if each.name == "core.worktree"]
    for top in map(os.path.realpath, more):
        yield from _tie(top)
    tops = dict.fromkeys([*tops, *more])
    paths = [each.included() for each in found if each.name in INCLUDES]
    paths += [each.path(top) for each in found if each.name == "core.hookspath" for top in tops]
    for path in paths:
        yield os.path.normpath(path)
        yield os.path.realpath(path)
    yield from _modules(os.path.join(folder, "modules"), depth)


def _tie(top: str) -> Iterator[str]:
    """What says where the repository of a further work tree is: `git status` in the root follows it."""
    dot = os.path.join(top, ".git")
    if kind_of(dot) == "folder":
        yield from (os.path.join(dot, name) for name in OF_A_REPOSITORY)
    elif kind_of(top) == "folder":
        yield dot


def _modules(folder: str, depth: int) -> Iterator[str]:
    if depth > DEPTH:
        return
    for entry in _folders(folder):
        if kind_of(os.path.join(entry, "HEAD")) != "absent":
            yield from _repository(entry, (), depth + 1)
        else:
            yield from _modules(entry, depth + 1)


def _folders(path: str) -> Iterator[str]:
    if kind_of(path) != "folder":
        return
    with os.scandir(path) as entries:
        yield from (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
