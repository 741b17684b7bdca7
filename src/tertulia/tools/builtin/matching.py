"""A regular expression in a process of its own: some never end, and while one runs, Python runs nothing else."""

import contextlib
import select
import struct
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from ...records.errors import InvalidInput

WORKER = """
import re, struct, sys
into, out = sys.stdin.buffer, sys.stdout.buffer
flags, size = struct.unpack("=II", into.read(8))
search = re.compile(into.read(size).decode(), flags).search
while head := into.read(4):
    text = into.read(struct.unpack("=I", head)[0]).decode("utf-8", "replace")
    found = [n for n, line in enumerate(text.splitlines()) if search(line)]
    out.write(struct.pack(f"=I{len(found)}I", len(found), *found))
    out.flush()
"""


class Matcher:
    """Entered, it answers which lines match. InvalidInput when an answer takes longer than until `deadline`."""

    def __init__(self, pattern: str, flags: int, seconds: float) -> None:
        self._pattern = pattern.encode("utf-8", "replace")
        self._flags = flags
        self._deadline = time.monotonic() + seconds
        self._worker: subprocess.Popen[bytes]

    @property
    def late(self) -> bool:
        return time.monotonic() > self._deadline

    def __enter__(self) -> Self:
        self._worker = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env={},
        )  # fmt: skip
        self._send(struct.pack("=II", self._flags, len(self._pattern)) + self._pattern)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.kill()
        with contextlib.suppress(BrokenPipeError):  # what was not sent any more
            self._worker.communicate()

    def lines(self, data: bytes) -> list[int]:
        """The numbers of the lines of a text, from 0."""
        self._send(struct.pack("=I", len(data)) + data)
        (count,) = struct.unpack("=I", self._receive(4))
        return list(struct.unpack(f"={count}I", self._receive(4 * count)))

    def _send(self, data: bytes) -> None:
        assert self._worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # told when the answer is missing
            self._worker.stdin.write(data)
            self._worker.stdin.flush()

    def _receive(self, size: int) -> bytes:
        assert self._worker.stdout is not None
        pipe, found = self._worker.stdout, b""
        while len(found) < size:
            left = max(self._deadline - time.monotonic(), 0)
            if not select.select([pipe], [], [], left)[0]:
                raise InvalidInput(
                    "the expression takes too long", hint="write it without nested repetition, or search less"
                )
            chunk = pipe.read1(size - len(found))  # type: ignore[attr-defined]
            if not chunk:
                raise InvalidInput("the search ended before its time")
            found += chunk
        return found
