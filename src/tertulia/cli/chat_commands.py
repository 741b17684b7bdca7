"""What can be typed in a chat besides words to the agent: lines that begin with a slash."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ..approvals.question import Approval, covered
from ..records.errors import InvalidInput
from ..records.event import AnyEvent, Done
from ..session.conversation import Conversation
from ..session.inbox import preview
from ..session.session import Session
from .chat_screen import Screen
from .chat_servers import Questions


class Leave(Exception):
    """The chat is over."""


class Seen(NamedTuple):
    """The questions that were on the screen when a line was typed: an approval's id, and what a server asks."""

    approval: str | None = None
    question: object = None


class Chat:
    """Which conversation is talked to, and how the last turn went."""

    def __init__(self, session: Session, conversation: Conversation, servers: Questions) -> None:
        self.session = session
        self.conversation = conversation
        self.following = asyncio.Event()  # its events are being shown
        self.asked = asyncio.Event()  # a question was put
        self.put: str | None = None  # the approval whose question is on the screen
        self.servers = servers
        self.answering = Seen()  # what was there when the line came that is being handled
        self.status = 0
        self._started = 0
        self._ended = 0
        self._all_shown = asyncio.Event()

    def seen(self) -> Seen:
        return Seen(self.put, self.servers.put)

    async def say(self, text: str) -> None:
        await self.following.wait()
        self._started += 1
        await self.conversation.follow_up(text)

    def ended(self, event: AnyEvent) -> None:
        self._ended += 1
        self._all_shown.set()
        if isinstance(event, Done):
            self.status = 1 if event.status == "failed" else 0

    async def shown(self) -> None:
        """Until the end of every turn has been shown; what a cancel dropped has none."""
        while self._ended < self._started and self.conversation.busy:
            self._all_shown.clear()
            await self._all_shown.wait()
        await asyncio.sleep(0)


def is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


Command = Callable[[Chat, Screen, str], Awaitable[None]]


async def dispatch(chat: Chat, screen: Screen, line: str) -> None:
    text = line.strip()
    if not text:
        return
    if is_number(text) and (chat.answering.approval is not None or chat.session.approvals.pending()):
        await _choose(chat, int(text))
        return
    if not text.startswith("/"):
        await chat.say(text)
        return
    name, _, rest = text[1:].partition(" ")
    if name not in COMMANDS:
        raise InvalidInput(f"there is no command /{name}", hint="/help lists them")
    await COMMANDS[name][0](chat, screen, rest.strip())


async def _help(chat: Chat, screen: Screen, rest: str) -> None:
    for name, (_, text) in COMMANDS.items():
        screen.note(f"/{name:<11} {text}")


async def _steer(chat: Chat, screen: Screen, rest: str) -> None:
    if not rest:
        raise InvalidInput("/steer needs words", hint="/steer also look at the tests")
    await chat.conversation.steer(rest)


async def _cancel(chat: Chat, screen: Screen, rest: str) -> None:
    result = await chat.conversation.cancel()
    screen.note("cancelled" if result.active else "nothing was running")


async def _fork(chat: Chat, screen: Screen, rest: str) -> None:
    index = None
    if rest:
        if not is_number(rest):
            raise InvalidInput(
                f"/fork takes the number of a message, not {rest!r}", hint="/transcript shows them"
            )
        index = int(rest)
    parent = chat.conversation
    fork = await parent.fork(from_user_entry_index=index)
    chat.following.clear()
    chat.conversation = fork
    await chat.session.close_conversation(parent.id)
    screen.note(f"this is now {fork.id}, forked from {parent.id}")


async def _stats(chat: Chat, screen: Screen, rest: str) -> None:
    stats = await chat.conversation.stats()
    usage = stats.usage
    screen.note(f"conversation {stats.conversation_id}")
    screen.note(
        f"{stats.user_messages} user, {stats.assistant_messages} assistant, {stats.tool_calls} tool calls, "
        f"{stats.total_entries} entries, {stats.pending_messages} pending"
    )
    cost = f", cost {stats.cost:.4f}" if stats.cost is not None else ""
    screen.note(f"tokens in {usage.input_tokens}, out {usage.output_tokens}, requests {usage.requests}{cost}")


async def _transcript(chat: Chat, screen: Screen, rest: str) -> None:
    for entry in await chat.conversation.transcript():
        who = entry.role or entry.type
        text = entry.text or f"{entry.name or ''} {entry.args or ''}"
        screen.note(f"{entry.index:>4} {who}: {preview(text.strip(), 200)}")


