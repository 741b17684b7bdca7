"""Every link of the README and the docs to a file or heading of this repository leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gates.base import Finding

LINK = re.compile(r"\]\((?![a-z]+:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def check(root: Path) -> list[Finding]:
    pages = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
    return [finding for page in pages for finding in _check(root, page)]


def _check(root: Path, page: Path) -> Iterator[Finding]:
    path = page.relative_to(root).as_posix()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        for link in LINK.finditer(line):
            target = page.parent / link["path"] if link["path"] else page
            if not target.exists():
                yield Finding(path, number, f"links to {link['path']}, which is not there: correct the link")
            elif link["anchor"] and target.suffix == ".md" and link["anchor"] not in _anchors(target):
                yield Finding(
                    path, number, f"links to #{link['anchor']}, and no heading of {target.name} is that"
                )


def _anchors(page: Path) -> set[str]:
    """The headings as the usual renderers name them: lower case, words joined by hyphens, nothing else."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
