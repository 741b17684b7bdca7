"""`tertulia mcp serve`: a Session as an MCP server, so that other agents can prompt it."""

import argparse
from typing import Any

from ..session.host import Host
from ..tools.base import tool
from ..tools.mcp.serve import serve as serve_tools
from .talk import chosen_model

LONGEST = 100_000  # characters of a transcript


async def serve(options: argparse.Namespace) -> int:
    """Conversations are made when they are needed. What asks for an approval is denied: nobody could answer."""
    _, model = chosen_model(options.model)
    async with await Host.open(store=options.store, model=model, approvals="deny") as host:
        desk = Desk(host)
        await serve_tools("tertulia", [tool(desk.prompt), tool(desk.fork), tool(desk.read_transcript)])
    return 0


class Desk:
    """What other agents may do: their names and docstrings are what they are told."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def prompt(self, text: str, conversation_id: str | None = None) -> dict[str, Any]:
        """Ask, and wait for the answer. Without conversation_id a new conversation begins, whose id is returned."""
        host = self._host
        conversation = await (host.create() if conversation_id is None else host.load(conversation_id))
        reply = await conversation.prompt(text, when_busy="follow_up")
        return {"conversation_id": conversation.id, "text": reply.text, "stop_reason": reply.stop_reason}

    async def fork(self, conversation_id: str, from_user_entry_index: int | None = None) -> dict[str, Any]:
        """A new conversation that begins with what stands in this one; with an index, with what stands before it."""
        child = await (await self._host.load(conversation_id)).fork(from_user_entry_index)
        return {"conversation_id": child.id}

    async def read_transcript(self, conversation_id: str) -> str:
        """What was said in a conversation, as Markdown; the end of it where it is long."""
        text = await (await self._host.load(conversation_id)).export("md")
        return text if len(text) <= LONGEST else f"[…]\n{text[-LONGEST:]}"
