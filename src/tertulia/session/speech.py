"""What a turn's model says: announced, streamed to those who watch, and committed as one answer."""

import asyncio
from typing import Any

import msgspec

from ..models.base import Call, Finished
from ..records.event import IterationStart, TextDelta, ThoughtDelta
from ..records.ids import CallId, new_call_id
from ..records.parts import Text
from ..records.record import AnyRecord, Message, ModelUsage, Reasoning, ToolCall
from ..tools.results import storable
from .engine import Ending, Spoken, Turn
from .journal import Put
from .log import Live


def begin(turn: Turn) -> str:
    """A new answer begins: what it says from now on stands under a message id of its own."""
    turn.messages += 1
    turn.message_id = f"{turn.id}.{turn.messages}"
    turn.announced = turn.audible = False
    turn.texts = []
    return turn.message_id


async def said(turn: Turn, text: str) -> None:
    """Text that is blank so far is held back: when nothing else comes, it is no message."""
    text = storable(text)
    turn.texts.append(text)
    if not turn.audible:
        text = "".join(turn.texts)
        if not text.strip():
            return
        turn.audible = True
    await announce(turn)
    if turn.journal.wanted:
        turn.emit(TextDelta(text=text, message_id=turn.message_id, **turn.common()))


async def thought(turn: Turn, text: str) -> None:
    await announce(turn)
    if turn.journal.wanted:
        turn.emit(ThoughtDelta(text=text, message_id=turn.message_id, **turn.common()))


async def answer(turn: Turn, finished: Finished, *, reported: bool = False) -> tuple[ToolCall, ...]:
    """Commit an answer that calls tools, before any of them runs; the calls as they stand in the log.

    `reported`: the engine ran them by itself and could not be made to wait.
    """
    await announce(turn)
    drafts = answer_drafts(turn, finished, reported=reported)
    called = tuple(draft for draft in drafts if isinstance(draft, ToolCall))
    committed = turn.journal.put(Put(drafts, turn=turn.id, output=True))
    turn.answering = (committed, called)
    await asyncio.shield(committed)
    turn.answering, turn.spent = None, []
    turn.open_calls.update((call.call_id, call) for call in called)
    turn.tool_calls += len(called)
    turn.message_id, turn.texts, turn.journal.log.live = None, [], None
    return called


async def relay(turn: Turn, spoken: Spoken) -> Ending:
    """A turn that only passes on what the engine said by itself."""
    begin(turn)
    await said(turn, spoken.text)
    return Ending(stop_reason=spoken.finished.stop_reason, last=spoken.finished)


def answer_drafts(turn: Turn, finished: Finished, *, reported: bool = False) -> list[AnyRecord]:
    """The records of one answer: reasoning, what it said, its calls, what it cost."""
    text = "".join(turn.texts)
    drafts: list[AnyRecord] = []
    id, msg = turn.id, turn.message_id
    for part in finished.reasoning:
        drafts.append(
            Reasoning(seq=0, ts=0, turn=id, msg=msg, provider=part.provider, blob=part.blob, text=part.text)
        )
    if text.strip() or finished.parts:
        parts = ((Text(text=text),) if text.strip() else ()) + finished.parts
        drafts.append(Message(seq=0, ts=0, turn=id, msg=msg, role="assistant", parts=parts))
    if text.strip():
        turn.said = text
    used: set[CallId] = set()
    for call in finished.calls:
        args, invalid = _arguments(call)
        drafts.append(
            ToolCall(
                seq=0,
                ts=0,
                turn=id,
                msg=msg,
                call_id=_call_id(call, used),
                name=storable(call.name),
                args=args,
                invalid=invalid,
                reported=reported,
            )
        )
    if turn.counted is not finished:
        spend(turn, finished)
    turn.counted = None
    return [*drafts, *turn.spent]


def spend(turn: Turn, finished: Finished) -> None:
    """It is paid for, whatever becomes of what it says."""
    turn.counted = finished
    turn.usage += finished.usage
    if finished.cost is not None:
        turn.cost = (turn.cost or 0.0) + finished.cost
    turn.spent.append(
        ModelUsage(seq=0, ts=0, turn=turn.id, model=turn.model_name, usage=finished.usage, cost=finished.cost)
    )


def _arguments(call: Call) -> tuple[dict[str, Any], str | None]:
    """Half characters are told to the model: the words of a call, unlike a text's, are not ours to mend."""
    if call.invalid is not None:
        return call.args, storable(call.invalid)
    try:
        msgspec.json.encode(call.args)
    except UnicodeEncodeError:
        return {}, repr(call.args)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # a defect of the model's class, which the commit names
    return call.args, None


def _call_id(call: Call, used: set[CallId]) -> CallId:
    """The model's own id, or a new one where it gave none or repeats itself within one answer."""
    id = call.id if call.id and call.id not in used else new_call_id()
    used.add(id)
    return id


async def started(turn: Turn) -> None:
    """Until the turn's first commit is durable; raises when it failed."""
    if turn.started is not None:
        await asyncio.shield(turn.started)


async def announce(turn: Turn) -> None:
    """Before anything of an answer shows: the turn's start is durable, and the answer's own beginning is out."""
    if turn.announced:
        return
    await started(turn)
    turn.announced = True
    assert turn.message_id is not None
    live = turn.journal.log.live = Live(turn.id, turn.message_id)
    live.texts = turn.texts
    turn.emit(IterationStart(message_id=turn.message_id, **turn.common()))
