"""Each third-party package comes in through one door: the module that hides it from the rest."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from gates.base import Finding, Module, inside, modules, origin, origins

EVERYWHERE = "tertulia"
# A door that ends in * stands for all modules whose name begins so.
DOORS: dict[str, tuple[str, ...]] = {
    "msgspec": (EVERYWHERE,),
    "apsw": ("tertulia.store.sqlite*",),
    "tree_sitter": ("tertulia.approvals",),
    "tree_sitter_bash": ("tertulia.approvals",),
    "asyncpg": ("tertulia.store.postgres*",),
    "psycopg": ("tertulia.store.postgres*",),
    "psycopg_pool": ("tertulia.store.postgres*",),
    "mcp": ("tertulia.tools.mcp", "tertulia.testing.mcp_server"),
    "mcp_types": ("tertulia.tools.mcp", "tertulia.testing.mcp_server"),
    "anyio": ("tertulia.tools.mcp",),
    "acp": ("tertulia.acp",),
    "claude_agent_sdk": ("tertulia.engines.claude",),
    "fastapi": ("tertulia.server",),
    "starlette": ("tertulia.server", "tertulia.testing.mcp_server"),
    "uvicorn": ("tertulia.server", "tertulia.testing.mcp_server"),
    "anthropic": ("tertulia.models",),
    "openai": ("tertulia.models",),
    "google": ("tertulia.models",),
    "pydantic_ai": ("tertulia.models",),
    "pydantic": ("tertulia.models.hosted*",),
    "httpx2": ("tertulia.models.hosted*", "tertulia.tools.mcp"),
    "xllamacpp": ("tertulia.models",),
}
BY_NAME = {"importlib.import_module", "__import__"}


def check(root: Path) -> list[Finding]:
    return [finding for module in modules(root, "src") for finding in _check(module)]


def _check(module: Module) -> Iterator[Finding]:
    for line, package in _imports(module.tree):
        if package in sys.stdlib_module_names or package in {"tertulia", "__future__"}:
            continue
        doors = DOORS.get(package)
        if doors is None:
            text = (
                f"imports {package}, which has no door: enter it in gates/doors.py and docs/dependencies.md"
            )
            yield Finding(module.path, line, text)
        elif not any(_through(module.dotted, door) for door in doors):
            text = f"imports {package}, which only {' and '.join(doors)} may: go through that module"
            yield Finding(module.path, line, text)


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The top-level packages that are imported, with `import_module("…")` of a literal name among them."""
    known = origins(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and origin(node.func, known) in BY_NAME and node.args:
            name = node.args[0]
            if (
                isinstance(name, ast.Constant)
                and isinstance(name.value, str)
                and name.value[:1] not in {"", "."}
            ):
                yield node.lineno, name.value.partition(".")[0]


def _through(dotted: str, door: str) -> bool:
    return dotted.startswith(door[:-1]) if door.endswith("*") else inside(dotted, door)
