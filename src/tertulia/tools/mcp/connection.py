"""One server: started when it is needed, kept, started again when it dies, ended when nobody needs it."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any, Literal

from ...records.errors import McpError
from ...records.parts import AnyPart
from ..context import ToolContext
from .around import Standing, Surroundings, ended, explain
from .calling import Calling
from .config import ServerConfig
from .content import clean
from .listing import Listing
from .logbook import Logbook
from .wire import transport

State = Literal["idle", "starting", "ready", "waiting", "closed"]

START = 60.0  # seconds for a server to start and list its tools; npx may have to fetch it first
FIRST_DELAY, LAST_DELAY, STEADY = 0.5, 60.0, 60.0  # of the backoff; who stayed for STEADY seconds begins anew
IDLE = 600.0  # seconds without a call, after which the process is given back; the tools stay listed
CALL_WAIT = 10.0  # seconds a call waits for a server that is not ready


class Connection:
    def __init__(self, config: ServerConfig, around: Surroundings) -> None:
        folder = around.log_folder
        self.config = config
        self.state: State = "idle"
        self.error = ""  # why it is down
        self.references = 0
        self.starts = 0
        self.log = Logbook(folder / f"{config.name}.log" if folder is not None else None)
        self.listing = Listing(config, around)
        self._standing = Standing()
        self._calling = Calling(config, around, self._standing)
        self._around = around
        self._clock = around.clock
        self._client: Any = None
        self._keeper: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []  # for a change of the state
        self._retry_at = 0.0

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def busy(self) -> bool:
        return bool(self._calling.calls)

    # ── using it ──

    async def call(self, tool: str, args: dict[str, Any], context: ToolContext) -> list[AnyPart]:
        return await self._calling.call(await self.client(), tool, args, context)

    async def bounded(self, answer: Awaitable[Any]) -> Any:
        return await self._calling.bounded(answer)

    async def client(self) -> Any:
        """The SDK's client of the running server; starts it where it is idle."""
        if self.state == "idle":
            self.start()
        until = asyncio.get_running_loop().time() + CALL_WAIT
        while self.state == "starting" or (self.state == "waiting" and self._soon()):
            if not await self._change(until):
                break
        if self.state != "ready":
            refusal = self._standing.refusal
            why = refusal.message if refusal is not None else self.error
            hint = refusal.hint if refusal is not None else None
            raise McpError(
                f"the MCP server {self.name} is not running{': ' + why if why else ''}",
                hint=hint or "it is started again by itself; `tertulia mcp test` shows why it fails",
            )
        return self._client

    async def settled(self, timeout: float) -> None:
        """Until it is ready or has failed, and its tools are up to date; but not longer than that."""
        until = asyncio.get_running_loop().time() + timeout
        while self.state == "starting":
            if not await self._change(until):
                return
        await self.listing.settled(max(0.0, until - asyncio.get_running_loop().time()))

    # ── its life ──

    def start(self) -> None:
        """Start it, if it is not started. Returns at once."""
        if self._keeper is None or self._keeper.done():
            self._set("starting")
            self._keeper = asyncio.create_task(self._keep(), name=f"tertulia-mcp-{self.name}")

    async def end(self) -> None:
        """Its process, and all that it started, is gone when this returns."""
        keeper = self._keeper
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
            self._keeper = None
            if not keeper.cancelled() and (error := keeper.exception()) is not None:
                raise error
        self._set("closed")

    async def _keep(self) -> None:
        failures = 0
        while True:
            self._set("starting")
            self.starts += 1
            began = self._clock.monotonic()
            try:
                if await self._run() == "idle":
                    self._set("idle")
                    return
                self.error = clean(self.log.last, 300) or "it ended"
            except TimeoutError:
                self.error = f"it did not start within {START:g} s"
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a server may fail in any way; it is told
                self.error = explain(error, self.log)
            if self._standing.refusal is not None:
                self.error = str(self._standing.refusal)
            failures = 1 if self._clock.monotonic() - began >= STEADY else failures + 1
            delay = min(FIRST_DELAY * 2.0 ** (failures - 1), LAST_DELAY)
            self._retry_at = self._clock.monotonic() + delay
            self.log.note(f"down: {self.error}; started again in {delay:g} s")
            self._around.warn(self.config, "mcp", f"the MCP server {self.name} is down: {self.error}")
            self._set("waiting")
            await self._clock.sleep(delay)

    async def _run(self) -> Literal["idle", "lost"]:
        """From its start to its end, and why that came."""
        async with contextlib.AsyncExitStack() as stack:
            async with self._standing.starting(START):
                client = await stack.enter_async_context(self._make_client())
                await self.listing.begin(client)
            stack.push_async_callback(self._leave)
            self._client, self._calling.used, self.error = client, self._clock.monotonic(), ""
            self._set("ready")
            tasks = {
                asyncio.create_task(self._standing.lost.wait(), name="tertulia-mcp-lost"),
                asyncio.create_task(self._unused(), name="tertulia-mcp-idle"),
            }
            listening = asyncio.create_task(self.listing.listen(client), name="tertulia-mcp-listen")
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                why: Literal["idle", "lost"] = "lost" if self._standing.lost.is_set() else "idle"
                await ended({*tasks, listening})
        return why

    async def _leave(self) -> None:
        self._set("starting")  # who wants it now waits for what comes next
        self._client = None
        await self._calling.leave()
        await self.listing.leave()

    async def _unused(self) -> None:
        """Returns when nobody has called for a while."""
        while True:
            left = self._calling.used + IDLE - self._clock.monotonic()
            if left <= 0 and not self.busy:
                return
            await self._clock.sleep(left if left > 0 else IDLE)

    def _make_client(self) -> Any:
        from mcp.client.client import Client
        from mcp_types import Implementation

        asked = self._calling
        return Client(
            transport(self.config, self._around, self.log, self._standing),
            cache=None,
            client_info=Implementation(name="tertulia", version="0.1"),
            elicitation_callback=asked.elicited,
            list_roots_callback=asked.roots,
            sampling_callback=asked.sampled if self.config.sampling and self._around.sampler else None,
            message_handler=self.listing.heard,
            logging_callback=self._logged,
        )

    async def _logged(self, params: Any) -> None:
        self.log.feed(f"{params.level}: {params.data}\n".encode("utf-8", "replace"))

    # ── its state ──

    def _soon(self) -> bool:
        """Whether it is worth waiting for the next start; who is not let in is not let in then either."""
        if self._standing.refusal is not None:
            return False
        return self._retry_at - self._clock.monotonic() <= CALL_WAIT

    def _set(self, state: State) -> None:
        self.state = state
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _change(self, until: float) -> bool:
        """Whether the state changed before that time of the loop."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        left = until - asyncio.get_running_loop().time()
        return left > 0 and bool((await asyncio.wait([future], timeout=left))[0])
