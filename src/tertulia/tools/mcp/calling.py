"""The calls that one server works on, and what it asks back meanwhile."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from ...records.errors import McpError, TertuliaError
from ...records.parts import AnyPart
from ..context import ToolContext
from .around import Standing, Surroundings, ended, explain
from .asking import McpCall, elicit, sample, serving
from .config import ServerConfig
from .content import clean, parts_of
from .limits import Slots

CLOSED = -32000  # the SDK's code for a connection that ended
GONE = ("Session terminated", "Session not found")


class Calling:
    def __init__(self, config: ServerConfig, around: Surroundings, standing: Standing) -> None:
        self.calls: list[McpCall] = []
        self.used = 0.0  # when the last call ended
        self._config = config
        self._around = around
        self._standing = standing
        self._asks = False  # it was seen to ask back, and nothing says during which call: so one at a time
        self._alone = Slots(1, 1)
        self._leaving: set[asyncio.Task[Any]] = set()

    async def call(self, client: Any, tool: str, args: dict[str, Any], context: ToolContext) -> list[AnyPart]:
        """The result of one call. Cancelling it, and its time limit, are passed on to the server."""
        if not self._asks:
            return await self._call(client, tool, args, context)
        await self._alone.enter(None)
        try:
            return await self._call(client, tool, args, context)
        finally:
            self._alone.leave(None)

    async def leave(self) -> None:
        """What is still on its way to the server has its end before the connection has."""
        await ended(set(self._leaving))

    async def bounded(self, answer: Awaitable[Any]) -> Any:
        """The answer to a request that is no call, within the server's time limit."""
        limit = self._config.timeout
        try:
            async with asyncio.timeout(limit):
                return await answer
        except TimeoutError:
            raise McpError(f"the MCP server {self._config.name} did not answer within {limit:g} s") from None
        except Exception as error:
            raise self._failed(error) from error
        finally:
            self.used = self._around.clock.monotonic()

    async def _call(
        self, client: Any, tool: str, args: dict[str, Any], context: ToolContext
    ) -> list[AnyPart]:
        call = McpCall(context, self._around.clock, self._config.timeout)
        self.calls.append(call)
        sending = asyncio.create_task(self._send(client, tool, args, call), name="tertulia-mcp-call")
        timer = asyncio.create_task(call.expire(), name="tertulia-mcp-timer")
        try:
            await asyncio.wait([sending, timer], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                limit = f"{self._config.timeout:g} s"
                raise McpError(f"the MCP server {self._config.name} did not answer {tool} within {limit}")
            return sending.result()
        finally:
            self.calls.remove(call)
            self.used = self._around.clock.monotonic()
            call.over()
            timer.cancel()
            if not sending.done():  # it tells the server, which may take a moment that nobody should wait for
                sending.cancel()
                self._leaving.add(sending)
                sending.add_done_callback(self._left)

    def _left(self, sending: "asyncio.Task[Any]") -> None:
        self._leaving.discard(sending)
        if not sending.cancelled():
            sending.exception()  # nobody waits for it any more

    async def _send(self, client: Any, tool: str, args: dict[str, Any], call: McpCall) -> list[AnyPart]:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            text = clean(message, 500) if message else None
            call.context.progress({"progress": done, "total": total, "message": text})

        serving.set(call)
        try:
            result = await client.call_tool(tool, args, progress_callback=progress)
        except Exception as error:
            raise self._failed(error) from error
        parts = parts_of(result.content, result.structured_content)
        if result.is_error:
            text = "\n".join(getattr(part, "text", "") for part in parts)
            raise McpError(text or f"{tool} failed, and did not say why")
        return parts

    def _failed(self, error: Exception) -> McpError:
        from mcp.shared.exceptions import MCPError

        if (refusal := self._standing.refusal) is not None:
            return McpError(f"the MCP server {self._config.name}: {refusal.message}", hint=refusal.hint)
        text = explain(error)
        if isinstance(error, MCPError) and error.code == CLOSED:
            self._standing.lost.set()
            text = "it ended during the call"
        elif any(sign in text for sign in GONE):
            self._standing.lost.set()
        return McpError(f"the MCP server {self._config.name}: {text}")

    # ── what it asks back ──

    def _asking(self) -> McpCall | None:
        """The call during which it asks. Older servers do not say: it is known while one conversation calls."""
        call = serving.get()
        if call is None:
            self._asks = True
            if len({each.conversation for each in self.calls}) == 1:
                call = self.calls[0]
        return call

    async def elicited(self, context: Any, params: Any) -> Any:
        from mcp_types import ElicitResult

        call, answerer = self._asking(), self._around.answerer
        if call is None or answerer is None:
            why = "nobody answers such questions here" if call else "it does not say during which call"
            self._warn(f"asked {clean(str(params.message), 200)!r}, which was declined: {why}")
            return ElicitResult(action="decline")
        try:
            action, content = await elicit(self._config.name, call, params, answerer)
        except Exception as error:  # noqa: BLE001 - a handler that fails answers nothing, and that is told
            self._warn(f"asked, and the handler of elicitations failed: {explain(error)}")
            return ElicitResult(action="cancel")
        return ElicitResult(action=action, content=content)

    async def roots(self, context: Any) -> Any:
        from mcp_types import ListRootsResult, Root

        folder = Path(self._around.cwd)
        root = Root.model_validate({"uri": folder.as_uri(), "name": folder.name or "/"})
        return ListRootsResult(roots=[root])

    async def sampled(self, context: Any, params: Any) -> Any:
        from mcp_types import INVALID_REQUEST, CreateMessageResult, ErrorData, TextContent

        call, sampler = self._asking(), self._around.sampler
        try:
            if call is None or sampler is None:
                raise McpError("it does not say during which call it asks a model")
            answer = await sample(self._config.name, call, params, sampler)
        except TertuliaError as error:
            self._warn(f"asked a model, in vain: {error}")
            return ErrorData(code=INVALID_REQUEST, message=str(error))
        content = TextContent(text=answer.text)
        return CreateMessageResult(
            role="assistant", content=content, model=answer.model, stop_reason=answer.stop
        )

    def _warn(self, text: str) -> None:
        self._around.warn(self._config, "mcp_elicitation", f"the MCP server {self._config.name} {text}")
