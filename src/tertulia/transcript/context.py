"""Records to what a model is asked with: one record at a time, and never a copy of the history.

What is settled stands in one append-only list that every view shares; the few messages that may still change
(calls without their results, and what stands behind them) are a small tail that each view renders for itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, overload

import msgspec
from msgspec.structs import replace

from ..records.parts import AnyPart, Text, has_content, shown, text_of
from ..records.record import (
    AnyRecord,
    Compaction,
    Interruption,
    Message,
    Reasoning,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from . import tokens

COMPACTION = "compaction"
INTERRUPTION = "interruption"
NO_RESULT = "error: no result was recorded"
WITHHELD_SUMMARY = "[summary withheld]"

_CANCELLED_NOTE = "[The previous turn was interrupted by the user.]"
_NOTE = "[The previous turn was interrupted before it was finished.]"


class ModelMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a model request. A `tool` message holds the results of all calls of the one before it.

    `until` is the last seq that it covers; for a message with calls, their results included.
    """

    role: Literal["user", "assistant", "tool", "system"]
    parts: tuple[AnyPart, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    origin: str | None = None
    until: int = 0

    @property
    def text(self) -> str:
        if self.results:
            return "\n".join(result.text for result in self.results)
        return text_of(self.parts)


class View(Sequence[ModelMessage]):
    """The messages at one moment. What is added later never shows in it, and slicing it copies nothing."""

    __slots__ = ("_settled", "_size", "_span", "_tail")

    def __init__(
        self, settled: list[ModelMessage], size: int, tail: tuple[ModelMessage, ...], span: range
    ) -> None:
        self._settled = settled
        self._size = size
        self._tail = tail
        self._span = span

    def __len__(self) -> int:
        return len(self._span)

    @overload
    def __getitem__(self, index: int) -> ModelMessage: ...
    @overload
    def __getitem__(self, index: slice) -> "View": ...
    def __getitem__(self, index: int | slice) -> "ModelMessage | View":
        if isinstance(index, slice):
            return View(self._settled, self._size, self._tail, self._span[index])
        return self._at(self._span[index])

    def __iter__(self) -> Iterator[ModelMessage]:
        return map(self._at, self._span)

    def plus(self, *messages: ModelMessage) -> "View":
        """The same view with more behind it, for what is not in the log yet."""
        tail = (*self._tail, *messages)
        return View(self._settled, self._size, tail, range(self._span.start, self._size + len(tail)))

    def _at(self, position: int) -> ModelMessage:
        return self._settled[position] if position < self._size else self._tail[position - self._size]


class _Group:
    """What one model message held, while calls of it may still be answered."""

    __slots__ = ("aborted", "calls", "msg", "origin", "parts", "reasoning", "results", "unanswered", "until")

    def __init__(self, msg: str | None, origin: str | None) -> None:
        self.msg = msg
        self.origin = origin
        self.parts: tuple[AnyPart, ...] = ()
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult | None] = []  # one for each call
        self.unanswered = 0
        self.reasoning: list[Reasoning] = []
        self.aborted = False
        self.until = 0

    def add(self, record: Message | ToolCall | Reasoning) -> None:
        self.until = max(self.until, record.seq)
        if isinstance(record, ToolCall):
            self.calls.append(record)
            self.results.append(None)
            self.unanswered += 1
        elif isinstance(record, Reasoning):
            self.reasoning.append(record)
        else:
            self.aborted |= record.status == "aborted"
            if has_content(record.parts):
                self.parts += shown(record.parts)

    def answer(self, result: ToolResult) -> bool:
        """Give the result to the latest open call of its id; False when there is none."""
        for position in range(len(self.calls) - 1, -1, -1):
            if self.results[position] is None and self.calls[position].call_id == result.call_id:
                parts = shown(result.parts)
                self.results[position] = result if parts is result.parts else replace(result, parts=parts)
                self.unanswered -= 1
                self.until = max(self.until, result.seq)
                return True
        return False

    def render(self) -> tuple[ModelMessage, ...]:
        """An assistant message and one with the results, or fewer. Of an aborted one answered calls stay."""
        parts = () if self.aborted else self.parts
        if not self.calls:
            reasoning = tuple(self.reasoning)
            said = ModelMessage("assistant", parts, (), (), reasoning, self.origin, self.until)
            return (said,) if parts else ()
        pairs = [
            (call, result or _no_result(call))
            for call, result in zip(self.calls, self.results, strict=True)
            if result is not None or not self.aborted
        ]
        if not parts and not pairs:
            return ()
        said = ModelMessage(
            "assistant",
            parts,
            calls=tuple(call for call, _ in pairs),
            reasoning=tuple(self.reasoning),
            origin=self.origin,
            until=self.until,
        )
        if not pairs:
            return (said,)
        return (said, ModelMessage("tool", results=tuple(result for _, result in pairs), until=self.until))


