"""What commands may not change inside of the roots: the files that make the host run something later.

Each is mounted over, read-only. Where one is absent, an empty placeholder stands on the host while a command runs, as
a mount needs something to stand on; the last command that uses it takes it away, and the next one what a crash left.
"""

import os
from collections.abc import Iterable, Iterator

import msgspec

from ..records.errors import SandboxError
from .placeholders import hold, is_placeholder, let_go
from .policy import PROTECTED, START_UP_FILES, START_UP_FOLDERS, Bounds, inside
from .repository import is_part, kind_of, of_root


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
            let_go(path, descriptor)


def plan(bounds: Bounds) -> Plan:
    """Look at the disk as it is now. What it holds has to be released."""
    made = Plan(hidden=[path for path in (*bounds.denied, *bounds.store) if os.path.lexists(path)])
    made.opened = [path for path in opened(bounds) if os.path.realpath(path) == path and os.path.exists(path)]
    try:
        for path in guarded(bounds):
            _protect(made, bounds, path)
        # What is hidden by its name must not get another one with the folder that it is in.
        for path in (*bounds.denied, *filter(os.path.lexists, bounds.store)):
            if bounds.writing(path):
                _protect(made, bounds, path)
    except BaseException:
        made.release()
        raise
    return made


def guarded(bounds: Bounds) -> list[str]:
    """The protected paths in the roots, whether they are there or not."""
    found: list[str] = []
    for root in bounds.roots:
        found += of_root(root)
        found += [os.path.join(root, name) for name in PROTECTED if name != ".git"]
    kept = _kept(bounds, found)
    linked = [target for path in kept for target in _linked(path)]
    start_up = [os.path.join(bounds.home, name) for name in (*START_UP_FILES, *START_UP_FOLDERS)]
    return list(dict.fromkeys([*kept, *_kept(bounds, [*linked, *start_up])]))


def is_guarded(bounds: Bounds, real: str) -> bool:
    """Whether a file tool may not write here. Stricter than for commands: repositories below the roots count too."""
    if any(inside(real, place) for place in opened(bounds)):
        return False
    if any(inside(real, path) or inside(real, os.path.realpath(path)) for path in guarded(bounds)):
        return True
    root = bounds.writing(real)
    return root is not None and is_part(root, real)


def opened(bounds: Bounds) -> list[str]:
    """What the policy lets be written in spite of all this, as far as the roots go."""
    places = (*bounds.roots, bounds.home)
    names = map(os.path.expanduser, bounds.policy.writable)
    found = [os.path.join(place, name) for name in names for place in places]
    return [path for path in dict.fromkeys(found) if bounds.writing(path) and not bounds.hidden(path)]


def _kept(bounds: Bounds, paths: Iterable[str]) -> list[str]:
    """What of them lies in a root, and is not opened."""
    free = opened(bounds)
    return [
        path
        for path in paths
        if bounds.writing(path)
        and path not in bounds.roots
        and not any(inside(path, place) for place in free)
    ]


def _linked(path: str) -> Iterator[str]:
    """Where the links in a protected folder lead: what stands there is run, or read, in their place."""
    if kind_of(path) != "folder":
        return
    for folder, folders, names in os.walk(path):
        for entry in (os.path.join(folder, name) for name in (*folders, *names)):
            if kind_of(entry) == "link":
                target = os.path.normpath(os.path.join(folder, os.readlink(entry)))
                if not inside(target, path):
                    yield target


def _protect(made: Plan, bounds: Bounds, path: str) -> None:
    """Every folder on the way is fixed in its place; what is not there is held by a placeholder."""
    root = bounds.writing(path) or path
    step = root
    for name in path[len(root) :].strip("/").split("/"):
        step = os.path.join(step, name)
        kind = kind_of(step)
        if kind == "link":
            raise SandboxError(
                f"{step} is a symbolic link, which a command could replace",
                hint=f"make it a file or folder, or open it: Policy(writable=({os.path.relpath(step, root)!r},))",
            )
        if kind == "absent" or is_placeholder(step):
            _hold(made, step)
            return
        if step != path:
            made.fixed.append(step)
    made.read_only.append(path)


def _hold(made: Plan, path: str) -> None:
    if any(path == held for held, _ in made.held):
        return
    try:
        descriptor = hold(path)
    except PermissionError:
        return  # what we cannot create, the command cannot either
    if descriptor is not None:
        made.held.append((path, descriptor))
    made.read_only.append(path)
