"""Looking after a store that stands on disk: check, repair, backup. Each kind of store brings its own three."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from ..records.errors import InvalidInput, StoreNotFound
from .report import Report

Progress = Callable[[int, int], None]
"""Called with how much is done and how much there is."""


KINDS = ("sqlite", "jsonl")


class Care(Protocol):
    def check(self, path: Path) -> Report: ...

    def repair(self, path: Path, target: Path) -> Report: ...

    def backup(self, path: Path, target: Path, progress: Progress | None = None) -> Report: ...


def check(store: str) -> Report:
    """What is wrong with it. Reads only."""
    care, path = _find(store)
    return care.check(path)


def repair(store: str, target: str | None = None) -> Report:
    """Writes a repaired copy to `target` (None: beside it, named .repaired); the store itself is never changed."""
    care, path = _find(store)
    return care.repair(path, _split(target)[1] if target else path.with_name(path.name + ".repaired"))


def backup(store: str, target: str, progress: Progress | None = None) -> Report:
    """Writes a copy that is whole, also while others write."""
    care, path = _find(store)
    return care.backup(path, _split(target)[1], progress)


def _find(store: str) -> tuple[Care, Path]:
    """A file is SQLite, a folder with .jsonl files in it is JSONL; `sqlite:` and `jsonl:` say which."""
    if "://" in store:
        raise InvalidInput(
            f"{store} is no file or folder", hint="use the tools of the database server instead"
        )
    kind, path = _split(store)
    if not path.exists():
        raise StoreNotFound(f"nothing is at {path}", hint="check the path")
    if path.is_file() and kind != "jsonl":
        return _load("sqlite_care"), path
    if path.is_dir() and kind != "sqlite" and any(path.rglob("*.jsonl")):
        return _load("jsonl_care"), path
    raise StoreNotFound(f"{path} is no store", hint="a store is a SQLite file or a folder of .jsonl files")


def _split(store: str) -> tuple[str | None, Path]:
    kind, colon, rest = store.partition(":")
    return (kind, Path(rest)) if colon and kind in KINDS else (None, Path(store))


def _load(name: str) -> Care:
    # By name, so that a store that is not used is not imported.
    return cast(Care, import_module(f".{name}", __package__))
