"""Small trees for the gates to look at."""

import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes these files, by their paths, and gives their root."""

    def make(files: dict[str, str]) -> Path:
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text), encoding="utf-8")
        return tmp_path

    return make


@pytest.fixture
def commit() -> Callable[[Path], None]:
    """Makes all of a tree the newest commit of its repository."""

    if shutil.which("git") is None:
        pytest.skip("there is no git here")

    def run(root: Path) -> None:
        git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
        for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "state"]):
            subprocess.run([*git, *arguments], check=True, timeout=30)

    return run
