"""The loop: ask the model, run what it calls, deliver a steer, ask again. Data in, records and events out."""

import asyncio

from ..models.base import Finished
from ..records.errors import OutputInvalid
from ..records.parts import Text
from ..records.record import Message
from . import calls
from .attempts import ask
from .engine import Ending, Turn
from .journal import Put
from .speech import answer
from .structured import mend


async def run(turn: Turn) -> Ending:
    """Our own engine's turn. It ends when the model calls nothing more, or at the limit of requests."""
    for left in reversed(range(turn.limits.turn_limit - turn.messages)):
        finished = await ask(turn)
        if not finished.calls:
            if turn.output is None or await _is_output(turn, finished, left):
                return Ending(stop_reason=finished.stop_reason, last=finished)
            continue
        called = await answer(turn, finished)
        await calls.run(turn, called)
        delivered = turn.deliver() if left else None  # where no request follows, no model would read it
        if delivered is not None:
            await asyncio.shield(delivered)
    return Ending(stop_reason="turn_limit")


async def _is_output(turn: Turn, finished: Finished, left: int) -> bool:
    """Whether the answer is what `output` asked for. One that is not is kept, and the model asked once to mend it."""
    assert turn.output is not None
    try:
        turn.parsed = turn.output.parse("".join(turn.texts))
        return True
    except OutputInvalid as error:
        if turn.mended or not left:
            raise
        turn.mended = True
        await answer(turn, finished)
        note = Message(
            seq=0, ts=0, turn=turn.id, role="user", parts=(Text(text=mend(error)),), origin="output"
        )
        await asyncio.shield(turn.journal.put(Put([note], turn=turn.id)))
        return False
