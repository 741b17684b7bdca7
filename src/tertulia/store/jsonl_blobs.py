"""Blobs as files, `blobs/ab/<ref>`, named by what they hold. Who owns them stands in the conversations' files."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..records.clock import Clock
from . import blobs
from . import jsonl_disk as disk

_REF = re.compile(re.escape(blobs.PREFIX) + "[0-9a-f]{64}")


class Blobs:
    """`waiting` counts the puts of this opener that no record has referred to yet: they are kept meanwhile."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder / "blobs"
        self.clock = clock
        self.waiting: Counter[str] = Counter()

    def _path(self, ref: str) -> Path | None:
        if not _REF.fullmatch(ref):
            return None
        at = len(blobs.PREFIX)
        return self.folder / ref[at : at + 2] / ref

    def has(self, ref: str) -> bool:
        path = self._path(ref)
        return path is not None and path.exists()

    def put(self, data: bytes) -> str:
        ref = blobs.ref_of(data)
        path = self._path(ref)
        assert path is not None
        if not path.exists():
            disk.make_folder(path.parent)
            disk.replace(path, [data])
        now = self.clock.now() * 1000
        os.utime(path, ns=(now, now))
        self.waiting[ref] += 1
        return ref

    def get(self, ref: str) -> bytes:
        path = self._path(ref)
        try:
            if path is not None:
                return blobs.check(ref, path.read_bytes())
        except FileNotFoundError:
            pass
        raise blobs.missing(ref)

    def all(self) -> Iterator[Path]:
        yield from self.folder.glob("??/" + blobs.PREFIX + "*")

    def referred(self, refs: Iterable[str]) -> None:
        for ref in refs:
            self.waiting[ref] = max(0, self.waiting[ref] - 1)

    def drop(self, refs: Iterable[str]) -> None:
        """Those that lost their last owner, unless someone put them again just now."""
        for ref in refs:
            path = self._path(ref)
            if path is not None and not self.waiting[ref]:
                path.unlink(missing_ok=True)

    def older(self, seconds: float) -> list[str]:
        limit = self.clock.now() * 1000 - int(seconds * 1e9)
        return [path.name for path in self.all() if os.stat(path).st_mtime_ns <= limit]
