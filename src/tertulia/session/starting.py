"""How a turn starts: what it is given, its first commit, and a steer delivered into it."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from ..models.base import Model
from ..records.errors import InvalidInput
from ..records.event import AnyEvent
from ..records.ids import new_turn_id
from ..records.record import AnyRecord, Message, TurnStart
from ..store.base import Op
from ..tools.toolbox import Toolbox
from ..transcript.context import ModelMessage, View
from ..transcript.retention import Retention
from . import rows
from .desk import Desk, resolve
from .engine import CancelReason, Limits, Turn
from .inbox import Item
from .journal import Put
from .shared import Setup


def make_turn(desk: Desk, setup: Setup, item: Item | None, *, parked: bool = False) -> Turn:
    """The turn of an item, with what its overrides change for it alone; of what the engine said, without one.

    One that is found parked needs its model only when it goes on.
    """
    overrides = item.overrides if item is not None else {}
    model: Model | None = overrides.get("model") or setup.model
    if model is None and not parked and "model" in setup.engine.capabilities:
        raise InvalidInput("this conversation has no model", hint="open it with model=…")
    limits: Limits = overrides.get("limits") or setup.limits
    turn = Turn(
        item,
        "user" if item is not None else "engine",
        model,
        desk.journal,
        desk.shared.clock,
        limits,
        desk.shared.sandbox.cwd,
    )
    turn.id = item.turn_id if item is not None else new_turn_id()
    turn.store = desk.log.store
    turn.sandbox = desk.shared.sandbox
    turn.system = setup.system
    toolbox: Toolbox | None = overrides.get("toolbox")
    turn.toolbox = lambda: toolbox if toolbox is not None else setup.tools()
    if toolbox is None and setup.server_tools is not None:
        turn.tools_ready = setup.tools_ready
    turn.view = partial(view, desk, turn)
    turn.deliver = partial(deliver, desk, turn)
    turn.gate = setup.gate
    turn.fallbacks = () if "model" in overrides else setup.fallbacks
    turn.output = overrides.get("output")
    retention: Retention | None = overrides.get("retention")
    if retention is not None:
        desk.journal.turn_retention[turn.id] = retention
    return turn


def view(desk: Desk, turn: Turn) -> View:
    """History, delivered input, then this turn's own input, also while that is on its way to the disk."""
    history = desk.log.context.view()
    if turn.started is not None and not turn.started.done():
        return history.plus(ModelMessage("user", turn.input))
    return history


def begin(desk: Desk, setup: Setup, turn: Turn) -> None:
    """Hand over the first commit: turn_start, the queue's record, the user's message."""
    item = turn.item
    turn.store = desk.log.store  # a file may have become it while the turn waited
    start = TurnStart(
        seq=0,
        ts=0,
        turn=turn.id,
        item=item.id if item else None,
        engine=setup.engine.name,
        model=turn.model_name,
    )
    drafts: list[AnyRecord] = [start]
    ops: list[Op] = []
    before: tuple[AnyEvent, ...] = ()
    if item is not None:
        drafts += desk.delivered(item, ops)
        source = None if item.source == "prompt" else item.source
        drafts.append(Message(seq=0, ts=0, turn=turn.id, role="user", parts=item.parts, origin=source))
        if item.client_id is not None and desk.keeps_bodies_of(item):
            ops.append(rows.put_client_id(desk.log.id, item, turn.id))
        if not item.row:
            before = (desk.state("queued", item),)
    if turn.origin == "engine":
        drafts[0] = msgspec.structs.replace(start, origin="engine")
    put = Put(drafts, ops, turn=turn.id)
    put.before, put.after = before, (desk.state("running", None, turn),)
    turn.started = desk.journal.put(put)
    turn.started.add_done_callback(partial(_accepted, item))


def deliver(desk: Desk, turn: Turn) -> "asyncio.Future[Any] | None":
    """The oldest steer goes into the running turn, at this boundary."""
    item = desk.inbox.next_steer()
    return None if item is None else take_in(desk, turn, item)


def take_in(desk: Desk, turn: Turn, item: Item) -> "asyncio.Future[Any]":
    """This steer becomes part of the turn."""
    desk.inbox.take(item)
    item.status, item.turn_id = "running", turn.id
    turn.items.append(item)
    ops: list[Op] = []
    drafts = desk.delivered(item, ops)
    drafts.append(Message(seq=0, ts=0, turn=turn.id, role="user", parts=item.parts, origin="steer"))
    if item.client_id is not None and desk.keeps_bodies_of(item):
        ops.append(rows.put_client_id(desk.log.id, item, turn.id))
    committed = turn.deliveries[item.id] = desk.journal.put(Put(drafts, ops, turn=turn.id))
    return committed


async def expire(turn: Turn, cancel: Callable[[CancelReason], bool]) -> None:
    """Cancel the turn when its time is up."""
    await turn.clock.sleep(turn.limits.turn_timeout or 0.0)
    cancel("timeout")


async def interrupt(desk: Desk, setup: Setup) -> None:
    """Stop what the engine runs outside of our task. One that cannot stop must not keep the turn from ending."""
    try:
        await setup.engine.interrupt()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        desk.warn("engine", f"the engine failed to stop: {error}")


def _accepted(item: Item | None, committed: "asyncio.Future[Any]") -> None:
    if item is not None:
        resolve(item.receipt, committed.exception())
