"""Tool calls: gate, run, record the result. Each in a task of its own; a failure of one holds no other back."""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from ..records.errors import ConversationBusy, NotFound, StoragePolicyViolation, TertuliaError
from ..records.event import ToolProgress
from ..records.ids import CallId, ConversationId, SessionId
from ..records.parts import AnyPart, Text
from ..records.record import Custom, Hit, ResultStatus, Retrieval, ToolCall, ToolResult
from ..sandbox.files import Place
from ..tools.base import Tool, is_async
from ..tools.context import OUTPUT, Portal
from ..tools.results import bounded, result_parts, storable
from ..tools.schema import ArgumentError
from ..transcript.retention import parse as parse_retention
from ..transcript.retention import stricter
from . import changing
from .engine import Turn
from .journal import Put
from .threads import in_thread

Calling = contextvars.ContextVar[tuple[Turn, CallId] | None]
calling: Calling = contextvars.ContextVar("tertulia_calling", default=None)
"""The call on whose behalf the present code runs, inside a tool, and its turn. Tasks that a tool starts inherit it."""


def not_inside(session: SessionId) -> None:
    """A tool of this Session that waited for the Session's own slot would wait for ever."""
    found = calling.get()
    if found is None or found[1] not in found[0].open_calls:
        return  # no tool, or one that has answered: nothing waits for what comes after it
    if found[0].journal.session_id == session:
        raise ConversationBusy(
            "a tool waits for a turn of its own session", hint="use ToolContext.prompt, or follow_up()"
        )


class CallContext:
    """The ToolContext of one call."""

    def __init__(self, turn: Turn, call: ToolCall) -> None:
        self.session_id = turn.journal.session_id
        self.conversation_id = turn.journal.log.id
        self.turn_id = turn.id
        self.call_id = call.call_id
        self.cwd = turn.cwd
        self.sandbox = turn.sandbox
        self.max_output = turn.limits.max_output
        self.nested = turn.nested
        self._loop = asyncio.get_running_loop()
        self.portal = Portal(self._loop)
        self.refs: list[str] = []
        self.turn = turn
        self._name = call.name

    def progress(self, value: Any) -> None:
        self._loop.call_soon_threadsafe(self._emit, value)

    def _emit(self, value: Any) -> None:
        if self.call_id in self.turn.open_calls:
            self.turn.emit(
                ToolProgress(tool_call_id=self.call_id, name=self._name, progress=value, **self.turn.common())
            )

    def retrieved(self, query: str, hits: Sequence[Hit]) -> None:
        if hits:
            self._loop.call_soon_threadsafe(self._note, query, tuple(hits))

    def _note(self, query: str, hits: tuple[Hit, ...]) -> None:
        if self.call_id in self.turn.open_calls:
            record = Retrieval(seq=0, ts=0, turn=self.turn_id, query=query, hits=hits)
            self.turn.results.append(self.turn.journal.put(Put([record], turn=self.turn_id)))

    def tools(self) -> tuple[Tool, ...]:
        return self.turn.toolbox().enabled()

    async def prompt(
        self, input: Any, *, opened: Callable[[ConversationId], None] | None = None, **overrides: Any
    ) -> Any:
        if self.turn.sub_prompt is None:
            raise TertuliaError("this engine opens no sub-conversations")
        held = self.turn.journal.turn_retention.get(self.turn_id)
        if held is not None:  # what a prompt keeps out of the store, its sub-conversations do not put there
            overrides["retention"] = stricter(held, parse_retention(overrides.get("retention", held)))
        return await self.turn.sub_prompt(input, opened, **overrides)

    async def write_file(self, path: str, data: bytes | None, before: bytes | None) -> Place:
        return await changing.write_file(self.turn, self.call_id, path, data, before)

    async def put_blob(self, data: bytes) -> str:
        if not self.turn.journal.retention_of(self.turn.id).bodies:
            raise StoragePolicyViolation("this conversation keeps no bytes", hint="return them in the result")
        ref = await self.turn.store.put_blob(data)
        self.refs.append(ref)
        return ref

    async def get_blob(self, ref: str) -> bytes:
        results = (entry for entry in self.turn.journal.log.entries if isinstance(entry, ToolResult))
        if ref not in self.refs and not any(ref in result.refs for result in results):
            raise NotFound(
                f"no result of this conversation has {ref[:80]}", hint="copy the reference exactly"
            )
        return await self.turn.store.get_blob(ref)


async def run(turn: Turn, calls: Sequence[ToolCall]) -> None:
    """All of them at once; returns when every result is durable. A cancel gives the rest a grace period."""
    tasks = [asyncio.create_task(_one(turn, call), name=f"tertulia-call-{call.name}") for call in calls]
    try:
        await asyncio.wait(tasks)
        for task, call in zip(tasks, calls, strict=True):
            _broken_off(turn, call, task)
        await settled(turn)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await _grace(turn, tasks)
        raise


