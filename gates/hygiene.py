"""Tests that tell the truth quickly: no sleeping for something, no wait without an end, no skip without a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from gates.base import Finding, Module, modules, origin, origins

SLEEPS = {"asyncio.sleep", "time.sleep"}
BOUNDS = {"asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"}
# Called without arguments these wait for ever; `get` only counts when awaited (a ContextVar has one too).
AWAITED = {"wait", "get", "join"}
BLOCKING = {"wait", "communicate"}
NOTHING_BACK = {
    "join"
}  # of a thread or process it returns nothing; another kind of join returns what it joined
EXCUSES = {"pytest.skip": 1, "pytest.xfail": 1, "pytest.mark.skip": 1, "pytest.mark.xfail": 2}
EXCUSES["pytest.mark.skipif"] = 2  # the number of the argument that is the reason, when it has no name


def check(root: Path) -> list[Finding]:
    return [finding for module in modules(root, "tests") for finding in _check(module)]


def _check(module: Module) -> Iterator[Finding]:
    known = origins(module.tree)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and origin(node.func, known) in SLEEPS and not _zero(node):
            text = "sleeps: wait for the event itself, or use a fake clock"
            yield Finding(module.path, node.lineno, text)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _bare_marks(module, node, known)
            if node.name.startswith("test_"):
                yield from _unbounded(module, node.body, known)
        elif isinstance(node, ast.Call):
            name = origin(node.func, known) or ""
            if name in EXCUSES and not _has_reason(node, EXCUSES[name]):
                yield Finding(module.path, node.lineno, f"{name} without a reason: say why, in a string")


def _bare_marks(
    module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef, known: dict[str, str]
) -> Iterator[Finding]:
    for mark in node.decorator_list:
        if (name := origin(mark, known)) in EXCUSES:
            yield Finding(module.path, mark.lineno, f"{name} without a reason: say why, in a string")


def _zero(call: ast.Call) -> bool:
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def _has_reason(call: ast.Call, position: int) -> bool:
    if any(keyword.arg == "reason" for keyword in call.keywords):
        return True
    return len(call.args) >= position


def _unbounded(module: Module, body: list[ast.stmt], known: dict[str, str]) -> Iterator[Finding]:
    """Waits without an end that a test itself makes; what it defines inside is the thing under test."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.AsyncWith | ast.With) and any(_bounds(item, known) for item in node.items):
            continue
        if isinstance(node, ast.Await):
            if name := _endless(node.value, AWAITED):
                text = f"awaits .{name}() without an end: put it into `async with asyncio.timeout(…)`"
                yield Finding(module.path, node.lineno, text)
            waiting.extend(_operands(node.value))
        elif isinstance(node, ast.Expr) and _endless(node.value, NOTHING_BACK):
            yield Finding(module.path, node.lineno, ".join() without a timeout: give it one")
        elif isinstance(node, ast.Call):
            if name := _endless(node, BLOCKING):
                text = f".{name}() without a timeout: give it one"
                yield Finding(module.path, node.lineno, text)
            waiting.extend(_operands(node))
        else:
            waiting.extend(ast.iter_child_nodes(node))


def _operands(node: ast.AST) -> Iterator[ast.AST]:
    """What to look through below a call: an argument is handed to someone who may well bound it."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and isinstance(child, ast.Call)):
            yield child


def _bounds(item: ast.withitem, known: dict[str, str]) -> bool:
    expression = item.context_expr
    return isinstance(expression, ast.Call) and origin(expression.func, known) in BOUNDS


def _endless(node: ast.AST, names: set[str]) -> str | None:
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) and node.func.attr in names else None
