"""The checkers that are made elsewhere: ruff (lint and format) and mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gates.base import Finding

TYPED = ("src", "gates")


def check_lint(root: Path) -> list[Finding]:
    return _run(root, "ruff", "check", "--quiet", "--output-format", "concise", ".")


def check_format(root: Path) -> list[Finding]:
    findings = _run(root, "ruff", "format", "--quiet", "--check", "--output-format", "concise", ".")
    return findings and [*findings, Finding("ruff", 0, "run `.venv/bin/ruff format .`")]


def check_types(root: Path) -> list[Finding]:
    targets = [folder for folder in TYPED if (root / folder).is_dir()]
    return _run(root, "mypy", "--no-error-summary", "--hide-error-context", *targets)


def _run(root: Path, tool: str, *arguments: str) -> list[Finding]:
    """The tool's own lines, which name file and line themselves."""
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return []
    return [Finding(tool, 0, line) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
