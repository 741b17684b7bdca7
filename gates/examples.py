"""Every example of the README and the docs runs, and prints what the page says it prints.

A page is one story: its blocks run in order in one empty folder, each ```python block in an interpreter of its own,
each `$ tertulia …` line of a ```console or ```bash block as a command. The lines below a command are its output,
with `…` for anything; a command that shows none has to succeed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gates import allow
from gates.base import Finding

AT_ONCE = 2
SECONDS = 30
PROMPT = "$ "
COMMAND = "$ tertulia"
SHELLS = {"console", "bash"}
NO_RUN = "no_run"  # the kind of exception in allow.toml: how many blocks of a page do not run


@dataclass(frozen=True, slots=True)
class Block:
    path: str
    line: int  # of its first line
    info: str
    text: str


def pages(root: Path) -> list[Path]:
    return [page for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))] if page.exists()]


def check(root: Path) -> list[Finding]:
    found = {page.relative_to(root).as_posix(): list(blocks(root, page)) for page in pages(root)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ran = pool.map(lambda story: _run_page(root, story), found.values())
        return [*_unrun(root, found), *(finding for findings in ran for finding in findings)]


def blocks(root: Path, page: Path) -> Iterator[Block]:
    path = page.relative_to(root).as_posix()
    info, start, lines = None, 0, list[str]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif info is None:
            info, start, lines = line[3:].strip(), number + 1, []
        else:
            yield Block(path, start, info, "\n".join(lines) + "\n")
            info = None


def _unrun(root: Path, found: dict[str, list[Block]]) -> list[Finding]:
    allowed = allow.load(root).exceptions(NO_RUN)
    findings = []
    for path, story in found.items():
        marked = [block for block in story if re.match(r"python\b.*\bno-run", block.info)]
        if len(marked) > allowed.get(path, 0):
            text = f"an example that does not run: let it run, or make it ```text ({allow.PATH} has the exceptions)"
            findings += [Finding(path, block.line, text) for block in marked]
    for path, count in allowed.items():
        if count > sum("no-run" in block.info for block in found.get(path, [])):
            text = f'[{NO_RUN}] "{path}" is more than the page has: lower it'
            findings.append(Finding(allow.PATH, 0, text))
    return findings


def _run_page(root: Path, story: list[Block]) -> list[Finding]:
    findings = []
    with tempfile.TemporaryDirectory(prefix="example-") as folder:
        for block in story:
            if block.info == "python":
                findings += _run_python(root, Path(folder), block)
            elif block.info in SHELLS:
                findings += _run_console(root, Path(folder), block)
    return findings


def _run_python(root: Path, folder: Path, block: Block) -> list[Finding]:
    status, output = _run(root, folder, "-c", block.text)
    return [Finding(block.path, block.line, f"the example fails:\n{output.strip()}")] if status else []


def _run_console(root: Path, folder: Path, block: Block) -> list[Finding]:
    findings = []
    for line, command, expected in _commands(block):
        status, output = _run(root, folder, "-m", "tertulia", *shlex.split(command, comments=True)[1:])
        if not expected and status:
            findings.append(Finding(block.path, line, f"`{command}` ends with {status}:\n{output.strip()}"))
        elif expected and not matches(expected, output):
            findings.append(Finding(block.path, line, f"`{command}` prints otherwise:\n{output.strip()}"))
    return findings


def _commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """Each tertulia command with its line and the output below it."""
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(PROMPT)] + [len(lines)]
    for start, end in zip(starts, starts[1:], strict=False):
        if lines[start].startswith(COMMAND):
            expected = "\n".join(lines[start + 1 : end])
            yield block.line + start, lines[start].removeprefix(PROMPT), expected


def matches(expected: str, output: str) -> bool:
    def trimmed(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = ".*?".join(re.escape(piece) for piece in trimmed(expected).split("…"))
    return re.fullmatch(pattern, trimmed(output), re.DOTALL) is not None


def _run(root: Path, folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and output, in an environment that holds nothing of the user's."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(root / "src"),
        "PYTHONWARNINGS": "error",
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"still running after {SECONDS} s"
    return done.returncode, done.stdout
