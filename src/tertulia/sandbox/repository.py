"""Which files of git repositories make the host run something, when somebody types `git status` there."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator

OF_A_REPOSITORY = ("config", "hooks", "commondir", "config.worktree")
OF_A_WORKTREE = ("commondir", "gitdir", "config.worktree")
FREE = ("info",)
"""What of a repository file tools may write: only commands, by git itself, have to do with the rest."""

PIECES = ("HEAD", "objects", "refs")
"""Without one of these a folder is no repository."""

DEPTH = 4  # of modules in modules
SECTION = re.compile(r"[ \t]*\[[ \t]*([\w.-]+)[^\]\n]*\]")
SETTING = re.compile(r"[ \t]*(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$")


def of_root(root: str) -> Iterator[str]:
    """The parts of a root's repository that name programs. Where there is none yet, none can be made."""
    dot = os.path.join(root, ".git")
    kind = kind_of(dot)
    if kind == "folder":
        yield from _repository(dot)
    elif kind == "file":
        yield dot
        folder = os.path.realpath(os.path.join(root, _line(dot).removeprefix("gitdir:").strip()))
        yield from _repository(folder)
        yield from (
            os.path.join(folder, name)
            for name in OF_A_WORKTREE
            if kind_of(os.path.join(folder, name)) == "file"
        )
        shared = _line(os.path.join(folder, "commondir"))
        yield from _repository(os.path.realpath(os.path.join(folder, shared)))
    else:
        yield dot
    if kind_of(os.path.join(root, "HEAD")) in ("file", "link"):  # it may be a repository itself
        yield from _repository(root)


def is_bare(folder: str) -> bool:
    """Whether git takes the folder itself for a repository, as far as names tell: whatever else is in it."""
    head, *rest = (kind_of(os.path.join(folder, name)) for name in PIECES)
    return head in ("file", "link") and "absent" not in rest


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


def _repository(folder: str, depth: int = 0) -> Iterator[str]:
    """Of one repository, and of its submodules and linked worktrees."""
    yield from (os.path.join(folder, name) for name in OF_A_REPOSITORY)
    yield from _named(folder)
    for entry in _folders(os.path.join(folder, "worktrees")):
        yield from (os.path.join(entry, name) for name in OF_A_WORKTREE)
    yield from _modules(os.path.join(folder, "modules"), depth)


def _modules(folder: str, depth: int) -> Iterator[str]:
    if depth > DEPTH:
        return
    for entry in _folders(folder):
        if kind_of(os.path.join(entry, "HEAD")) != "absent":
            yield from _repository(entry, depth + 1)
        else:
            yield from _modules(entry, depth + 1)


def _named(folder: str) -> Iterator[str]:
    """Files and folders outside of the repository that its config takes settings or hooks from."""
    section = ""
    for line in _text(os.path.join(folder, "config")).splitlines():
        if head := SECTION.match(line):
            section, line = head[1].lower(), line[head.end() :]
        found = SETTING.match(line)
        name = (section, found[1].lower()) if found else None
        path = os.path.expanduser(found[2].strip('"')) if found else ""
        if path and name in (("include", "path"), ("includeif", "path")):
            yield os.path.normpath(os.path.join(folder, path))
        elif path and name == ("core", "hookspath"):  # counts from the top of the work tree
            yield os.path.normpath(os.path.join(os.path.dirname(folder), path))


def _folders(path: str) -> Iterator[str]:
    if kind_of(path) != "folder":
        return
    with os.scandir(path) as entries:
        yield from (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))


def _line(path: str) -> str:
    return _text(path).partition("\n")[0].strip()


def _text(path: str) -> str:
    """Nothing where there is none, or none that may be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
