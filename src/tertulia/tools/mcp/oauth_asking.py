"""A person is asked to sign in: whether that may be, where the answer comes to, and the wait for it."""

import asyncio
import math
from typing import Any

from mcp.shared.auth import AuthorizationCodeResult

from ...records.errors import McpError
from .around import Standing, Surroundings, ended, explain
from .asking import serving
from .config import ServerConfig
from .oauth_callback import Callback, refusal

PATIENCE = 300.0  # seconds that a person has
AGAIN = 600.0  # seconds after a sign-in before a person may be asked again: a server cannot keep us asking


class Asking:
    def __init__(self, config: ServerConfig, around: Surroundings, standing: Standing) -> None:
        self._config = config
        self._around = around
        self._standing = standing
        self._callback: Callback | None = None
        self._page = ""

    @property
    def allowed(self) -> bool:
        """Whether there is somebody who was not asked in vain before, nor a moment ago."""
        since = self._around.vault.asked.get(self._config, -math.inf)
        return self._around.login is not None and self._around.clock.monotonic() >= since

    def over(self, *, well: bool) -> None:
        again = self._around.clock.monotonic() + AGAIN if well else math.inf
        self._around.vault.asked[self._config] = again

    async def open(self, before: int | None) -> str:
        """Where the answer comes to: at the port of last time, where that is free, as many servers compare it."""
        self.over(well=False)  # unless it turns out otherwise
        port = self._config.oauth.callback_port
        try:
            self._callback = await Callback.open(port or before or 0)
        except McpError:
            if port or not before:
                raise
            self._callback = await Callback.open(0)
        return self._callback.uri

    def close(self) -> None:
        if self._callback is not None:
            self._callback.close()
            self._callback = None

    def expect(self, url: str) -> None:
        assert self._callback is not None
        self._page = url
        self._callback.expect(url)

    async def answer(self) -> AuthorizationCodeResult:
        """What the SDK goes on with. Neither a start nor a call loses time by it."""
        call = serving.get()
        with self._standing.waiting():
            answer = await (self._answered() if call is None else call.answered(self._answered()))
        if "error" in answer:
            raise McpError(f"signing in to {self._config.name} was refused: {refusal(answer)}")
        return AuthorizationCodeResult(code=answer["code"], state=answer["state"], iss=answer.get("iss"))

    async def _answered(self) -> dict[str, str]:
        """What the browser brought, within the time that a person has."""
        assert self._callback is not None
        name, answer = self._config.name, self._callback.answer
        showing = asyncio.ensure_future(self._shown())
        timer = asyncio.ensure_future(self._around.clock.sleep(PATIENCE))
        pending: set[asyncio.Future[Any]] = {showing, timer, answer}
        try:
            while not answer.done() and not timer.done():
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if showing.done():
                    pending.discard(showing)
                    if (error := showing.exception()) is not None:
                        text = f"nobody could be asked to sign in to {name}: {explain(error)}"
                        raise McpError(text) from None
            if not answer.done():
                raise McpError(f"nobody signed in to {name} within {PATIENCE:g} s")
            return answer.result()
        finally:
            await ended({showing, timer})

    async def _shown(self) -> None:
        assert self._around.login is not None
        await self._around.login(self._page, self._config.name)
