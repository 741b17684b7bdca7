"""What .gitignore files name, each for the folder that it is in and those below."""

import functools
import itertools
import os

import msgspec

from ...sandbox.files import Files, Place
from ...sandbox.policy import inside
from ...sandbox.walk import read_in
from .names import LONGEST, Pattern

NAME = ".gitignore"
LARGEST = 64 * 1024
ROOM = 256 * 1024  # for the files of a folder and of those above it, taken together
RULES = 2000  # of a file; what stands behind them is left out
KEPT = 8 * 1024  # characters of a file whose rules the next walk finds: rules take a hundred times that
NEVER = (".git", ".hg", ".svn", "__pycache__", "node_modules")


class Rule(msgspec.Struct, frozen=True):
    pattern: Pattern
    anchored: bool  # about the path from here; otherwise about names
    folders: bool
    ignores: bool


class Ignore:
    """For one walk. A folder's own file is read when the walk first asks about something in it."""

    def __init__(self, files: Files, top: Place) -> None:
        self._rules: dict[str, tuple[Rule, ...]] = {}
        self._sizes: dict[str, int] = {}
        above = [top.root, *(os.path.join(top.root, top.rest[:n]) for n in _slashes(top.rest))]
        for folder in above if top.rest else []:
            with files.folder(folder) as (descriptor, place):
                if place.real == folder:  # it was no link when the walk began
                    self._read(descriptor, folder)
        self._all = any(not self._keeps(path, True) for path in [*above[1:], top.real] if top.rest)

    def keep(self, folder: int, real: str, entry: "os.DirEntry[str]") -> bool:
        if self._all or entry.name in NEVER:
            return False
        above = os.path.dirname(real)
        if above not in self._rules:
            self._read(folder, above)
        return self._keeps(real, entry.is_dir(follow_symlinks=False))

    def _keeps(self, real: str, is_folder: bool) -> bool:
        """What the nearest file says, and the last rule in it."""
        below, name = real, os.path.basename(real)
        while (above := os.path.dirname(below)) in self._rules and above != below:
            path = real[len(above.rstrip("/")) + 1 :]
            for rule in reversed(self._rules[above]):
                if is_folder >= rule.folders and rule.pattern.fits(path if rule.anchored else name):
                    return not rule.ignores
            below = above
        return True

    def _read(self, folder: int, real: str) -> None:
        """The walk does not come back to folders that it has left."""
        for left in [path for path in self._rules if not inside(real, path)]:
            del self._rules[left], self._sizes[left]
        data = read_in(folder, NAME, min(LARGEST, ROOM - sum(self._sizes.values()))) or b""
        self._sizes[real] = len(data)
        self._rules[real] = _rules(data.decode("utf-8-sig", "replace")) if data else ()


def _slashes(path: str) -> list[int]:
    return [place for place, char in enumerate(path) if char == "/"]


def _rules(text: str) -> tuple[Rule, ...]:
    return _parsed(text) if len(text) > KEPT else _known(text)


@functools.lru_cache(16)
def _known(text: str) -> tuple[Rule, ...]:
    return _parsed(text)


def _parsed(text: str) -> tuple[Rule, ...]:
    found = (_rule(line.removesuffix("\r")) for line in text.split("\n") if len(line) <= LONGEST)
    return tuple(itertools.islice((rule for rule in found if rule is not None), RULES))


def _rule(line: str) -> Rule | None:
    """As `git help gitignore` has it."""
    bare = line.rstrip(" ")
    if bare.endswith("\\") and len(bare) < len(line):  # the first of the spaces is meant
        bare += " "
    if bare.startswith("#"):
        return None
    ignores = not bare.startswith("!")
    bare = bare.removeprefix("!")
    folders = bare.endswith("/")
    bare = bare.removesuffix("/")
    if not bare:
        return None
    return Rule(Pattern(bare.removeprefix("/"), escapes=True), "/" in bare, folders, ignores)
