"""The list of exceptions to the size limits, which may only shrink."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gates.base import Finding
from gates.history import version_before

PATH = "gates/allow.toml"
PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class Allowed:
    text: str
    tables: dict[str, dict[str, Any]]

    def exceptions(self, kind: str) -> dict[str, int]:
        return self.tables.get(kind, {})

    def planned(self, kind: str) -> dict[str, int]:
        """Exceptions that may be entered later, each with the largest size it may have then."""
        planned: dict[str, int] = self.tables.get(PLANNED, {}).get(kind, {})
        return planned

    @property
    def kinds(self) -> set[str]:
        return self.tables.keys() - {PLANNED} | self.tables.get(PLANNED, {}).keys()

    def line(self, key: str) -> int:
        lines = self.text.splitlines()
        return next((number for number, line in enumerate(lines, 1) if f'"{key}"' in line), 0)


def load(root: Path) -> Allowed:
    return _parse((root / PATH).read_text(encoding="utf-8"))


def _parse(text: str) -> Allowed:
    return Allowed(text, tomllib.loads(text))


def check_shrinking(root: Path) -> list[Finding]:
    """Entries that were added or raised since the version before, beyond what was planned there."""
    before_text = version_before(root, PATH)
    if before_text is None:
        return []
    before, now = _parse(before_text), load(root)
    findings = []
    for kind in sorted(now.kinds):
        planned = before.planned(kind)
        for key, value in now.exceptions(kind).items():
            bound = max(before.exceptions(kind).get(key, 0), planned.get(key, 0))
            if value > bound:
                text = f'[{kind}] "{key}" = {value} was {bound or "not here"}: this list may only shrink'
                findings.append(Finding(PATH, now.line(key), text))
        for key, value in now.planned(kind).items():
            if value > planned.get(key, 0):
                text = f'[{PLANNED}.{kind}] "{key}" = {value} was added or raised: this list may only shrink'
                findings.append(Finding(PATH, now.line(key), text))
    return findings
