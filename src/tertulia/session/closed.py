"""Ending a conversation, and clearing its queue."""

import asyncio
from collections.abc import Sequence
from typing import Literal

from ..records.errors import InvalidInput, PromptCancelled, StorageError, TertuliaError
from ..records.record import Custom, Info
from . import closing, parking, persisting
from .engine import Turn
from .inbox import Item
from .journal import Put
from .reply import CancelResult, ClearResult
from .runner import Runner, without_end

STORE = 2.0
"""Seconds that the store has for the end of a turn, however few the turn itself was given."""


def clear_history(runner: Runner) -> ClearResult:
    history = runner.inbox.history
    removed = len(history)
    history.clear()
    return ClearResult(queued_removed=0, resolved_removed=removed)


def clear_state(runner: Runner, cancel_active: bool) -> ClearResult:
    """The queue first, so that none of its items counts as failed by the cancel."""
    waiting: Sequence[Item] = list(runner.inbox.items)
    listed = len(runner.inbox.listed())
    direct = any(item.source == "prompt" for item in waiting)
    runner.desk.drop(waiting, PromptCancelled("the queue was cleared"), "dropped", remember=False)
    runner.withdraw_ticket()
    resolved = clear_history(runner).resolved_removed
    active = cancel_active and (runner.cancel_turn("cancelled") or direct)
    return ClearResult(
        queued_removed=listed,
        resolved_removed=resolved,
        active_prompt_cancelled=active,
        texts=tuple(item.text for item in waiting if item.source != "prompt"),
    )


def info(record: Info) -> Put:
    """A change of the title or of being archived: the record, and the row that lists read."""
    if record.archived is None:
        return Put([record], row={"title": record.title})
    return Put([record], row={"archived": record.archived})


async def close(
    runner: Runner, mode: Literal["cancel", "drain"], timeout: float, *, streams: bool = True
) -> None:
    """Bounded: what has not ended by then is recorded as given up, and its slot freed.

    `streams` False leaves the streams of its events to the caller, who has a last event for them.
    """
    if mode not in ("cancel", "drain"):
        raise InvalidInput(f"mode is {mode!r}", hint="cancel or drain")
    if runner.closing is None:
        runner.closing = asyncio.ensure_future(_close(runner, mode, timeout, streams))
    elif mode == "cancel":
        runner.cancel_turn("cancelled")
    await asyncio.shield(runner.closing)


async def _close(runner: Runner, mode: str, timeout: float, streams: bool) -> None:
    runner.closed = True
    release_waiters(runner)
    runner.withdraw_ticket()
    if mode == "cancel" and not _found_parked(runner):
        runner.cancel_turn("cancelled")
    await _leave_parked(runner, timeout if mode == "drain" else 0.0)
    if not await _ended(runner, timeout) and mode == "drain":
        runner.cancel_turn("cancelled")
        await _ended(runner, min(timeout, runner.setup.limits.grace))
    if runner.turn is not None:
        await _force(runner, timeout)
    await runner.outside.close()
    await _close_engine(runner, timeout)
    await _flush(runner, timeout)
    await _close_files(runner)
    if streams:
        runner.shared.bus.finish(runner.log.id)
    runner.shared.owner.conversations.pop(runner.log.id, None)
    runner.shared.logs.pop(runner.log.id, None)


async def cancel(runner: Runner, *, keep_queue: bool) -> CancelResult:
    """Returns when the turn is over and all of it is durable."""
    turn, result = runner.turn, runner.cancel(keep_queue=keep_queue)
    if turn is not None and runner.turn is turn:
        await _over(runner)
    await runner.journal.flush()
    return result


def _over(runner: Runner) -> "asyncio.Future[None]":
    """Done when the present turn is settled."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    runner.turn_over.append(over)
    return over


def release_waiters(runner: Runner) -> None:
    """Whoever waits for a queued item is told now. The items themselves stay in a store that keeps them."""
    error = PromptCancelled("the conversation was closed before this ran")
    lost = [item for item in runner.inbox.items if not item.row]
    for item in [item for item in runner.inbox.items if item.row]:
        runner.inbox.items.remove(item)
        runner.desk.settle(item, error)
        item.status = "held"
    runner.desk.drop(lost, error, "dropped")


async def _ended(runner: Runner, timeout: float) -> bool:
    """Whether the turn ended in time."""
    if runner.turn is not None:
        await asyncio.wait([_over(runner)], timeout=max(0.0, timeout))
    return runner.turn is None


def _found_parked(runner: Runner) -> bool:
    """Whether its turn was found in the log, where it waits for a person, and nobody has touched it here."""
    return runner.turn is not None and runner.turn.parked and runner.turn.task is None


async def _leave_parked(runner: Runner, timeout: float) -> None:
    """A turn that waits for a person, or comes to it in time, waits on in a store that keeps it."""
    turn = runner.turn
    if turn is None or turn.cancelled or not _is_kept(runner, turn):
        return
    if not turn.parked and timeout:
        drained = runner.parking.drained = asyncio.get_running_loop().create_future()
        await asyncio.wait([drained, _over(runner)], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if runner.turn is not turn or not turn.parked or turn.midway & turn.waiting:
        return
    parking.leave(turn, parking.KEPT)
    if turn.task is None:
        runner.settle(turn)
    else:
        turn.task.cancel()


def _is_kept(runner: Runner, turn: Turn) -> bool:
    return runner.log.store.durable and runner.journal.retention_of(turn.id).bodies


async def _force(runner: Runner, timeout: float) -> None:
    """The turn does not end by itself: write its end for it, and stop waiting for its task."""
    turn = runner.turn
    if turn is None:
        return
    if turn.ended is None:
        forced = Custom(seq=0, ts=0, turn=turn.id, kind="close_forced", data={"timeout": timeout})
        runner.journal.put(Put([forced], turn=turn.id))
        runner.finish(turn, closing.cancellation(turn))
    if turn.ended is not None:
        await asyncio.wait([turn.ended], timeout=max(timeout, STORE))
    _give_up(runner, turn)


def _give_up(runner: Runner, turn: Turn) -> None:
    """Its task will not end: settle the turn without it."""
    if runner.turn is turn and turn.ended is not None:
        if not turn.ended.done():
            without_end(runner, turn, StorageError("the store did not answer in time"))
        runner.settle(turn)
        runner.journal.owed = ()  # its end may still be on its way


async def _close_engine(runner: Runner, timeout: float) -> None:
    try:
        await asyncio.wait_for(runner.setup.engine.close(), timeout)
    except Exception as error:  # noqa: BLE001 - closing goes on, and says so
        runner.desk.warn("engine", f"the engine failed to close: {type(error).__name__}: {error}")


async def _close_files(runner: Runner) -> None:
    """The file of a conversation that has one of its own (enable_jsonl_persistence)."""
    journal, store = runner.journal, runner.log.store
    if journal.mirror is not None:
        await journal.mirror.aclose()
    if store is not runner.shared.store:
        await journal.owner.release()
        persisting.leave(store)
        await store.aclose()


async def _flush(runner: Runner, timeout: float) -> None:
    try:
        await asyncio.wait_for(runner.journal.flush(), timeout)
    except (StorageError, TertuliaError, TimeoutError) as error:
        runner.desk.warn("storage", f"closed with changes that could not be stored: {error}")
