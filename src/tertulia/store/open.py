"""From what a person writes to the store that it means."""

import os
import re
import weakref
from typing import Literal, get_args

from ..records.errors import ConfigError, InvalidInput
from .base import Store
from .memory import MemoryStore
from .shared import share

Durability = Literal["full", "normal"]

SUPPORTED = "a path (SQLite), sqlite:PATH, jsonl:FOLDER, memory:"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


async def open_store(
    target: "str | os.PathLike[str] | Store | None",
    *,
    durability: Durability = "full",
    create: bool = True,
) -> Store:
    """None is memory, a Store itself, a path SQLite; `jsonl:FOLDER`, `sqlite:PATH` and `memory:` say which.

    `durability` "full": what is acknowledged outlives a power cut; "normal": it outlives the process.
    `create` False: StoreNotFound where there is none yet.
    """
    if durability not in get_args(Durability):
        raise ConfigError(f"no durability is called {durability!r}", hint="full or normal")
    if target is None:
        return MemoryStore()
    if not isinstance(target, str | os.PathLike):
        return _store(target)
    kind, path = _parse(target)
    if kind == "memory":
        return MemoryStore()
    if kind == "jsonl":
        from .jsonl import JsonlStore

        return _remembered(await JsonlStore.at(path, create=create), path, ("",))

    async def opening() -> Store:
        from .sqlite import SqliteStore

        return await SqliteStore.at(path, durability=durability, create=create)

    return _remembered(await share("sqlite", path, durability, opening), path, SQLITE_FILES)


SQLITE_FILES = ("", "-wal", "-shm", "-journal", "-owners")

_files: "weakref.WeakKeyDictionary[Store, tuple[str, ...]]" = weakref.WeakKeyDictionary()


def _remembered(store: Store, path: str, ends: tuple[str, ...]) -> Store:
    _files[store] = tuple(os.path.abspath(path) + end for end in ends)
    return store


def files_of(store: Store) -> tuple[str, ...]:
    """Where a store that was opened here keeps what it holds: nobody else has any business there."""
    return _files.get(store, ())


def _store(target: object) -> Store:
    if callable(getattr(target, "commit", None)) and callable(getattr(target, "claim", None)):
        store: Store = target  # type: ignore[assignment]
        return store
    raise InvalidInput(f"a {type(target).__name__} is no store", hint=f"give {SUPPORTED}, or a Store")


def _parse(target: "str | os.PathLike[str]") -> tuple[str, str]:
    """The kind of store, and where it is. A PathLike is a path, whatever its name begins with."""
    text: object = os.fspath(target)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInput(f"{text!r} names no place for a store", hint=f"give {SUPPORTED}")
    if not isinstance(target, str):
        return "sqlite", text
    if text in ("memory:", ":memory:"):
        return "memory", ""
    match = _SCHEME.fullmatch(text)
    if match is None:
        return "sqlite", text
    scheme, rest = match[1].lower(), match[2]
    if scheme in ("postgres", "postgresql"):
        raise ConfigError("the PostgreSQL store is not built in yet", hint=f"supported are {SUPPORTED}")
    known = scheme in ("sqlite", "jsonl")
    if rest.startswith("//") or (known and not rest):
        raise ConfigError(f"no store is opened by {text[:80]!r}", hint=f"supported are {SUPPORTED}")
    return (scheme, rest) if known else ("sqlite", text)
