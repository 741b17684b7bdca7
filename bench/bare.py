"""The floor: the same bytes in one table of SQLite, by the standard library's module, nothing else around it."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class Bare:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS record (key INTEGER PRIMARY KEY, data BLOB NOT NULL)"
        )
        self._key = 0

    def write(self, rows: Sequence[bytes]) -> None:
        """One transaction, on the disk when this returns."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for data in rows:
            self._key += 1
            execute("INSERT INTO record VALUES (?, ?)", (self._key, data))
        execute("COMMIT")

    def write_all(self, commits: Sequence[Sequence[bytes]]) -> None:
        for rows in commits:
            self.write(rows)

    def read(self) -> list[tuple[int, bytes]]:
        return self._connection.execute("SELECT key, data FROM record ORDER BY key").fetchall()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
