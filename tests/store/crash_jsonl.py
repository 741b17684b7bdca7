"""A program that forks writers to be killed. `python -m tests.store.crash_jsonl`, one folder on each line of stdin.

For each folder it answers with the pid of a writer, passes on what that acknowledges, and says `0` when it is dead.
A writer commits batches that each append a record to two conversations and exchange the one item of a queue, and now
and then rewrite a record; a few are in flight, and each is acknowledged as soon as the store does.
"""

import asyncio
import os
import sys
from pathlib import Path

from tertulia.store.base import DropInbox, Op, Rewrite
from tertulia.store.jsonl import JsonlStore
from tertulia.testing.store_kit import A, B, Writer, append, create, item, row, writer

IN_FLIGHT = 8
BURST = 100_000
REWRITTEN = 7
"""Every so many batches, the first record is replaced by one that names the batch."""


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
    store = await JsonlStore.at(path)
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
    ops: list[Op] = [append(id, seq, seq, ts=seq, text="x" * (seq % 977)) for id in (A, B)]
    if seq % REWRITTEN == 0:
        ops.append(Rewrite(conversation=B, branch=0, rows=(row(1, f"written {seq}"),)))
    return writing.commit(*ops, old, item(A, f"item-{seq}"))


def acknowledge(done: asyncio.Future[int], seq: int) -> None:
    if done.exception() is None:
        say(seq)


if __name__ == "__main__":
    main()
