"""How a chat looks in a terminal: text as it streams, everything else as a dim line."""

import os
import sys

from ..approvals.question import Approval
from ..records.event import (
    AnyEvent,
    Chart,
    Done,
    ErrorEvent,
    QueueEvent,
    RetrievalEvent,
    Retry,
    TextDelta,
    ThoughtDelta,
    ToolCallEvent,
    ToolResultEvent,
)
from ..session.inbox import preview
from . import render

DIM, RED, RESET = "\033[2m", "\033[31m", "\033[0m"


class Screen:
    def __init__(self) -> None:
        self._seen = sys.stdout.isatty()
        self._colour = self._seen and not os.environ.get("NO_COLOR")
        self._terminal = sys.stdin.isatty() and self._seen
        self._thinking = False  # whether what was streamed last is reasoning
        self._column = 0  # whether the cursor stands behind something

    def prompt(self, *, busy: bool) -> None:
        if self._terminal and not busy:
            self._fresh_line()
            self._write("> ")
            self._column = 0

    def note(self, text: str) -> None:
        self._fresh_line()
        self._write(text, DIM)
        self._write("\n")
        self._column = 0

    def question(self, approval: Approval) -> None:
        """A call that waits, and what can be typed."""
        self._fresh_line()
        self._write(f"? {approval.summary}\n")
        for number, option in enumerate(approval.options, 1):
            self._write(f"  {number} {option.label}\n")

    def event(self, event: AnyEvent) -> None:
        if isinstance(event, TextDelta | ThoughtDelta):
            self._streamed(event.text, thought=isinstance(event, ThoughtDelta))
        elif isinstance(event, Done):
            self._fresh_line()
            self.prompt(busy=False)
        elif isinstance(event, ErrorEvent):
            self._fresh_line()
            self._write(f"{event.code}: {event.message}", RED)
            self._write("\n")
            self._column = 0
        elif (note := _noted(event)) is not None:
            self.note(note)

    def _streamed(self, text: str, *, thought: bool) -> None:
        if thought != self._thinking:
            self._fresh_line()
        self._thinking = thought
        self._write(text, DIM if thought else "")
        self._column = 0 if text.endswith("\n") else 1

    def _fresh_line(self) -> None:
        if self._column:
            self._write("\n")
            self._column = 0

    def _write(self, text: str, colour: str = "") -> None:
        """The one way to the terminal: the only escapes that go there are our own."""
        if self._seen:
            text = render.plain(text)
        sys.stdout.write(f"{colour}{text}{RESET}" if colour and self._colour else text)
        sys.stdout.flush()


def _noted(event: AnyEvent) -> str | None:
    """What is worth a line of its own."""
    if isinstance(event, ToolCallEvent):
        return f"· {event.name} {preview(str(event.args), 200)}"
    if isinstance(event, ToolResultEvent):
        return f"  {event.status}: {preview(event.text, 300)}"
    if isinstance(event, RetrievalEvent):
        return f"  found for {event.query!r}: {preview(', '.join(hit.title for hit in event.hits), 300)}"
    if isinstance(event, Chart):
        return f"  chart: {preview(str(event.chart_data), 300)}"
    if isinstance(event, QueueEvent) and event.state == "queued":
        return "queued; it runs after this turn (/steer says something to the running one)"
    if isinstance(event, Retry):
        void = "; what it said is void" if event.discarded else ""
        return f"retrying in {event.delay:.1f} s{void}: {event.error}"
    return None
