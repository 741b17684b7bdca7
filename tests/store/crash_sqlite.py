"""A program that forks writers to be killed. `python -m tests.store.crash_sqlite`, one path on each line of stdin.

For each path it answers with the pid of a writer, passes on what that acknowledges, and says `0` when it is dead.
A writer commits batches that each append a record to two conversations and exchange the one item of a queue, eight of
them in flight, and acknowledges with the seq as soon as the store does.
"""

import asyncio
import os
import sys
from pathlib import Path

from tertulia.records.ids import ConversationId
from tertulia.store.base import DropInbox
from tertulia.store.sqlite import SqliteStore
from tertulia.testing.store_kit import A, B, Writer, append, create, item, writer

IN_FLIGHT = 8
BURST = 100_000


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(write(Path(line.strip())))
            os._exit(0)
        say(pid)
        os.waitpid(pid, 0)
        say(0)


def say(number: int) -> None:
    os.write(1, b"%d\n" % number)


async def write(path: Path) -> None:
    store = await SqliteStore.at(path)
    writing = await writer(store)
    if not (await store.list()).rows:
        await writing.commit(*create(A), *create(B), item(A, "item-0"))
    last = (await store.open(A)).last
    waiting: list[asyncio.Future[int]] = []
    for seq in range(last + 1, last + BURST):
        future = commit(writing, seq)
        future.add_done_callback(lambda done, seq=seq: acknowledge(done, seq))
        waiting.append(future)
        if len(waiting) == IN_FLIGHT:
            await waiting.pop(0)


def commit(writing: Writer, seq: int) -> asyncio.Future[int]:
    old = DropInbox(conversation=A, item=item(A, f"item-{seq - 1}").row.item)
    rows = (append(id, seq, seq, ts=seq, text="x" * (seq % 977)) for id in (A, ConversationId(B)))
    return writing.commit(*rows, old, item(A, f"item-{seq}"))


def acknowledge(done: asyncio.Future[int], seq: int) -> None:
    if done.exception() is None:
        say(seq)


if __name__ == "__main__":
    main()
