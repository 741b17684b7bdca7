"""A cgroup for one command, where this process may make one: the kernel then refuses what the watcher would stop."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Sequence

from .policy import Limits

V1 = "/sys/fs/cgroup"
PREFIX = "tertulia-"
CONTROLLERS = ("cpu", "pids", "memory")
"""With `cpu` a command of many processes gets the share of one group: those who watch it have their turn."""


ENTER = 'while [ "$1" != -- ]; do { echo 0 >"$1"; } 2>/dev/null; shift; done; shift; exec "$@"'
"""Who enters by itself, alone, does it in microseconds; to move another, the kernel waits for all its processors."""


class Cgroup:
    """Made at once, with its limits; where that fails, the watcher holds these alone."""

    def __init__(self, limits: Limits) -> None:
        name = _name()
        self._entrances: list[str] = []
        self._folders: list[str] = []
        for place, version in places():
            folder = os.path.join(place, name)
            if _make(folder, settings(limits, version)):
                self._folders.append(folder)
                self._entrances.append(os.path.join(folder, "tasks" if version == 1 else "cgroup.procs"))

    def entered(self, command: Sequence[str]) -> list[str]:
        """The command, which goes into the group before it begins."""
        return ["/bin/sh", "-c", ENTER, "sh", *self._entrances, "--", *command]

    def discard(self) -> None:
        for folder in list(self._folders):
            with contextlib.suppress(OSError):  # not yet empty
                os.rmdir(folder)
                self._folders.remove(folder)

    async def remove(self) -> None:
        """After the last process has ended; the kernel may still be at it."""
        for _ in range(100):
            self.discard()
            if not self._folders:
                return
            await asyncio.sleep(0.01)


def _name() -> str:
    """Of our process, and of no earlier one with the same number: in a container they repeat."""
    return f"{PREFIX}{os.getpid()}-{os.urandom(6).hex()}"


def _make(folder: str, values: dict[str, int]) -> bool:
    try:
        os.mkdir(folder)
        for name, value in values.items():
            path = os.path.join(folder, name)
            if os.path.exists(path):
                _write(path, str(value))
    except OSError:
        return False
    return True


def settings(limits: Limits, version: int) -> dict[str, int]:
    if version == 1:
        return {"pids.max": limits.processes, "memory.limit_in_bytes": limits.memory}
    return {"pids.max": limits.processes, "memory.max": limits.memory, "memory.swap.max": 0}


@functools.cache
def places() -> tuple[tuple[str, int], ...]:
    """The folders in which a group can be made, each with the version of its hierarchy; none where none can."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return ()
    found = {
        name: f"{V1}/{name}{path.rstrip('/')}"
        for _, controllers, path in lines
        for name in controllers.split(",")
        if name in CONTROLLERS
    }
    if {"pids", "memory"} <= found.keys():
        return tuple((place, 1) for place in found.values() if _usable(place))
    own = next((V1 + path for _, controllers, path in lines if not controllers), None)
    both = () if own is None else (own, os.path.dirname(own))
    return tuple((place, 2) for place in both if _hands_down(place) and _usable(place))[:1]


def _hands_down(place: str) -> bool:
    """Whether groups in here (version 2) have the controllers that count."""
    try:
        with open(os.path.join(place, "cgroup.subtree_control"), encoding="utf-8") as file:
            return {"pids", "memory"} <= set(file.read().split())
    except OSError:
        return False


def _usable(place: str) -> bool:
    """Tried, not asked: a folder may be writable and still refuse. What a crash left here goes on this occasion."""
    probe = os.path.join(place, _name())
    try:
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError:
        return False
    for entry in os.scandir(place):
        owner = entry.name.removeprefix(PREFIX).partition("-")[0]
        if entry.name.startswith(PREFIX) and owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                os.rmdir(entry.path)
    return True


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
