"""What a connection needs of the Session, and words for what goes wrong."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ...records.clock import Clock
from ...records.errors import TertuliaError
from .asking import Answerer, Sampler
from .config import ServerConfig
from .content import clean
from .logbook import Logbook
from .oauth_files import Vault

Login = Callable[[str, str], Awaitable[None]]
"""Shows a person the page, by its address, where they sign in to a server, by its name."""


class Surroundings(msgspec.Struct, kw_only=True):
    clock: Clock
    cwd: str
    warn: Callable[[ServerConfig, str, str], None]
    answerer: Answerer | None = None
    sampler: Sampler | None = None
    log_folder: Path | None = None
    vault: Vault = msgspec.field(default_factory=Vault)
    login: Login | None = None


class Standing:
    """How a connection stands: whether it is lost, why the server does not let us in, how long its start may take."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.refusal: TertuliaError | None = None
        self._limit: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def starting(self, seconds: float) -> AsyncIterator[None]:
        self.refusal = None
        self.lost.clear()
        try:
            async with asyncio.timeout(seconds) as self._limit:
                yield
        finally:
            self._limit = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A person is asked meanwhile: the time of the start does not run."""
        limit, loop = self._limit, asyncio.get_running_loop()
        until = limit.when() if limit is not None else None
        if limit is None or until is None:
            yield
            return
        left = until - loop.time()
        limit.reschedule(None)
        try:
            yield
        finally:
            if self._limit is limit:
                limit.reschedule(loop.time() + left)

    def refuse(self, why: TertuliaError) -> None:
        self.refusal = self.refusal or why  # what follows from the first says less
        self.lost.set()


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
