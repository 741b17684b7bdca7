"""The public names and signatures, frozen in api.txt. `python -m gates.api --write` freezes them anew, on purpose.

The names come from the imported packages, the signatures from their source: the same text on every Python.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import inspect
import os
import subprocess
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from gates.base import Finding

PATH = "gates/api.txt"
ADVICE = "the public surface changed: if that is meant, run `make api` and say so in CHANGELOG.md"
PACKAGES = ("tertulia", "tertulia.testing")


def check(root: Path) -> list[Finding]:
    frozen = (root / PATH).read_text(encoding="utf-8").splitlines()
    done = _surface(root)
    if done.returncode:
        return [Finding(PATH, 0, "the public names cannot be read:\n" + done.stderr.strip())]
    changes = difflib.ndiff(frozen, done.stdout.splitlines())
    changed = [Finding(PATH, 0, change) for change in changes if change[0] in "+-"]
    return changed and [*changed, Finding(PATH, 0, ADVICE)]


def _surface(root: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(root / "src"), str(Path(__file__).parent.parent)])
    return subprocess.run(
        [sys.executable, "-m", "gates.api", "--print"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def surface() -> Iterator[str]:
    """One line for each public name and each public member of it."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(getattr(module, "__all__", ())):
            yield from describe(f"{package}.{name}", getattr(module, name))


def describe(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"class {name}({bases})" if bases else f"class {name}"
        for member, text in sorted(_members(value).items()):
            yield f"{name}.{member}{text}"
    elif inspect.isfunction(value):
        node = _source(inspect.unwrap(value)).body[0]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield name + _signature(node)
    elif isinstance(value, ModuleType):
        yield f"module {name}"
    elif arguments := typing.get_args(value):
        members = sorted(getattr(argument, "__name__", repr(argument)) for argument in arguments)
        yield f"{name} = {' | '.join(members)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _source(value: Any) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(value)))


def _members(kind: type) -> dict[str, str]:
    """What the class and its bases among our own say of their public members; the nearest wins."""
    found: dict[str, str] = {}
    for owner in kind.__mro__:
        if owner.__module__.partition(".")[0] != "tertulia":
            continue
        node = _source(owner).body[0]
        assert isinstance(node, ast.ClassDef)
        for name, text in _own(node):
            found.setdefault(name, text)
    return found


def _own(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name, text = child.name, _signature(child)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            default = f" = {ast.unparse(child.value)}" if child.value else ""
            name, text = child.target.id, f": {ast.unparse(child.annotation)}{default}"
        elif isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            name, text = child.targets[0].id, f" = {ast.unparse(child.value)}"
        else:
            continue
        if not name.startswith("_") or name in {"__init__", "__call__", "__aenter__", "__aiter__"}:
            yield name, text


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    marks = [ast.unparse(item).rpartition(".")[2] for item in node.decorator_list]
    notes = [mark for mark in marks if mark in {"property", "staticmethod", "classmethod", "setter"}]
    notes += ["async"] * isinstance(node, ast.AsyncFunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}" + (f"  [{', '.join(notes)}]" if notes else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.api", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help=f"write {PATH} anew")
    action.add_argument("--print", action="store_true", help="print what would be written")
    options = parser.parse_args()
    if options.print:
        sys.stdout.writelines(f"{line}\n" for line in surface())
        return 0
    done = _surface(Path.cwd())
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    Path(PATH).write_text(done.stdout, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
