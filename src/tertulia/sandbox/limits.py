"""Holding a command to its limits.

A watcher looks many times a second at the processes below the command, their memory and the disk, and says when a limit
is passed; the whole PID namespace is killed then. Where a cgroup can be made, the command starts in one and the kernel
holds it: a watcher alone comes late when hundreds of processes want the processor as well.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from functools import partial

from .policy import Limits
from .repository import is_bare
from .threads import in_thread

TICK = 0.05
LOOK = 1.0  # seconds that looking for what was written may take
BARE = "it made {} a git repository, whose config the host would run"


async def watch(pid: int, limits: Limits, roots: Sequence[str], plain: Sequence[str]) -> str:
    """Returns when a limit is passed, with words for it. `pid` is where the tree begins.

    `plain`: the roots that must not become repositories.
    """
    disk = Disk(roots, limits)
    while True:
        await asyncio.sleep(TICK)
        found = tree(pid, limits.processes)
        problem = _repositories(plain) or await _processes(found, limits) or await disk.problem()
        if problem:
            return problem


def _repositories(roots: Sequence[str]) -> str | None:
    """Nothing can be mounted in the way of a root that becomes a repository: any folder may be called `refs`."""
    made = next(filter(is_bare, roots), None)
    return None if made is None else BARE.format(made)


async def _processes(found: Sequence[int], limits: Limits) -> str | None:
    if len(found) >= limits.processes:  # in a cgroup there are never more
        return f"it had {limits.processes} processes"
    if sum(map(_resident, found)) <= limits.memory:
        return None
    if await in_thread("memory", lambda: sum(map(_share, found))) > limits.memory:  # it walks all pages
        return f"it used more than {limits.memory >> 20} MiB of memory"
    return None


def tree(pid: int, most: int) -> list[int]:
    """A process and what descends from it, up to one more than `most`.

    Orphans become children of the namespace's first process, so none is missed.
    """
    found = [pid]
    for parent in found:
        if len(found) > most:
            break
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found[: most + 1]


def _resident(pid: int) -> int:
    """What a process has in memory that no file stands behind. What it shares is counted with each that has it."""
    return sum(_sizes(f"/proc/{pid}/status", "RssAnon", "RssShmem"))


def _share(pid: int) -> int:
    """The same, with its part only of what is shared. Dearer."""
    path = f"/proc/{pid}/smaps_rollup"
    # Older kernels know the sum only; a process that does not let itself be looked at is not believed to share.
    return sum(_sizes(path, "Pss_Anon", "Pss_Shmem") or _sizes(path, "Pss")) or _resident(pid)


def _sizes(path: str, *names: str) -> list[int]:
    """Bytes, of those lines that are there."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return []
    return [int(value.split()[0]) << 10 for name, _, value in lines if name in names]


class Disk:
    """Free space is cheap to ask for and says that someone writes; only then is it looked up who."""

    def __init__(self, roots: Sequence[str], limits: Limits) -> None:
        self._roots = roots
        self._limits = limits
        self._since = time.time()
        self._free = {root: _free(root) for root in roots}

    async def problem(self) -> str | None:
        limits = self._limits
        for root, before in self._free.items():
            now = _free(root)
            if now < limits.reserve and now < before:
                return f"less than {limits.reserve >> 20} MiB are left on the disk"
            if before - now > limits.disk:
                look = partial(_written, self._roots, self._since, limits.disk)
                if await in_thread("disk", look):
                    return f"it wrote more than {limits.disk >> 20} MiB"
                self._free[root] = now  # it was someone else
        return None


def _free(root: str) -> int:
    try:
        found = os.statvfs(root)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _written(roots: Sequence[str], since: float, limit: int) -> bool:
    """Whether what changed in the roots since then is that large. What cannot be looked through in time is."""
    total, until = 0, time.monotonic() + LOOK
    for root in roots:
        for folder, _, names in os.walk(root):
            for name in names:
                try:
                    found = os.lstat(os.path.join(folder, name))
                except OSError:
                    continue
                if found.st_ctime >= since - 1:
                    total += found.st_blocks * 512
            if total > limit or time.monotonic() > until:
                return True
    return False
