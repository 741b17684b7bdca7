"""What the gates share: findings, the modules of a tree, and names followed back to their imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """What is wrong, where, and what to do about it."""

    path: str
    line: int  # 0: the file as a whole
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file; its path is relative to the checkout."""

    path: str
    text: str
    tree: ast.Module

    @property
    def dotted(self) -> str:
        """The name it is imported by: src/tertulia/store/base.py is tertulia.store.base."""
        return self.path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def modules(root: Path, *folders: str) -> Iterator[Module]:
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            text = file.read_text(encoding="utf-8")
            yield Module(path, text, ast.parse(text, path))


def inside(dotted: str, package: str) -> bool:
    return dotted == package or dotted.startswith(package + ".")


def origins(tree: ast.AST) -> dict[str, str]:
    """The imported names of a module, wherever they are imported, each with what it stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds a, `import a.b as c` binds c to a.b.
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def origin(node: ast.AST, known: dict[str, str]) -> str | None:
    """What a name or attribute stands for (`t.sleep` → `time.sleep`), or None for any other expression."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = origin(node.value, known)
        return owner and f"{owner}.{node.attr}"
    return None
