"""What the tests of SqliteStore share."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tertulia.records.ids import ConversationId, SessionId
from tertulia.store.sqlite import SqliteStore
from tertulia.testing.store_kit import A, B, Writer, append, create, fork, item, writer

LONG = "a long text " * 2_000


@contextlib.asynccontextmanager
async def opened(path: Path, *, create: bool = True) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.at(path, create=create)
    try:
        yield store
    finally:
        await store.aclose()


async def fill(path: Path, count: int = 300) -> None:
    """Two conversations of `count` records, a fork in the middle of the first, an item that waits, a blob.

    The fork's one record is longer than a page.
    """
    async with opened(path) as store:
        writing = await writer(store, SessionId("s"))
        for id in (A, B):
            await writing.commit(*create(id), append(id, 1, count, text=f"text of {id} " + "x" * 200))
        fork_id = ConversationId("fork")
        await writing.commit(*fork(A, fork_id, count // 2))
        await writing.commit(
            append(fork_id, count // 2 + 1, count // 2 + 1, text=LONG), item(A, "waiting", client_id="mine")
        )
        await store.put_blob(b"blob " * 5_000)


__all__ = ["A", "B", "LONG", "Writer", "append", "create", "fill", "item", "opened", "writer"]
