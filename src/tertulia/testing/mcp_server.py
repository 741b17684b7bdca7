"""The process of a FakeMcpServer: `python -m tertulia.testing.mcp_server SCRIPT`, over the SDK's own server."""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from typing import Any

import msgspec

from .mcp import FakeTool, Script


class _Served:
    """The server's side."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.tools = {tool.name: tool for tool in script.tools}
        self.asked: dict[str, Any] = {}

    def note(self, what: str, **more: Any) -> None:
        line = msgspec.json.encode({"at": time.monotonic(), "pid": os.getpid(), "what": what, **more})
        with open(self.script.journal, "ab") as journal:
            journal.write(line + b"\n")

    async def list_tools(self, context: Any, params: Any) -> Any:
        from mcp_types import ListToolsResult, Tool, ToolAnnotations

        self.note("list")
        cursor = int((params.cursor if params is not None else None) or 0)
        names = [f"endless_{cursor}"] if self.script.endless else list(self.tools)
        tools = [
            Tool(
                name=each.name,
                description=each.description,
                input_schema=each.schema,
                output_schema=each.output_schema,
                annotations=ToolAnnotations(read_only_hint=each.read_only),
            )
            for each in (self.tools.get(name) or FakeTool(name=name) for name in names)
        ]
        return ListToolsResult(tools=tools, next_cursor=str(cursor + 1) if self.script.endless else None)

    async def call_tool(self, context: Any, params: Any) -> Any:
        tool = self.tools[params.name]
        answered = getattr(params, "input_responses", None)
        if not answered:
            self.note("call", tool=params.name, args=params.arguments)
        try:
            result = await self.act(tool, context, params)
        except asyncio.CancelledError:
            self.note("cancelled", tool=params.name)
            raise
        if getattr(result, "result_type", "") != "input_required":
            self.note("end", tool=params.name)
        return result

    async def act(self, tool: FakeTool, context: Any, params: Any) -> Any:
        from mcp_types import CallToolResult, ImageContent, TextContent

        self.at_once(tool)
        for step in range(tool.progress):
            await context.session.report_progress(step + 1, tool.progress, f"step {step + 1}")
        text = tool.text
        if tool.ask or tool.sample or tool.roots:
            asked = await self.ask(tool, context, params)
            if not isinstance(asked, str):
                return asked
            text = asked
        await self.change(tool, context)
        await _until(tool.wait)
        await asyncio.sleep(tool.sleep)
        if tool.die:
            os._exit(3)
        if tool.size:
            text = "x" * tool.size
        content: list[Any] = [TextContent(text=text)]
        if tool.image:
            content.append(ImageContent(data="aGVsbG8=", mime_type="image/png"))
        return CallToolResult(content=content, is_error=tool.error)

    def at_once(self, tool: FakeTool) -> None:
        if tool.spawn:
            child = subprocess.Popen(["sleep", tool.spawn], start_new_session=True)
            self.note("spawned", child=child.pid)
        if tool.stderr:
            sys.stderr.write(tool.stderr * tool.lines)
            sys.stderr.flush()

    async def ask(self, tool: FakeTool, context: Any, params: Any) -> Any:
        """The answer as JSON; on a connection of 2026, first the result that says what is asked."""
        from mcp_types import InputRequiredResult

        if context.session.protocol_version < "2026":
            return (await self.ask_back(tool, context.session)).model_dump_json(
                by_alias=True, exclude_none=True
            )
        if params.input_responses:
            answer = params.input_responses["it"]
            return (
                answer if isinstance(answer, str) else msgspec.json.encode(answer, enc_hook=_dumped).decode()
            )
        return InputRequiredResult(input_requests={"it": _request(tool)}, request_state="state")

    async def ask_back(self, tool: FakeTool, session: Any) -> Any:
        request = _request(tool)
        if tool.roots:
            return await session.list_roots()
        if tool.sample:
            return await session.create_message(request.params.messages, max_tokens=request.params.max_tokens)
        return await session.elicit_form(tool.ask, request.params.requested_schema)

    async def change(self, tool: FakeTool, context: Any) -> None:
        if tool.appear is not None:
            made = msgspec.convert(tool.appear, FakeTool)
            self.tools[made.name] = made
        if tool.vanish:
            self.tools.pop(tool.vanish, None)
        if tool.appear is not None or tool.vanish:
            await self.tell(context)

    async def tell(self, context: Any) -> None:
        from mcp.server.subscriptions import ToolsListChanged

        if context.session.protocol_version < "2026":
            await context.session.send_tool_list_changed()
        else:
            await self.bus.publish(ToolsListChanged())

    def make(self) -> Any:
        from mcp.server.lowlevel.server import Server
        from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
        from mcp_types import (
            GetPromptResult,
            ListPromptsResult,
            ListResourcesResult,
            Prompt,
            PromptMessage,
            ReadResourceResult,
            Resource,
            TextContent,
            TextResourceContents,
        )

        async def resources(context: Any, params: Any) -> Any:
            return ListResourcesResult(
                resources=[Resource(uri="test://one", name="one", mime_type="text/plain")]
            )

        async def resource(context: Any, params: Any) -> Any:
            return ReadResourceResult(
                contents=[TextResourceContents(uri=str(params.uri), text="the resource")]
            )

        async def prompts(context: Any, params: Any) -> Any:
            return ListPromptsResult(prompts=[Prompt(name="greet", description="Say hello.")])

        async def prompt(context: Any, params: Any) -> Any:
            name = (params.arguments or {}).get("name", "you")
            message = PromptMessage(role="user", content=TextContent(text=f"hello {name}"))
            return GetPromptResult(messages=[message])

        self.bus = InMemorySubscriptionBus()
        return Server(
            self.script.name, version="1",
            on_list_tools=self.list_tools, on_call_tool=self.call_tool,
            on_list_resources=resources, on_read_resource=resource,
            on_list_prompts=prompts, on_get_prompt=prompt,
            on_subscriptions_listen=ListenHandler(self.bus),
        )  # fmt: skip


async def _until(path: str) -> None:
    """Until there is such a file; at once when none is named."""
    for _ in itertools.count():
        if not path or os.path.lexists(path):  # noqa: ASYNC240 - one look at one file
            return
        await asyncio.sleep(0.005)


def _dumped(value: Any) -> Any:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


def _request(tool: FakeTool) -> Any:
    from mcp_types import (
        CreateMessageRequest,
        CreateMessageRequestParams,
        ElicitRequest,
        ElicitRequestFormParams,
        ListRootsRequest,
        SamplingMessage,
        TextContent,
    )

    if tool.roots:
        return ListRootsRequest()
    if tool.sample:
        message = SamplingMessage(role="user", content=TextContent(text=tool.sample))
        return CreateMessageRequest(
            params=CreateMessageRequestParams(messages=[message], max_tokens=1_000_000)
        )
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    return ElicitRequest(params=ElicitRequestFormParams(message=tool.ask, requested_schema=schema))


async def _serve(served: _Served) -> None:
    from mcp.server.lowlevel.server import NotificationOptions
    from mcp.server.stdio import stdio_server

    server, script = served.make(), served.script
    await _until(script.slow)
    options = server.create_initialization_options(NotificationOptions(tools_changed=True))
    async with stdio_server() as (incoming, outgoing):
        if script.legacy:
            from mcp.server.runner import serve_loop

            async with server.lifespan(server) as state:
                await serve_loop(server, incoming, outgoing, lifespan_state=state, init_options=options)
        else:
            await server.run(incoming, outgoing, options)


def _app(served: _Served) -> Any:
    server = served.make()
    if served.script.http == "http":
        return server.streamable_http_app()
    from mcp.server.sse import SseServerTransport
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    transport = SseServerTransport("/messages/")

    async def connected(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await server.run(*streams, server.create_initialization_options())
        return Response()

    routes = [Route("/sse", endpoint=connected), Mount("/messages/", app=transport.handle_post_message)]
    return Starlette(routes=routes)


def main(script: str) -> None:
    served = _Served(msgspec.json.decode(script, type=Script))
    served.note("start", http=served.script.http)
    if served.script.http:
        import uvicorn

        uvicorn.run(_app(served), host="127.0.0.1", port=served.script.port, log_level="warning")
    else:
        asyncio.run(_serve(served))


if __name__ == "__main__":
    main(sys.argv[1])
