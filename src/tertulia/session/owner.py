"""The Session's right to write: claimed before the first write, shared by all its conversations."""

import asyncio
from collections.abc import Awaitable, Callable

from ..records.ids import ConversationId, SessionId
from ..store.base import Fence, Store

Reconcile = Callable[[], Awaitable[None]]


class Owner:
    """Opening never claims. When a claim is won, each conversation catches up with what others wrote until then."""

    def __init__(self, store: Store, session: SessionId) -> None:
        self.store = store
        self.session = session
        self.fence: Fence | None = None
        self.conversations: dict[ConversationId, Reconcile] = {}
        self._claim: asyncio.Task[None] | None = None

    def claim(self) -> "asyncio.Task[None]":
        """One claim serves all who ask while it is on its way."""
        if self._claim is None or self._claim.done():
            self._claim = asyncio.get_running_loop().create_task(self._run(), name="tertulia-claim")
            self._claim.add_done_callback(self._forget)
        return self._claim

    def _forget(self, claim: "asyncio.Task[None]") -> None:
        """A finished task holds more than half a kilobyte, and an idle Session should hold little."""
        if self._claim is claim:
            self._claim = None

    async def _run(self) -> None:
        fence = await self.store.claim(self.session)
        for reconcile in list(self.conversations.values()):
            await reconcile()
        self.fence = fence

    def lost(self) -> None:
        """Someone else has claimed the Session since; the next write claims anew, or says who holds it."""
        self.fence = None

    async def release(self) -> None:
        if self._claim is not None and not self._claim.done():
            await asyncio.wait([self._claim])
        fence, self.fence = self.fence, None
        if fence is not None:
            await self.store.release(fence)