def _broken_off(turn: Turn, call: ToolCall, task: "asyncio.Task[None]") -> None:
    """A call that ended without a result still gets one: a tool may raise what is no Exception."""
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    if error is not None:
        finish(turn, call, "error", _text(f"{type(error).__name__}: {error}"))


async def settled(turn: Turn) -> None:
    """Until the results that were put are durable."""
    results, turn.results = turn.results, []
    for committed in results:
        await asyncio.shield(committed)


def begin(turn: Turn, call: ToolCall) -> None:
    """For engines that run tools by themselves: this call, committed already, is running now."""
    turn.open_calls[call.call_id] = call


def finish(
    turn: Turn, call: ToolCall, status: ResultStatus, parts: tuple[AnyPart, ...], refs: tuple[str, ...] = ()
) -> None:
    """Record the result of a call. One that comes after the turn gave the call up is kept as a custom record."""
    if turn.left:
        return  # it still waits, in the store
    if turn.open_calls.pop(call.call_id, None) is None:
        late = Custom(seq=0, ts=0, turn=turn.id, kind="late_tool_result", data={"tool_call_id": call.call_id})
        turn.journal.put(Put([late]))
        return
    result = ToolResult(
        seq=0, ts=0, turn=turn.id, call_id=call.call_id, name=call.name, status=status, parts=parts, refs=refs
    )
    committed = turn.journal.put(Put([result], turn=turn.id))
    turn.answered[call.call_id] = call, committed
    turn.results.append(committed)
    turn.waits()


async def _grace(turn: Turn, tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Wait for cancelled calls, as long as the limits allow; what still runs then is given up."""
    running = {task for task in tasks if not task.done()}
    if not running:
        return
    timer = asyncio.create_task(turn.clock.sleep(turn.limits.grace))
    try:
        while running and not timer.done():
            done, _ = await asyncio.wait({*running, timer}, return_when=asyncio.FIRST_COMPLETED)
            running -= done
    finally:
        timer.cancel()
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # the turn's end has a result for its call


async def _one(turn: Turn, call: ToolCall) -> None:
    context = CallContext(turn, call)
    status, parts = await _outcome(turn, call, context)
    cut, whole = bounded(parts, turn.limits.max_output)
    if whole is not None:
        cut = (*cut, *_text(await _kept(context, whole)))
    finish(turn, call, status, cut, tuple(context.refs))


async def _kept(context: CallContext, whole: bytes) -> str:
    """Where the whole of an output is that was cut."""
    try:
        return f"[the whole output: {OUTPUT}{await context.put_blob(whole)}]"
    except (TertuliaError, OSError) as error:
        return f"[the whole output was not kept: {error}]"


async def _outcome(
    turn: Turn, call: ToolCall, context: CallContext
) -> tuple[ResultStatus, tuple[AnyPart, ...]]:
    """What the tool answered, or what kept it from answering. Nothing it raises gets out of here."""
    tool = turn.toolbox().get(call.name)
    refused = _refusal(turn, tool, call)
    if tool is None or refused is not None:
        return "error", _text(refused or "")
    try:
        args = tool.validate(call.args) if tool.validate is not None else call.args
    except ArgumentError as error:
        return "error", _text(f"{call.name}: {error}")
    try:
        denied = await turn.gate(turn, call, tool) if turn.gate is not None else None
        if denied is not None:
            return "denied", _text(denied)
        return "ok", result_parts(await _invoke(turn, tool, args, context))
    except asyncio.CancelledError:
        if turn.cancelled is None:  # the tool's own doing: nobody cancelled the turn
            return "error", _text(f"{call.name} was cancelled from within")
        return "cancelled", _text("cancelled")
    except TertuliaError as error:
        return "error", _text(str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything; the model reads it
        return "error", _text(f"{type(error).__name__}: {error}")


def _refusal(turn: Turn, tool: Tool | None, call: ToolCall) -> str | None:
    if tool is None:
        names = ", ".join(tool.name for tool in turn.toolbox().enabled()) or "none"
        return f"there is no tool named {call.name!r}; available: {names}"
    if not tool.enabled:
        return f"the tool {call.name!r} is disabled"
    if call.invalid is not None:
        return f"the arguments of {call.name!r} were no JSON object: {call.invalid[:200]}"
    return None


async def _invoke(turn: Turn, tool: Tool, args: dict[str, Any], context: CallContext) -> Any:
    if tool.context_parameter is not None:
        args = {**args, tool.context_parameter: context}
    calling.set((turn, context.call_id))
    if is_async(tool.fn):
        return await tool.fn(**args)
    value = await in_thread(tool.fn, args)
    return await value if asyncio.iscoroutine(value) else value


def _text(text: str) -> tuple[AnyPart, ...]:
    return (Text(text=storable(text)),)
