"""The requirements that no test carries yet: a list that may only shrink. `python -m gates.pending --prune`."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from gates import marks
from gates.base import Finding
from gates.history import version_before

PATH = "gates/pending.toml"


def ids(root: Path) -> dict[str, int]:
    """Each id with its line; a tree without the file waits for nothing."""
    file = root / PATH
    return _parse(file.read_text(encoding="utf-8")) if file.exists() else {}


def _parse(text: str) -> dict[str, int]:
    lines = text.splitlines()
    names: list[str] = tomllib.loads(text)["ids"]
    return {name: next(n for n, line in enumerate(lines, 1) if f'"{name}"' in line) for name in names}


def check_shrinking(root: Path) -> list[Finding]:
    before = version_before(root, PATH)
    if before is None:
        return []
    earlier = _parse(before)
    return [
        Finding(PATH, line, f"{name} was added: this list may only shrink")
        for name, line in ids(root).items()
        if name not in earlier
    ]


def prune(root: Path, carried: set[str]) -> list[str]:
    """Removes the lines of carried ids; what was removed."""
    gone = {line: name for name, line in ids(root).items() if name in carried}
    lines = (root / PATH).read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for number, line in enumerate(lines, 1) if number not in gone]
    (root / PATH).write_text("".join(kept), encoding="utf-8")
    return sorted(gone.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gates.pending", description=__doc__)
    parser.add_argument(
        "--prune", action="store_true", required=True, help="remove the ids that a test carries"
    )
    parser.parse_args()
    carried, _ = marks.collect(Path.cwd())
    print("\n".join(prune(Path.cwd(), set(carried))) or "nothing to remove")


if __name__ == "__main__":
    main()
