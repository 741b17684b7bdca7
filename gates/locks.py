"""No await while a lock is held: whoever waits for the lock would wait for the whole world behind that await."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gates.base import Finding, Module, inside, modules, origin, origins

WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
LOCKS = {"lock", "locks", "rlock", "mutex"}
SUSPENDS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
# Session code decides synchronously between two awaits; it needs no lock that could be held over one.
LOCK_FREE = "tertulia.session"
MANAGERS = {"contextlib.contextmanager", "contextlib.asynccontextmanager"}
ASYNC_LOCKS = {"asyncio.Lock", "asyncio.Condition", "asyncio.Semaphore", "asyncio.BoundedSemaphore"}


def check(root: Path) -> list[Finding]:
    source = list(modules(root, "src"))
    holders = {node.name for module in source for node in _holders(module)}
    return [finding for module in source for finding in _check(module, holders)]


def _holders(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Context managers that yield with a lock held: whoever enters one holds the lock."""
    known = origins(module.tree)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            managed = any(origin(mark, known) in MANAGERS for mark in node.decorator_list)
            if managed and any(isinstance(found, ast.Yield) for found in _under_locks(node, set())):
                yield node


def _check(module: Module, holders: set[str]) -> Iterator[Finding]:
    known, free = origins(module.tree), inside(module.dotted, LOCK_FREE)
    handed_on = {
        node for holder in _holders(module) for node in ast.walk(holder) if isinstance(node, ast.Yield)
    }
    for waiting in _under_locks(module.tree, holders):
        if waiting not in handed_on:
            text = "suspends while a lock is held: take what is needed under the lock, wait after it"
            yield Finding(module.path, waiting.lineno, text)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _acquires(node.func):
            text = "acquires a lock by hand: hold it by `with`, so that its end can be seen and checked"
            yield Finding(module.path, node.lineno, text)
        elif isinstance(node, ast.Call) and free and origin(node.func, known) in ASYNC_LOCKS:
            text = f"makes an asyncio lock: {LOCK_FREE} orders without any"
            yield Finding(module.path, node.lineno, text)


def _under_locks(tree: ast.AST, holders: set[str]) -> Iterator[ast.expr | ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith) and any(_is_lock(item, holders) for item in node.items):
            yield from _suspensions(node.body)


def _is_lock(item: ast.withitem, holders: set[str]) -> bool:
    entered = item.context_expr
    if isinstance(entered, ast.Call) and _name(entered.func) in holders:
        return True
    return any(_names_lock(_name(node)) for node in ast.walk(entered))


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names_lock(name: str) -> bool:
    return any(word.lower() in LOCKS for word in WORDS.findall(name))


def _acquires(called: ast.Attribute) -> bool:
    return called.attr == "acquire" and _names_lock(_name(called.value))


def _suspensions(body: list[ast.stmt]) -> Iterator[ast.expr | ast.stmt]:
    """Where these statements suspend; functions that are only defined among them run elsewhere."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, SUSPENDS):
            yield node
        elif isinstance(node, ast.comprehension) and node.is_async:
            yield node.iter
        waiting.extend(ast.iter_child_nodes(node))
