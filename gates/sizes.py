"""How large files, functions, classes and parameter lists may be, and the exceptions in allow.toml."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gates import allow
from gates.base import Finding, Module, modules

LIMITS = {"files": 500, "functions": 60, "methods": 20, "parameters": 7}
UNITS = {"files": "lines", "functions": "lines", "methods": "methods", "parameters": "parameters"}
# Tests and benchmarks are scripts: only the length of their files and functions counts.
MEASURED = {
    "src": LIMITS.keys(),
    "gates": LIMITS.keys(),
    "tests": {"files", "functions"},
    "bench": {"files", "functions"},
}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Size:
    kind: str
    key: str  # the path of a file, or path:Class.function
    path: str
    line: int
    value: int


def check(root: Path) -> list[Finding]:
    """Sizes over a limit that are not recorded, and records that are not exactly what is measured."""
    allowed = allow.load(root)
    over = {(size.kind, size.key): size for size in measure(root) if size.value > LIMITS[size.kind]}
    findings = []
    for (kind, key), size in over.items():
        recorded = allowed.exceptions(kind).get(key)
        if recorded is None:
            text = f"{key} has {size.value} {UNITS[kind]}, the limit is {LIMITS[kind]}: split it"
        elif size.value > recorded:
            text = f"{key} grew to {size.value} {UNITS[kind]}, {allow.PATH} records {recorded}: split it"
        elif size.value < recorded:
            text = f"{key} shrank to {size.value} {UNITS[kind]}: lower its entry in {allow.PATH}"
        else:
            continue
        findings.append(Finding(size.path, size.line, text))
    for kind in LIMITS:
        for key in allowed.exceptions(kind):
            if (kind, key) not in over:
                text = f'[{kind}] "{key}" is within the limit or gone: remove the entry'
                findings.append(Finding(allow.PATH, allowed.line(key), text))
    return findings


def measure(root: Path) -> list[Size]:
    """Every size that counts; where a name is defined several times (overloads), the largest."""
    largest: dict[tuple[str, str], Size] = {}
    for folder, kinds in MEASURED.items():
        for module in modules(root, folder):
            for size in _sizes(module):
                held = largest.get((size.kind, size.key))
                if size.kind in kinds and (held is None or held.value < size.value):
                    largest[size.kind, size.key] = size
    return list(largest.values())


def _sizes(module: Module) -> Iterator[Size]:
    yield Size("files", module.path, module.path, 0, len(module.text.splitlines()))
    for name, node, owner in _definitions(module.tree, "", None):
        key = f"{module.path}:{name}"
        if isinstance(node, ast.ClassDef):
            yield Size("methods", key, module.path, node.lineno, len(_methods(node)))
        else:
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Size("functions", key, module.path, node.lineno, length)
            yield Size("parameters", key, module.path, node.lineno, _parameters(node, owner))


def _definitions(
    node: ast.AST, prefix: str, owner: ast.ClassDef | None
) -> Iterator[tuple[str, FunctionNode | ast.ClassDef, ast.ClassDef | None]]:
    """Each function and class below a node, with its qualified name and the class it is a direct member of."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode | ast.ClassDef):
            yield prefix + child.name, child, owner
            below = child if isinstance(child, ast.ClassDef) else None
            yield from _definitions(child, f"{prefix}{child.name}.", below)
        else:
            yield from _definitions(child, prefix, owner)


def _methods(node: ast.ClassDef) -> set[str]:
    # A set: the getter and setter of a property, and overloads, are one name to a reader.
    names = {child.name for child in node.body if isinstance(child, FunctionNode)}
    return {name for name in names if not (name.startswith("__") and name.endswith("__"))}


def _parameters(node: FunctionNode, owner: ast.ClassDef | None) -> int:
    given = node.args
    count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    count += (given.vararg is not None) + (given.kwarg is not None)
    static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in node.decorator_list)
    return count - 1 if owner and not static else count
