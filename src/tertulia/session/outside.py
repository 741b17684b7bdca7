"""What passes between a conversation and its engine outside of `run`: steers, and what the engine says by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from . import starting
from .desk import Desk
from .engine import Spoken, Turn
from .inbox import Item
from .shared import Setup


class Running(Protocol):
    """The runner, as far as it matters here."""

    desk: Desk
    setup: Setup
    turn: Turn | None
    spoken: list[Spoken]

    @property
    def pump(self) -> Callable[[], None]: ...


class Outside:
    def __init__(self, runner: Running) -> None:
        self._runner = runner
        self._listening: asyncio.Task[None] | None = None
        self._offers: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        """Follow what the engine says between turns, from the first input on."""
        if self._listening is not None:
            return
        output = self._runner.setup.engine.output()
        if output is not None:
            self._listening = asyncio.get_running_loop().create_task(
                self._follow(output), name="tertulia-engine"
            )

    def offer(self, item: Item) -> None:
        """A steer for the running turn, to an engine that takes steers by itself."""
        turn = self._runner.turn
        if item.source == "steer" and turn is not None and "steer" in self._runner.setup.engine.capabilities:
            task = asyncio.get_running_loop().create_task(self._offer(item, turn), name="tertulia-steer")
            self._offers.add(task)
            task.add_done_callback(self._offers.discard)

    async def close(self) -> None:
        tasks = [*self._offers, *([self._listening] if self._listening is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self, output: AsyncIterator[Spoken]) -> None:
        try:
            async for spoken in output:
                self._runner.spoken.append(spoken)
                self._runner.pump()
        except Exception as error:  # noqa: BLE001 - the conversation goes on without it, and says so
            self._runner.desk.warn(
                "engine", f"the engine's output broke off: {type(error).__name__}: {error}"
            )

    async def _offer(self, item: Item, turn: Turn) -> None:
        runner = self._runner
        try:
            taken = await runner.setup.engine.steer(item)
        except Exception as error:  # noqa: BLE001 - then it waits for the next boundary like any other
            runner.desk.warn("engine", f"the engine failed to take a steer: {type(error).__name__}: {error}")
            return
        if taken and runner.turn is turn and item in runner.desk.inbox.items:
            starting.take_in(runner.desk, turn, item)
