"""What git knows of a tree: its files, and the version of a file before the present one."""

from __future__ import annotations

import os
import subprocess
from fnmatch import fnmatch
from pathlib import Path


def version_before(root: Path, path: str) -> str | None:
    """Its text at HEAD when it has changed since, else before its last change; None where no history tells."""
    head = git(root, "show", f"HEAD:./{path}")
    if head is None or head != (root / path).read_text(encoding="utf-8"):
        return head
    commits = (git(root, "log", "--format=%H", "--max-count=2", "--", path) or "").split()
    return git(root, "show", f"{commits[1]}:./{path}") if len(commits) == 2 else None


def tracked(root: Path) -> list[str]:
    """The files of the tree; without git, those that .gitignore does not name."""
    listed = git(root, "ls-files", "-z")
    if listed is not None:
        return [path for path in listed.split("\0") if path]
    ignoring = root / ".gitignore"
    lines = ignoring.read_text(encoding="utf-8").splitlines() if ignoring.exists() else []
    patterns = [line.strip("/") for line in lines if line and not line.startswith("#")]
    files = (file.relative_to(root) for file in sorted(root.rglob("*")) if file.is_file())
    return [file.as_posix() for file in files if not _ignored(file, patterns)]


def _ignored(file: Path, patterns: list[str]) -> bool:
    return any(fnmatch(part, pattern) for part in file.parts for pattern in patterns)


def git(root: Path, *arguments: str) -> str | None:
    """Its output; None where it fails or is not there: the gates also run on a tree without history."""
    # In a git hook GIT_DIR and its kin name another repository than the one of `root`.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, env=environment, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
