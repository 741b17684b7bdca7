"""What the benchmarks share: a result, its goal, rounds in which ours and the floor take turns, and the two stores."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tertulia import Session
from tertulia.records.codec import decode
from tertulia.records.record import Message, ToolResult
from tertulia.store.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parent.parent
Scale = Literal["quick", "usual", "full"]
Way = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for our figure, for its ratio to the floor, or for what it is `over` the floor."""

    of: Literal["ours", "ratio", "over"]
    limit: float
    least: bool = False

    def __str__(self) -> str:
        what = {"ours": "", "ratio": "ratio ", "over": "floor + "}[self.of]
        return f"{what}{'≥' if self.least else '≤'} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Result:
    what: str
    ours: float
    unit: str
    floor: float | None = None
    beside: str = ""
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        return self.ours / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        over = self.ours - self.floor if self.floor is not None else None
        value = {"ours": self.ours, "ratio": self.ratio, "over": over}[self.goal.of]
        if value is None:
            return None
        return value >= self.goal.limit if self.goal.least else value <= self.goal.limit

    def as_dict(self) -> dict[str, Any]:
        return {
            "what": self.what, "ours": self.ours, "unit": self.unit, "floor": self.floor, "beside": self.beside,
            "ratio": self.ratio, "goal": str(self.goal or ""), "met": self.met,
        }  # fmt: skip


def pick(scale: Scale, quick: int, usual: int, full: int | None = None) -> int:
    return {"quick": quick, "usual": usual, "full": full or usual}[scale]


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


async def rounds(count: int, *ways: Way) -> list[float]:
    """The median figure of each way. They take turns, so that what else the machine does falls on all of them."""
    figures: list[list[float]] = [[] for _ in ways]
    for _ in range(count):
        for way, kept in zip(ways, figures, strict=True):
            kept.append(await way())
    return [statistics.median(kept) for kept in figures]


async def timed(times: int, action: Callable[[], Awaitable[Any]]) -> float:
    """Milliseconds each."""
    start = time.perf_counter()
    for _ in range(times):
        await action()
    return (time.perf_counter() - start) * 1e3 / times


def awaitable(action: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def run() -> Any:
        return action()

    return run


@asynccontextmanager
async def sqlite() -> AsyncIterator[tuple[SqliteStore, Path]]:
    """A store in a folder of its own, which is on the disk of TMPDIR, and the folder."""
    with tempfile.TemporaryDirectory(prefix="tertulia-bench-") as folder:
        store = await SqliteStore.at(Path(folder) / "ours.db")
        try:
            yield store, Path(folder)
        finally:
            await store.aclose()


async def last_turn(session: Session) -> list[list[bytes]]:
    """What the last turn wrote, as the commits that a text turn (2) or a turn with one call (4) has to await."""
    rows = await session._shared.store.read(session.root._log.path(), limit=16, reverse=True)
    commits: list[list[bytes]] = [[]]
    for row in reversed(rows):
        record = decode(row.data)
        if record.type == "turn_start":
            commits = [[]]
        if isinstance(record, ToolResult):
            commits.append([])
        commits[-1].append(row.data)
        if isinstance(record, ToolResult) or (isinstance(record, Message) and record.role == "user"):
            commits.append([])
    return commits


async def fresh(function: str, *args: int) -> Any:
    """The figure that `module:function` prints in an interpreter of its own."""
    module, _, name = function.partition(":")
    code = f"import asyncio; from {module} import {name}; print(asyncio.run({name}(*{args!r})))"
    return float(await asyncio.to_thread(python, code))


def python(code: str, **environment: str) -> str:
    """What the code prints, run by an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
