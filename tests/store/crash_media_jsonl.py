"""What a JSONL store does on a full and on a read-only medium: `python -m tests.store.crash_media_jsonl KIND FOLDER`.

It mounts a small file system on the folder, so it has to run in a mount namespace of its own.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

from tertulia.records.errors import StoreFull, StoreReadOnly
from tertulia.store.jsonl import JsonlStore
from tertulia.testing.store_kit import A, B, append, create, item, opened, refused, seqs, settled, writer
from tests.store.crash_media import BODY, fill_disk, mount, seal


async def full(folder: Path) -> None:
    mount(folder, "size=2m")
    filler = folder / "filler"
    async with opened(lambda: JsonlStore.at(folder / "s")) as store:
        writing = await writer(store)
        await writing.commit(*create(A), append(A, 1, 1))
        await writing.commit(*create(B))
        fill_disk(filler)
        last = 1
        with contextlib.suppress(StoreFull):
            while True:
                await writing.commit(append(A, last + 1, last + 1, text=BODY))
                last += 1
        big = (append(A, last + 1, last + 20, text=BODY), append(B, 1, 1), item(A, "i"))
        await refused(StoreFull, writing.commit(*big), "a batch over several files")
        assert await seqs(store, A) == list(range(1, last + 1))
        assert await seqs(store, B) == []
        filler.unlink()
        results = await settled([writing.commit(*big), writing.commit(append(B, 2, 2))])
        assert all(isinstance(result, int) for result in results), results
        assert [problem.what for problem in store.incidents] == []
    async with opened(lambda: JsonlStore.at(folder / "s")) as store:
        assert await seqs(store, A) == list(range(1, last + 21))
        assert await seqs(store, B) == [1, 2]


async def readonly(folder: Path) -> None:
    mount(folder, "size=2m")
    async with opened(lambda: JsonlStore.at(folder / "s")) as store:
        writing = await writer(store)
        await writing.commit(*create(A), append(A, 1, 3), item(A, "i"))
    seal(folder)
    async with opened(lambda: JsonlStore.at(folder / "s")) as store:
        assert await seqs(store, A) == [1, 2, 3]
        assert [row.item for row in (await store.open(A)).inbox] == ["i"]
        assert len((await store.list()).rows) == 1
        assert (await store.session(writing.fence.session)).holder is None
        await refused(StoreReadOnly, store.claim(writing.fence.session), "a claim")
        await refused(StoreReadOnly, store.commit((item(A, "j"),)), "a commit")
        await refused(StoreReadOnly, store.put_blob(b"x"), "a blob")
        assert await seqs(store, A) == [1, 2, 3]


if __name__ == "__main__":
    asyncio.run({"full": full, "readonly": readonly}[sys.argv[1]](Path(sys.argv[2])))