async def _queue(chat: Chat, screen: Screen, rest: str) -> None:
    items = chat.conversation.queue.list()
    if rest == "run":
        screen.note(f"{await chat.conversation.queue.run()} released")
        return
    for item in items:
        screen.note(f"{item.id} {item.source}{' (held)' if item.held else ''}: {item.text_preview}")
    if not items:
        screen.note("nothing is queued")


async def _allow(chat: Chat, screen: Screen, rest: str) -> None:
    if rest not in ("", "always"):
        raise InvalidInput("/allow takes nothing, or the word always")
    await _answer(chat, option="allow_session" if rest else "allow_once")


async def _deny(chat: Chat, screen: Screen, rest: str) -> None:
    await _answer(chat, decision="deny", scope="once", feedback=rest or None)


async def _choose(chat: Chat, number: int) -> None:
    options = _asked(chat).options
    if not 0 < number <= len(options):
        raise InvalidInput(f"there is no answer {number}", hint=f"type a number from 1 to {len(options)}")
    await _answer(chat, option=options[number - 1].id)


async def _approvals(chat: Chat, screen: Screen, rest: str) -> None:
    approvals = chat.session.approvals
    for waiting in approvals.pending():
        screen.note(f"{waiting.id} waits: {preview(waiting.summary, 200)}")
    for grant in approvals.grants():
        screen.note(f"{grant.id} {grant.decision} {covered(grant.key)} in {grant.root}, {grant.scope}")
    if not approvals.pending() and not approvals.grants():
        screen.note("nothing waits, and nothing is remembered")


async def _revoke(chat: Chat, screen: Screen, rest: str) -> None:
    if not rest:
        raise InvalidInput("/revoke needs the id of a grant", hint="/approvals lists them")
    await chat.session.approvals.revoke(rest)
    screen.note(f"{rest} is revoked")


async def _reply(chat: Chat, screen: Screen, rest: str) -> None:
    chat.servers.answer(rest, chat.answering.question)


async def _decline(chat: Chat, screen: Screen, rest: str) -> None:
    chat.servers.decline(chat.answering.question)


async def _answer(chat: Chat, **answer: Any) -> None:
    asked = _asked(chat)
    await chat.session.approvals.answer(asked.id, **answer)
    if chat.put == asked.id:
        chat.put = None


def _asked(chat: Chat) -> Approval:
    """What the line that was typed is about: never a question that came onto the screen after it."""
    waiting = chat.session.approvals.pending()
    found = next((each for each in waiting if each.id == chat.answering.approval), None)
    if found is None and waiting:
        raise InvalidInput("that was typed before the question was asked", hint="type it again")
    if found is None:
        raise InvalidInput("nothing waits for an answer")
    return found


async def _diff(chat: Chat, screen: Screen, rest: str) -> None:
    changes = await chat.conversation.file_changes(rest or None)
    back = ", put back since" if changes.rewound else ""
    screen.note(f"{changes.turn_id}: {', '.join(changes.files)}{back}")
    screen.note(changes.diff.rstrip("\n"))


async def _rewind(chat: Chat, screen: Screen, rest: str) -> None:
    turn = rest or (await chat.conversation.file_changes()).turn_id
    files = await chat.conversation.rewind_files(turn)
    screen.note(f"{turn}: " + (f"put back {', '.join(files)}" if files else "there was nothing to put back"))


async def _quit(chat: Chat, screen: Screen, rest: str) -> None:
    raise Leave


COMMANDS: dict[str, tuple[Command, str]] = {
    "help": (_help, "show this list"),
    "steer": (_steer, "say something to the running turn"),
    "cancel": (_cancel, "stop the running turn and drop the queue, as Ctrl-C does"),
    "allow": (_allow, "let the tool that asks run; `/allow always` all its calls of this chat"),
    "deny": (_deny, "do not let it run; `/deny WHY` tells the model why"),
    "approvals": (_approvals, "show what waits for an answer, and the answers that are remembered"),
    "revoke": (_revoke, "forget a remembered answer: `/revoke ID`"),
    "answer": (_reply, "answer what an MCP server asks"),
    "decline": (_decline, "do not answer it"),
    "queue": (_queue, "show what is queued; `/queue run` runs what is held"),
    "fork": (_fork, "go on in a copy; `/fork N` in one that ends before message N"),
    "transcript": (_transcript, "show the conversation, numbered"),
    "diff": (_diff, "show what the last turn changed in files; `/diff TURN` another one"),
    "rewind": (_rewind, "put back what the last turn changed in files; `/rewind TURN` another one"),
    "stats": (_stats, "show counts, tokens and cost"),
    "quit": (_quit, "leave"),
}
"""Each command, and what /help says of it."""
