"""How a turn's last commit is made: what it leaves behind when it ends well, is cancelled, or fails."""

from collections.abc import Iterable

import msgspec

from ..records.errors import PromptCancelled, StorageError, TertuliaError, TurnTimeout
from ..records.parts import Text
from ..records.record import (
    AnyRecord,
    Approval,
    Interruption,
    Message,
    ResultStatus,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStatus,
)
from .engine import Ending, Turn
from .reply import Reply
from .speech import answer_drafts


def cancellation(turn: Turn) -> TertuliaError:
    """What a cancelled turn ends with."""
    if turn.cancelled == "timeout":
        return TurnTimeout(turn.timeout or f"the turn took longer than {turn.limits.turn_timeout} seconds")
    return PromptCancelled("the prompt was cancelled")


def status_of(outcome: Ending | BaseException) -> TurnStatus:
    if isinstance(outcome, Ending):
        return "completed"
    if isinstance(outcome, PromptCancelled):
        return "cancelled"
    return "timed_out" if isinstance(outcome, TurnTimeout) else "failed"


def drafts(turn: Turn, outcome: Ending | BaseException) -> list[AnyRecord]:
    """The last answer, or the traces of a broken one, and the turn's end."""
    found: list[AnyRecord] = []
    if isinstance(outcome, Ending):
        found += answer_drafts(turn, outcome.last) if outcome.last is not None else turn.spent
        return [*found, _end(turn, outcome)]
    take_answered(turn)
    text = "".join(turn.texts) if turn.announced else ""  # what nobody was shown is not kept
    if text.strip():
        found.append(
            Message(
                seq=0, ts=0, turn=turn.id, msg=turn.message_id, role="assistant", parts=(Text(text=text),),
                status="aborted",
            )
        )  # fmt: skip
    found += [_undecided(asked) for asked in turn.asked.values()]
    turn.asked.clear()
    found += abandoned_calls(turn, outcome)
    found += turn.spent  # answers that were taken back are paid for all the same
    if isinstance(outcome, PromptCancelled | TurnTimeout):
        found.append(Interruption(seq=0, ts=0, turn=turn.id, reason=turn.cancelled or "cancelled"))
    return [*found, _end(turn, outcome)]


def take_answered(turn: Turn) -> None:
    """Settle what became of an answer whose commit nobody waited for: its calls stand in the log, or never will."""
    if turn.answering is None:
        return
    committed, called = turn.answering
    turn.answering = None
    if not (committed.done() and committed.exception() is not None):
        turn.texts, turn.spent = [], []
        turn.open_calls.update((call.call_id, call) for call in called)


def abandoned_calls(turn: Turn, outcome: BaseException) -> list[AnyRecord]:
    """One result for each call that has none in the log; what its tool may still answer comes too late.

    A result that could not be stored is none. One that is on its way comes before this, or nothing of both comes.
    """
    calls = list(turn.open_calls.values())
    turn.open_calls.clear()
    for call, committed in turn.answered.values():
        if committed.done() and (committed.cancelled() or committed.exception() is not None):
            calls.append(call)
    turn.answered.clear()
    return no_results(turn, calls, outcome)


def no_results(turn: Turn, calls: Iterable[ToolCall], outcome: BaseException) -> list[AnyRecord]:
    cancelled = isinstance(outcome, PromptCancelled | TurnTimeout)
    status: ResultStatus = "cancelled" if cancelled else "error"
    text = "cancelled before it finished" if cancelled else "given up: the turn failed"
    return [
        ToolResult(
            seq=0, ts=0, turn=turn.id, call_id=call.call_id, name=call.name, status=status,
            parts=(Text(text=text),), synthetic=True,
        )
        for call in calls
    ]  # fmt: skip


def _undecided(asked: Approval) -> Approval:
    """What ends a question that nobody answered."""
    return msgspec.structs.replace(
        asked,
        seq=0,
        ts=0,
        phase="decided",
        summary="",
        decision="cancelled",
        scope="once",
        expires=None,
        by="cancel",
    )


def _end(turn: Turn, outcome: Ending | BaseException) -> TurnEnd:
    code = error = stop = None
    if isinstance(outcome, Ending):
        stop = outcome.stop_reason
    else:
        code = code_of(outcome)
        error = str(outcome)
    return TurnEnd(
        seq=0,
        ts=0,
        turn=turn.id,
        status=status_of(outcome),
        code=code,
        error=error,
        stop_reason=stop,
        usage=turn.usage,
        cost=turn.cost,
        elapsed=elapsed(turn),
    )


def code_of(error: BaseException) -> str:
    """As a turn's end names it. All that a store does wrong has one code there; the text says which it was."""
    if isinstance(error, StorageError):
        return StorageError.code
    return error.code if isinstance(error, TertuliaError) else "internal"


def elapsed(turn: Turn) -> float:
    return round(turn.clock.monotonic() - turn.began, 6)


def reply(turn: Turn, ending: Ending) -> Reply:
    return Reply(
        text=turn.said,
        output=turn.parsed,
        context_tokens=turn.journal.log.context_tokens,
        turn_id=turn.id,
        stop_reason=ending.stop_reason,
        usage=turn.usage,
        cost=turn.cost,
        tool_calls=turn.tool_calls,
        elapsed=elapsed(turn),
    )
