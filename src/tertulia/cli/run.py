"""`tertulia run`: one prompt, its answer on stdout."""

import argparse
import asyncio
import sys

import msgspec

from ..records.errors import InvalidInput
from ..records.event import AnyEvent, Done, Retry, ToolCallEvent, ToolResultEvent
from ..session.conversation import Conversation
from ..session.inbox import preview
from ..session.reply import Reply
from . import render, talk


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p", "--prompt", metavar="TEXT", required=True, help="what to say; - reads it from stdin"
    )
    talk.add(parser)
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the answer and what it cost as JSON")
    output.add_argument("--stream-json", action="store_true", help="print each event as a line of JSON")


def run(options: argparse.Namespace) -> int:
    talk.check(options)
    text = sys.stdin.read() if options.prompt == "-" else options.prompt
    if not text.strip():
        raise InvalidInput("the prompt is empty", hint="say something after -p, or on stdin with -p -")
    return asyncio.run(_run(options, text))


async def _run(options: argparse.Namespace, text: str) -> int:
    async with talk.open_session(options, approvals=talk.approvals(options, somebody=False)) as session:
        conversation = talk.conversation(session, options)
        if options.store:
            render.note(f"conversation {conversation.id}")
        try:
            reply = await _ask(conversation, text, options.stream_json)
        except asyncio.CancelledError:  # Ctrl-C
            conversation.cancel_active_prompt()
            raise
        if not options.stream_json:
            _show(conversation, reply, options.json)
    return 0


async def _ask(conversation: Conversation, text: str, as_lines: bool) -> Reply:
    async with conversation.events() as events:
        handle = await conversation.submit(text)
        async for event in events:
            if as_lines:
                render.show(msgspec.json.encode(event).decode(), flush=True)
            else:
                _progress(event)
            if isinstance(event, Done) and event.turn_id == handle.turn_id:
                break
    return await handle.reply()


def _progress(event: AnyEvent) -> None:
    if isinstance(event, ToolCallEvent):
        render.note(f"· {event.name} {preview(str(event.args), 200)}")
    elif isinstance(event, ToolResultEvent):
        render.note(f"  {event.status}: {preview(event.text, 200)}")
    elif isinstance(event, Retry):
        render.note(f"retrying in {event.delay:.1f} s: {event.error}")


def _show(conversation: Conversation, reply: Reply, as_json: bool) -> None:
    if as_json:
        render.data(
            {
                "conversation_id": conversation.id,
                "turn_id": reply.turn_id,
                "text": reply.text,
                "stop_reason": reply.stop_reason,
                "usage": msgspec.structs.asdict(reply.usage),
                "cost": reply.cost,
                "tool_calls": reply.tool_calls,
                "elapsed": reply.elapsed,
            }
        )
        return
    render.show(reply.text)
    if reply.stop_reason != "end":
        render.note(f"the answer ended early: {reply.stop_reason}")
