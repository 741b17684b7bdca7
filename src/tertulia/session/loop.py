"""Our own engine: the loop of session/turn, over any Model."""

from collections.abc import AsyncIterator

from . import turn as loop
from .engine import Ending, Spoken, Turn
from .inbox import Item


class LoopEngine:
    """Keeps nothing between turns, so all conversations may share one."""

    name = "loop"
    capabilities = frozenset({"model"})

    async def run(self, turn: Turn) -> Ending:
        return await loop.run(turn)

    async def steer(self, item: Item) -> bool:
        return False  # the loop takes steers from the queue, at its boundaries

    async def interrupt(self) -> None:
        """Nothing runs outside of the turn's task."""

    async def close(self) -> None:
        """Nothing to free."""

    def output(self) -> AsyncIterator[Spoken] | None:
        return None
