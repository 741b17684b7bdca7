"""tests/requirements.toml and the tests, both ways: each id is carried by a test, each carried id exists.

`gates/pending.toml` names the ids that no test carries yet; an id that one does carry has to leave it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from gates import marks, pending
from gates.base import Finding

PATH = "tests/requirements.toml"


def check(root: Path) -> list[Finding]:
    required = ids(root)
    carried, findings = marks.collect(root)
    waiting = pending.ids(root)
    for name, (path, line) in carried.items():
        if name not in required:
            findings.append(
                Finding(path, line, f"carries {name}, which {PATH} does not have: correct the id")
            )
    for name in required - carried.keys() - waiting.keys():
        findings.append(Finding(PATH, 0, f"no test carries {name}: write one and mark it with {marks.MARK}"))
    for name, line in waiting.items():
        if name in carried:
            text = f"{name} is carried by {carried[name][0]}: run `python -m gates.pending --prune`"
            findings.append(Finding(pending.PATH, line, text))
        elif name not in required:
            findings.append(Finding(pending.PATH, line, f"{name} is not in {PATH}: remove it"))
    return findings


def ids(root: Path) -> set[str]:
    rows = tomllib.loads((root / PATH).read_text(encoding="utf-8"))["req"]
    return {row["id"] for row in rows}
