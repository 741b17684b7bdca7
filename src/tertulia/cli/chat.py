"""`tertulia chat`: talk to an agent in the terminal.

What is typed while a turn runs is queued. Ctrl-C cancels the turn; pressed twice, or when nothing runs, it leaves.
"""

import argparse
import asyncio
import os
import select
import signal
import sys
import threading
from typing import Any

from ..records.errors import TertuliaError
from . import render, talk
from .chat_commands import Chat, Leave, Seen, dispatch
from .chat_screen import Screen
from .chat_servers import Questions

Lines = asyncio.Queue[tuple[str, Seen] | None]
"""What was typed, and the questions that it may answer; None at the end of the input."""

LEAVE_WITHIN = 2.0  # seconds between two Ctrl-C that count as one wish to leave


def add(parser: argparse.ArgumentParser) -> None:
    talk.add(parser)


def run(options: argparse.Namespace) -> int:
    talk.check(options)
    return asyncio.run(_chat(options))


async def _chat(options: argparse.Namespace) -> int:
    asks = talk.approvals(options, somebody=sys.stdin.isatty())  # from a pipe nobody would ever answer
    servers, screen = Questions(), Screen()
    servers.show = screen.note
    given = {"elicitation": servers} if sys.stdin.isatty() else {}
    async with talk.open_session(options, on_error="continue", approvals=asks, **given) as session:
        chat = Chat(session, talk.conversation(session, options), servers)
        screen.note(f"conversation {chat.conversation.id}; /help lists the commands")
        lines: Lines = asyncio.Queue()
        _read_lines(chat, asyncio.get_running_loop(), lines)
        leaving = _on_interrupt(chat, screen)
        showing = asyncio.gather(_show(chat, screen), _ask(chat, screen))
        try:
            return await _loop(chat, screen, lines, leaving)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
            if not options.store and session.approvals.pending():
                chat.conversation.cancel_active_prompt()  # nobody could ever answer


async def _loop(chat: Chat, screen: Screen, lines: "Lines", leaving: "asyncio.Future[int]") -> int:
    while True:
        screen.prompt(busy=chat.conversation.busy and chat.put is None)
        line = asyncio.ensure_future(lines.get())
        await _either(line, leaving)
        if leaving.done():
            line.cancel()
            chat.conversation.cancel_active_prompt()
            return leaving.result()
        typed = line.result()
        if typed is None:
            await _finish(chat, leaving)
            return leaving.result() if leaving.done() else chat.status
        text, chat.answering = typed
        try:
            await dispatch(chat, screen, text)
        except Leave:
            return chat.status
        except TertuliaError as error:
            render.error(error, as_json=False)


async def _finish(chat: Chat, leaving: "asyncio.Future[int]") -> None:
    """The input has ended: let what runs and waits finish, and its output be shown. Nobody can answer any more."""
    idle = asyncio.ensure_future(chat.conversation.wait_idle())
    while not idle.done() and not leaving.done() and not chat.session.approvals.pending():
        chat.asked.clear()
        asked = asyncio.ensure_future(chat.asked.wait())
        await _either(idle, leaving, asked)
        asked.cancel()
    idle.cancel()
    if not chat.session.approvals.pending():
        await chat.shown()


async def _either(*futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _show(chat: Chat, screen: Screen) -> None:
    """Follow the conversation that is talked to; a fork changes which that is."""
    while True:
        conversation = chat.conversation
        async with conversation.events() as events:
            chat.following.set()
            async for event in events:
                screen.event(event)
                if event.type == "done":
                    chat.ended(event)
                if chat.conversation is not conversation:
                    break
            else:
                if chat.conversation is conversation:
                    return


async def _ask(chat: Chat, screen: Screen) -> None:
    """Put the questions of all the Session's conversations, one at a time."""
    last = None
    async with chat.session.events() as events:
        while True:
            waiting = chat.session.approvals.pending()
            first = waiting[0].id if waiting else None
            if first != last:
                chat.put, last = None, first
                if waiting:
                    screen.question(waiting[0])
                    chat.put = first  # what is typed from now on may be its answer
                    screen.prompt(busy=False)
                    chat.asked.set()
            async for event in events:
                if event.type in ("approval_request", "approval_resolved"):
                    break
            else:
                return


def _on_interrupt(chat: Chat, screen: Screen) -> "asyncio.Future[int]":
    """Done when Ctrl-C says so."""
    loop = asyncio.get_running_loop()
    leaving: asyncio.Future[int] = loop.create_future()
    last = -LEAVE_WITHIN

    def pressed() -> None:
        nonlocal last
        now = loop.time()
        if (not chat.conversation.busy or now - last < LEAVE_WITHIN) and not leaving.done():
            leaving.set_result(130)
            return
        last = now
        dropped = chat.conversation.cancel_active_prompt().dropped
        more = f"; {len(dropped)} queued dropped" if dropped else ""
        screen.note(f"cancelled{more}; Ctrl-C again leaves")

    loop.add_signal_handler(signal.SIGINT, pressed)
    return leaving


def _typed(chat: Chat) -> tuple[bytes, Seen, bool]:
    """What a person has typed up to now, the question it was typed at, and whether it is the end.

    It is taken all at once: of lines that were typed ahead, the second is not to be read when the first has had its
    effect.
    """
    file = sys.stdin.fileno()
    data, put, more = b"", Seen(), True
    while more and len(data) < 65536:
        try:
            chunk = os.read(file, 65536)
        except OSError:
            chunk = b""
        if not data:
            put = chat.seen()
        data += chunk
        if not chunk:
            return data, put, True
        more = os.isatty(file) and bool(select.select([file], [], [], 0)[0])
    return data, put, False


def _read_lines(chat: Chat, loop: asyncio.AbstractEventLoop, lines: "Lines") -> None:
    """Lines of stdin, whatever it is, each with the question that was on the screen when it came.

    Read below Python's buffers: a thread blocked in them would spoil the exit.
    """

    def read() -> None:
        rest, ended = b"", False
        while not ended:
            data, put, ended = _typed(chat)
            *whole, rest = (rest + data).split(b"\n")
            if ended and rest:
                whole.append(rest)
            for line in whole:
                loop.call_soon_threadsafe(lines.put_nowait, (line.decode("utf-8", "replace"), put))
        loop.call_soon_threadsafe(lines.put_nowait, None)

    def guarded() -> None:
        try:
            read()
        except RuntimeError:  # the loop has closed: the chat is over
            return

    threading.Thread(target=guarded, name="tertulia-stdin", daemon=True).start()