class Context:
    """The fold. `add` each record of the path in order; `view` is what the next request carries."""

    def __init__(self) -> None:
        self._settled: list[ModelMessage] = []
        self._tail: list[_Group | ModelMessage] = []
        self._summarised = False  # then the summary is the first of the settled ones
        self._counted = 0  # so many settled messages are in `_tokens`
        self._tokens = 0

    def add(self, record: AnyRecord) -> None:
        match record:
            case Message(role="user" | "system") as said:
                if has_content(said.parts):
                    self._push(ModelMessage(said.role, shown(said.parts), origin=said.origin, until=said.seq))
            case Message() | ToolCall() | Reasoning():
                self._group(record).add(record)
            case ToolResult():
                self._answer(record)
            case Interruption():
                self._push(_note(record))
            case TurnStart() | TurnEnd():
                self._settle(everything=True)
            case Compaction():
                self._compact(record)
            case _:
                pass

    def view(self) -> View:
        tail: list[ModelMessage] = []
        _extend(tail, self._rendered(self._tail), self._settled[-1] if self._settled else None)
        size = len(self._settled)
        return View(self._settled, size, tuple(tail), range(size + len(tail)))

    @property
    def tokens(self) -> int:
        """About how many tokens the messages are. Each is counted once, when somebody first asks."""
        settled = self._settled
        while self._counted < len(settled):
            self._tokens += _tokens(settled[self._counted])
            self._counted += 1
        return self._tokens + sum(_tokens(message) for message in self.view()[self._counted :])

    def _push(self, item: _Group | ModelMessage) -> None:
        self._tail.append(item)
        self._settle()

    def _group(self, record: Message | ToolCall | Reasoning) -> _Group:
        """The group of the record's `msg`; calls without one join what they directly follow."""
        if record.msg is not None:
            for item in reversed(self._tail):
                if isinstance(item, _Group) and item.msg == record.msg:
                    return item
        elif self._tail and not isinstance(record, Message):
            last = self._tail[-1]
            if isinstance(last, _Group) and last.msg is None and not any(last.results):
                return last
        group = _Group(record.msg, record.origin)
        self._push(group)
        return group

    def _answer(self, result: ToolResult) -> None:
        for item in reversed(self._tail):
            if isinstance(item, _Group) and item.unanswered and item.answer(result):
                self._settle()
                return

    def _settle(self, everything: bool = False) -> None:
        """Move what can change no more from the tail to the settled list.

        The last message stays until another begins, as more of it may come; a turn's bounds settle everything:
        what has no result there will never get one.
        """
        if not self._tail:
            return
        count = len(self._tail)
        if not everything:
            count = next((n for n, item in enumerate(self._tail) if self._open(n, item)), count)
        if count:
            last = self._settled[-1] if self._settled else None
            _extend(self._settled, self._rendered(self._tail[:count]), last)
            del self._tail[:count]

    def _open(self, position: int, item: _Group | ModelMessage) -> bool:
        return isinstance(item, _Group) and (item.unanswered > 0 or position == len(self._tail) - 1)

    def _compact(self, record: Compaction) -> None:
        """The summary stands for all up to `through`; views that were taken keep the list they share."""
        text = Text(text=record.summary or WITHHELD_SUMMARY)
        summary = ModelMessage("user", (text,), origin=COMPACTION, until=record.through)
        rest = self._settled[1:] if self._summarised else self._settled
        self._settled = [summary, *(message for message in rest if message.until > record.through)]
        self._summarised = True
        self._counted = self._tokens = 0
        self._tail = [
            item
            for item in self._tail
            if item.until > record.through or (isinstance(item, _Group) and item.unanswered)
        ]

    @staticmethod
    def _rendered(items: Iterable[_Group | ModelMessage]) -> Iterator[ModelMessage]:
        for item in items:
            if isinstance(item, _Group):
                yield from item.render()
            else:
                yield item


def _tokens(message: ModelMessage) -> int:
    count = tokens.PER_MESSAGE + sum(map(tokens.of_part, message.parts))
    for call in message.calls:
        count += tokens.of_text(call.name) + tokens.of_value(call.args)
    for result in message.results:
        count += tokens.PER_MESSAGE + sum(map(tokens.of_part, result.parts))
    return count


def _extend(target: list[ModelMessage], more: Iterable[ModelMessage], last: ModelMessage | None) -> None:
    """Append them; of equal notes in a row the first stays."""
    for message in more:
        if last is None or not (_is_note(message) and _is_note(last) and message.parts == last.parts):
            target.append(message)
            last = message


def _is_note(message: ModelMessage) -> bool:
    return message.role == "user" and message.origin == INTERRUPTION


def _note(record: Interruption) -> ModelMessage:
    text = _CANCELLED_NOTE if record.reason == "cancelled" else _NOTE
    return ModelMessage("user", (Text(text=text),), origin=INTERRUPTION, until=record.seq)


def _no_result(call: ToolCall) -> ToolResult:
    return ToolResult(
        seq=0,
        ts=0,
        call_id=call.call_id,
        name=call.name,
        status="error",
        parts=(Text(text=NO_RESULT),),
        synthetic=True,
    )
