"""Who may import whom: the import-linter contracts of pyproject.toml."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from gates.base import Finding

CONFIG = "pyproject.toml"
IMPORT = re.compile(r"^[-&\s]*(?P<importer>tertulia[\w.]*) -> (?P<imported>[\w.]+) \(l\.(?P<line>\d+)")


def check(root: Path) -> list[Finding]:
    settings = tomllib.loads((root / CONFIG).read_text(encoding="utf-8"))["tool"]["importlinter"]
    # import-linter refuses a container that does not exist; a contract for a package to come waits for it.
    due = [
        contract["id"]
        for contract in settings["contracts"]
        if all(_folder(root, container).is_dir() for container in contract.get("containers", ()))
    ]
    limits = [argument for contract in due for argument in ("--contract", contract)]
    code = "from importlinter.cli import lint_imports_command as run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--config", CONFIG, "--no-cache", "--no-logo", *limits],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return [] if done.returncode == 0 else _findings(root, done.stdout + done.stderr)


def _findings(root: Path, output: str) -> list[Finding]:
    """One finding for each import that it names, and all it said as the last one (some breaches name none)."""
    findings = []
    for line in output.splitlines():
        if found := IMPORT.match(line):
            path = _source(root, found["importer"])
            text = f"imports {found['imported']} against the layers of {CONFIG}: move one of the two"
            findings.append(Finding(path, int(found["line"]), text))
    broken = output.partition("Broken contracts\n")[2] or output
    return [*findings, Finding(CONFIG, 0, "[tool.importlinter] says:\n" + broken.strip(" -\n"))]


def _folder(root: Path, dotted: str) -> Path:
    return root.joinpath("src", *dotted.split("."))


def _source(root: Path, dotted: str) -> str:
    folder = _folder(root, dotted)
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return file.relative_to(root).as_posix()
