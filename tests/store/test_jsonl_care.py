"""Check, repair and backup of a JSONL store."""

import asyncio
import os
from pathlib import Path

import pytest

from tertulia.records.errors import InvalidInput, StoreNotFound
from tertulia.store import care
from tertulia.store.base import AddBlobs
from tertulia.store.jsonl import JsonlStore
from tertulia.store.jsonl_care import backup, check, repair
from tertulia.testing import store_kit as kit
from tertulia.testing.store_kit import A, B


def files(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


async def filled(folder: Path) -> str:
    async with kit.opened(lambda: JsonlStore.at(folder)) as store:
        w = await kit.writer(store)
        ref = await store.put_blob(b"a picture")
        await w.commit(*kit.create(A, title="t"), kit.append(A, 1, 4), kit.item(A, "i", client_id="c"))
        await w.commit(kit.branch(A, 1, 2), kit.append(A, 5, 5, branch=1))
        await w.commit(*kit.fork(A, B, 3), kit.append(B, 4, 5))
        await w.commit(AddBlobs(conversation=A, branch=0, seq=2, refs=(ref,)))
        return ref


async def test_a_sound_store_has_no_problems(tmp_path: Path) -> None:
    await filled(tmp_path / "s")
    before = files(tmp_path / "s")
    report = check(tmp_path / "s")
    assert (report.ok, report.conversations, report.kept, report.lost) == (True, 2, 10, 0)
    assert files(tmp_path / "s") == before
    with pytest.raises(StoreNotFound):
        check(tmp_path / "none")


async def test_damage_is_found_and_a_copy_is_clean(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "fixed"
    ref = await filled(source)
    data = (source / "a.jsonl").read_bytes()
    broken = data.replace(kit.row(3).data, b"x" * len(kit.row(3).data)) + b'{"type":"~append","br'
    (source / "a.jsonl").write_bytes(broken)
    next(source.glob("blobs/*/blob_*")).write_bytes(b"another")
    before = files(source)
    report = repair(source, target)
    assert files(source) == before
    where = {problem.where for problem in report.problems}
    assert where == {"a.jsonl", "a.jsonl:3", "a.jsonl:2", "b.jsonl:2"}
    assert (report.kept, report.lost, report.written) == (9, 1, str(target))
    left = check(target)
    assert [problem.where for problem in left.problems] == [
        "a.jsonl:2",
        "b.jsonl:2",
    ]  # the blob is gone for good
    assert (target / "a.jsonl.torn-1").read_bytes().endswith(b'{"type":"~append","br')
    async with kit.opened(lambda: JsonlStore.at(target)) as store:
        assert await kit.seqs(store, A) == [1, 2, 4]
        assert await kit.seqs(store, A, 1) == [1, 2, 5]
        assert await kit.read(store, B) == list(kit.rows(1, 5))
        opened = await store.open(A)
        assert (opened.conversation.title, opened.last, len(opened.inbox)) == ("t", 5, 1)
        assert len(await store.changes(kit.S, 0)) == 3
        with pytest.raises(Exception, match=ref):
            await store.get_blob(ref)
    with pytest.raises(InvalidInput, match="exists"):
        repair(source, target)


async def test_a_backup_while_others_write_is_whole(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "copy"
    async with kit.opened(lambda: JsonlStore.at(source)) as store:
        w = await kit.writer(store)
        await w.commit(*kit.create(A), *kit.create(B))
        begun, copied = asyncio.Event(), asyncio.Event()

        async def write() -> int:
            seq = 0
            while not copied.is_set():
                seq += 1
                await w.commit(kit.append(A, seq, seq), kit.append(B, seq, seq), kit.item(A, f"i{seq}"))
                begun.set()
            return seq

        writing = asyncio.get_running_loop().create_task(write())
        await asyncio.wait_for(begun.wait(), 10)
        steps: list[tuple[int, int]] = []
        report = await asyncio.to_thread(backup, source, target, lambda *step: steps.append(step))
        copied.set()
        written = await writing
    assert report.ok
    assert report.written == str(target)
    assert steps == [(1, 2), (2, 2)]
    async with kit.opened(lambda: JsonlStore.at(target)) as store:
        seqs = await kit.seqs(store, A)
        assert 0 < len(seqs) <= written
        assert await kit.seqs(store, B) == seqs
        assert len((await store.open(A)).inbox) == len(seqs)
        await (await kit.writer(store)).commit(kit.append(A, len(seqs) + 1, len(seqs) + 1))


async def test_the_command_finds_it(tmp_path: Path) -> None:
    await filled(tmp_path / "s")
    assert care.check(f"jsonl:{tmp_path / 's'}").kind == "jsonl"
    assert care.backup(os.fspath(tmp_path / "s"), os.fspath(tmp_path / "b")).ok
    assert care.repair(os.fspath(tmp_path / "s")).written == f"{tmp_path / 's'}.repaired"
