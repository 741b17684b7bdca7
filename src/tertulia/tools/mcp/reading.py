"""What servers offer besides tools: resources and prompts."""

from typing import Any

import msgspec

from ...records.parts import AnyPart
from .connection import Connection
from .content import clean, part_of, resource_part
from .listing import PAGES

MAX_LISTED = 1_000


class McpResource(msgspec.Struct, frozen=True, kw_only=True):
    uri: str
    name: str
    description: str = ""
    media: str | None = None


class McpPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """`arguments`: name → whether it is required."""

    name: str
    description: str = ""
    arguments: dict[str, bool] = {}


class Reading:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def resources(self) -> tuple[McpResource, ...]:
        client = await self._connection.client()
        if client.server_capabilities.resources is None:
            return ()
        found = await self._pages(client.list_resources, "resources")
        return tuple(
            McpResource(
                uri=str(each.uri),
                name=clean(each.name, 200),
                description=clean(each.description or "", 1_000),
                media=each.mime_type,
            )
            for each in found
        )

    async def resource(self, uri: str) -> tuple[AnyPart, ...]:
        client = await self._connection.client()
        result = await self._asked(client.read_resource(uri))
        return tuple(resource_part(each) for each in result.contents)

    async def prompts(self) -> tuple[McpPrompt, ...]:
        client = await self._connection.client()
        if client.server_capabilities.prompts is None:
            return ()
        found = await self._pages(client.list_prompts, "prompts")
        return tuple(
            McpPrompt(
                name=each.name,
                description=clean(each.description or "", 1_000),
                arguments={one.name: bool(one.required) for one in each.arguments or ()},
            )
            for each in found
        )

    async def prompt(self, name: str, arguments: dict[str, str]) -> tuple[tuple[str, AnyPart], ...]:
        client = await self._connection.client()
        result = await self._asked(client.get_prompt(name, arguments))
        return tuple((str(each.role), part_of(each.content)) for each in result.messages)

    async def _pages(self, ask: Any, field: str) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._asked(ask(cursor=cursor))
            found += getattr(page, field)
            cursor = page.next_cursor
            if not cursor or len(found) > MAX_LISTED:
                break
        return found[:MAX_LISTED]

    async def _asked(self, answer: Any) -> Any:
        return await self._connection.bounded(answer)
