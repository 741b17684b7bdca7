"""The requirement ids that the tests carry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from gates.base import Finding, modules, origin, origins

MARK = "pytest.mark.req"


def collect(root: Path) -> tuple[dict[str, tuple[str, int]], list[Finding]]:
    """Each id that a test carries, with the first place that does, and the marks that cannot be read."""
    carried: dict[str, tuple[str, int]] = {}
    findings = []
    for module in modules(root, "tests"):
        known = origins(module.tree)
        for mark in _marks(module.tree, known):
            for argument in mark.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    carried.setdefault(argument.value, (module.path, argument.lineno))
                else:
                    text = f"{MARK} takes literal strings only: write the ids out"
                    findings.append(Finding(module.path, argument.lineno, text))
    return carried, findings


def _marks(tree: ast.AST, known: dict[str, str]) -> Iterator[ast.Call]:
    """The marks that pytest will see on a test: as decorators, in `pytestmark`, in `pytest.param(marks=…)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and origin(node.func, known) == MARK:
            yield node
