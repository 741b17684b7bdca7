"""What a server writes to stderr, kept within bounds: the end of it in memory, and in a file where one is wanted."""

import os
from collections import deque
from pathlib import Path

LINES, LINE, FILE = 500, 2_000, 256 * 1024


class Logbook:
    """The newest lines; the file holds the same, and starts anew (one older part kept) when it is full."""

    def __init__(self, path: Path | None = None) -> None:
        self.lines: deque[str] = deque(maxlen=LINES)
        self._path = path
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE:
            lines.append(self._rest)
            self._rest = b""
        self._keep([line[:LINE].decode("utf-8", "replace").rstrip("\r") for line in lines])

    def note(self, text: str) -> None:
        """Something of our own, between the server's lines."""
        self._keep([f"[tertulia] {text}"])

    def close(self) -> None:
        if self._rest:
            self.feed(b"\n")

    @property
    def last(self) -> str:
        """The last line that says something, for an error's text."""
        return next((line for line in reversed(self.lines) if line.strip()), "")

    def _keep(self, lines: list[str]) -> None:
        if not lines:
            return
        self.lines.extend(lines)
        if self._path is None:
            return
        try:
            self._write("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            self._path = None
            self.lines.append(f"[tertulia] the log file cannot be written: {error}")

    def _write(self, data: bytes) -> None:
        assert self._path is not None
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._path.exists() and self._path.stat().st_size + len(data) > FILE:
            self._path.replace(self._path.with_suffix(".old.log"))
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
