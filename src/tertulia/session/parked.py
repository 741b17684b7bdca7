"""A turn that a restart has left waiting for a person: found at opening, taken up again by the answer."""

import asyncio
from functools import partial

from ..models.names import missing_hint
from ..records.errors import ConfigError
from ..transcript.repair import parked
from . import starting
from .asking import Approvals
from .engine import Turn
from .inbox import Item
from .loading import open_tail, ready
from .parking import item_of, restore
from .runner import Runner


async def find(runner: Runner, approvals: Approvals) -> Item | None:
    """Its turn waits on, and its questions are open again: its input. Nothing is claimed and nothing runs."""
    left = parked(await open_tail(runner.log), runner.log.branch.at)
    if left is None:
        return None
    item = item_of(left)
    turn = starting.make_turn(runner.desk, runner.setup, item, parked=True)
    restore(turn, left)
    runner.parking.take_up(turn)
    runner.hold(turn)
    runner.log.open_turn = True
    for call, asked in left.questions:
        approvals.adopt(turn, call, asked, partial(resume, runner, turn))
    return item


async def resume(runner: Runner, turn: Turn) -> None:
    """Let it go on from its calls. Raises, and changes nothing, when the Session belongs to another process."""
    if runner.setup.model is None and "model" in runner.setup.engine.capabilities:
        raise ConfigError("this conversation has no model to go on with", hint=missing_hint())
    await ready(runner.desk)
    if turn.task is None and runner.turn is turn and turn.ended is None:
        runner.launch(turn)
        await asyncio.sleep(0)


async def go_on(runner: Runner) -> None:
    """Where what was queued is to run, a turn that waits is taken up too: its deadline counts, a function is asked."""
    turn = runner.turn
    if turn is not None and turn.parked and turn.task is None:
        await resume(runner, turn)
