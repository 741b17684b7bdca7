"""What a connection needs of the Session, and words for what goes wrong."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ...records.clock import Clock
from .asking import Answerer, Sampler
from .config import ServerConfig
from .content import clean
from .logbook import Logbook


class Surroundings(msgspec.Struct, kw_only=True):
    clock: Clock
    cwd: str
    warn: Callable[[ServerConfig, str, str], None]
    answerer: Answerer | None = None
    sampler: Sampler | None = None
    log_folder: Path | None = None


def explain(error: BaseException, log: Logbook | None = None) -> str:
    """The innermost reason, and what the server itself said last."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = str(error).partition("For further information")[0]  # pydantic's own advice is for others
    text = clean(" ".join(said.split()), 500) or type(error).__name__
    last = clean(log.last, 300) if log is not None else ""
    return f"{text} ({last})" if last and not last.startswith("[tertulia]") else text


async def ended(tasks: "set[asyncio.Task[Any]]") -> None:
    """Cancel these, and wait until they are over."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
