"""What no tracked file may hold: the hosts of package registries, and paths of the machine it was written on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gates.base import Finding
from gates.history import tracked

# Written so that this file does not hold them either.
FORBIDDEN = {
    re.compile(
        r"py[p]i\.org|python[h]osted\.org|registry\.npm[j]s|registry\.[y]arnpkg"
    ): "a package registry's host",
    re.compile(
        r"(?<!emit-)\bindex-[u]rl\s*[= ]\s*\S|_auth[T]oken"
    ): "where one machine gets its packages from",
    re.compile(r"(?<![\w.~*/})-])/(?:wor[k]|roo[t]|home/[a-z]+)/[\w.]"): "a path of one machine",
    re.compile(r"(?<![\w.~*/})-])/tm[p]/[\w.]"): "a path of one machine",
}


def check(root: Path) -> list[Finding]:
    return [finding for path in tracked(root) for finding in _check(root, path)]


def _check(root: Path, path: str) -> Iterator[Finding]:
    file = root / path
    if not file.is_file() or file.is_symlink():
        return
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in FORBIDDEN.items():
            if found := pattern.search(line):
                yield Finding(path, number, f"`{found[0]}` is {what}: take it out")
