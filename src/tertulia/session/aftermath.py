"""What a failed turn means for the queue behind it, and for those who watch."""

import msgspec

from ..records.errors import PromptCancelled, StorageError
from ..records.record import AnyRecord, TurnEnd, TurnStart
from ..transcript.repair import unanswered
from ..transcript.replay import events
from .closing import code_of, elapsed, no_results
from .desk import Desk
from .engine import Ending, Turn
from .shared import Setup

GOES_ON = "send_message"
"""What came this way runs on whatever became of what was before it."""


def queue_after(desk: Desk, setup: Setup, outcome: Ending | BaseException) -> None:
    """A failure fails what is queued behind it, or holds it, as the conversation is set up. A cancel has settled the
    queue by itself; a store that failed says nothing against the items, so they wait."""
    if isinstance(outcome, Ending | PromptCancelled):
        return
    behind = [item for item in desk.inbox.runnable() if item.source != GOES_ON]
    if isinstance(outcome, StorageError) or setup.on_error == "hold":
        desk.hold(behind)
    elif setup.on_error == "fail":
        desk.drop(behind, outcome, "failed")


def storage_failed(desk: Desk, setup: Setup, turn: Turn, error: BaseException) -> None:
    """The end of a turn that could not be stored goes out live; the next commit that works begins with it."""
    end = TurnEnd(
        seq=0,
        ts=desk.shared.clock.now(),
        turn=turn.id,
        status="failed",
        code=code_of(error),
        error=str(error),
        usage=turn.usage,
        cost=turn.cost,
        elapsed=elapsed(turn),
    )
    shown: list[AnyRecord] = [end]
    if turn.started is not None and turn.started.done() and turn.started.exception() is None:
        calls = [call for call in unanswered(desk.log.tail or ()) if call.turn == turn.id]
        shown = [*no_results(turn, calls, error), *turn.spent, end]
        desk.journal.owed += tuple(shown)
    else:  # nobody has seen it begin
        name, model = setup.engine.name, turn.model_name
        shown.insert(0, TurnStart(seq=0, ts=end.ts, turn=turn.id, engine=name, model=model))
        if turn.item is not None and (turn.started is None or turn.started.done()):
            desk.put_back(turn.item)
    for record in shown:
        for event in events(record, desk.journal.envelope):
            desk.journal.publish(msgspec.structs.replace(event, seq=None))
