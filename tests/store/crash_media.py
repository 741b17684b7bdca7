"""What a store does on a full and on a read-only medium. `python -m tests.store.crash_media full|readonly FOLDER`.

It mounts a small file system on the folder, so it has to run in a mount namespace of its own.
"""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

from tertulia.records.errors import StoreFull, StoreReadOnly
from tertulia.records.ids import SessionId
from tertulia.testing.store_kit import A, B, append, create, refused, seqs, settled, writer
from tests.store.sqlite_kit import opened

BODY = "x" * 20_000
SMALL = 2


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tertulia-test", str(folder)], check=True)


def seal(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill_disk(file: Path) -> None:
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while out.write(bytes(4_096)):
            pass


async def full(folder: Path) -> None:
    mount(folder, "size=4m")
    filler = folder / "filler"
    async with opened(folder / "store.db") as store:
        writing = await writer(store)
        await writing.commit(*create(A), append(A, 1, 1))
        await writing.commit(*create(B))
        fill_disk(filler)
        last = 1
        with contextlib.suppress(StoreFull):
            while True:
                await writing.commit(append(A, last + 1, last + 1, text=BODY))
                last += 1
        assert await seqs(store, A) == list(range(1, last + 1))
        filler.unlink()
        fill_disk_but(filler, 64 * 1024)
        big = append(A, last + 1, last + 20, text=BODY)
        results = await settled([writing.commit(append(B, 1, SMALL)), writing.commit(big)])
        assert isinstance(results[0], int), results
        assert isinstance(results[1], StoreFull), results
        filler.unlink()
        await writing.commit(big)
        assert await seqs(store, A) == list(range(1, last + 21))
    async with opened(folder / "store.db") as store:
        assert await seqs(store, A) == list(range(1, last + 21))
        assert await seqs(store, B) == list(range(1, SMALL + 1))


def fill_disk_but(file: Path, room: int) -> None:
    fill_disk(file)
    with file.open("r+b") as out:
        out.truncate(file.stat().st_size - room)


async def readonly(folder: Path) -> None:
    mount(folder, "size=4m")
    async with opened(folder / "store.db") as store:
        writing = await writer(store)
        await writing.commit(*create(A), append(A, 1, 10))
    seal(folder)
    async with opened(folder / "store.db") as store:
        assert await seqs(store, A) == list(range(1, 11))
        assert (await store.session(SessionId("s"))).holder is None
        await refused(StoreReadOnly, store.claim(SessionId("s")), "a claim")
        await refused(StoreReadOnly, store.put_blob(b"blob"), "a blob")
        await refused(StoreReadOnly, store.commit((append(A, 11, 11),), writing.fence), "a commit")
        assert await seqs(store, A) == list(range(1, 11))


if __name__ == "__main__":
    what = {"full": full, "readonly": readonly}[sys.argv[1]]
    asyncio.run(what(Path(sys.argv[2])))
