"""A cgroup for one command, where this process may make one: the kernel then refuses what the watcher would stop."""

import asyncio
import contextlib
import functools
import os

from .policy import Limits

V1 = "/sys/fs/cgroup"
PREFIX = "tertulia-"
CONTROLLERS = ("cpu", "pids", "memory")
"""With `cpu` a command of many processes gets the share of one group: those who watch it have their turn."""


class Cgroup:
    def __init__(self, pid: int, limits: Limits) -> None:
        self._name = f"{PREFIX}{os.getpid()}-{pid}"
        self._limits = limits
        self._folders: list[str] = []
        self._joining: asyncio.Future[None] | None = None

    def join(self, pid: int) -> "asyncio.Future[None]":
        """Put a process in, and so what it starts from then on.

        Beside the loop: moving a process makes the kernel wait until all its processors have noticed.
        """
        self._joining = asyncio.get_running_loop().run_in_executor(None, self._join, pid)
        return self._joining

    def _join(self, pid: int) -> None:
        self._folders = [folder for place in places() if (folder := self._make(*place))]
        for folder in self._folders:
            with contextlib.suppress(OSError):  # it has ended
                _write(os.path.join(folder, "cgroup.procs"), str(pid))

    def _make(self, place: str, version: int) -> str | None:
        folder = os.path.join(place, self._name)
        try:
            os.mkdir(folder)
            for name, value in settings(self._limits, version).items():
                path = os.path.join(folder, name)
                if os.path.exists(path):
                    _write(path, str(value))
        except OSError:
            return None  # the watcher holds the limits alone
        return folder

    async def remove(self) -> None:
        """After the last process has ended; the kernel may still be at it."""
        if self._joining is not None:
            await asyncio.wait([self._joining])
        for _ in range(100):
            for folder in list(self._folders):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
                    self._folders.remove(folder)
            if not self._folders:
                return
            await asyncio.sleep(0.01)


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
    probe = os.path.join(place, f"{PREFIX}{os.getpid()}-probe")
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
