"""What the scenarios share: a session with a scripted model, and short forms of what they compare."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tertulia import Conversation, Session, tool
from tertulia.testing import ScriptedModel


@asynccontextmanager
async def talk(store: Any, *script: Any, **options: Any) -> AsyncIterator[tuple[Session, ScriptedModel]]:
    """A session whose model answers by this script; `default` answers when it is used up."""
    model = ScriptedModel(script, default=options.pop("default", None))
    async with Session.open(store=store, model=model, **options) as session:
        yield session, model


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def shape(entries: Iterable[Any]) -> list[tuple[Any, ...]]:
    """What makes two transcripts equal."""
    return [(e.type, e.role, e.text, e.call_id, e.name, e.args, e.status) for e in entries]


async def texts(conversation: Conversation | Session) -> list[tuple[Any, str]]:
    """The transcript, as roles (or types) and texts."""
    return [(entry.role or entry.type, entry.text) for entry in await conversation.transcript()]


def asked(request: Any) -> list[tuple[str, str]]:
    """A model request, as roles and texts."""
    return [(message.role, message.text) for message in request.messages]


def sources(messages: Sequence[Any]) -> list[tuple[str, str, str]]:
    return [(each.source, each.text_preview, each.status) for each in messages]
