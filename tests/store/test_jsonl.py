"""JsonlStore: what only this store promises; what every store promises is in the conformance suite."""

import asyncio
import json
import os
from pathlib import Path

import msgspec
import pytest

from tertulia.records.codec import decode_lenient
from tertulia.records.errors import (
    InvalidInput,
    StoreCorrupt,
    StoreNotFound,
    StoreReadOnly,
    VersionTooNew,
)
from tertulia.records.ids import ConversationId, ItemId, SessionId
from tertulia.store.base import DropInbox, PutConversation, Row
from tertulia.store.jsonl import JsonlStore, is_empty
from tertulia.store.jsonl_lines import file_name, id_of
from tertulia.testing import store_kit as kit
from tertulia.testing.store_conformance import CASES, Case
from tertulia.testing.store_erasing import delete, drop, rewrite
from tertulia.transcript.path import Segment

HAS = {"durable"}
A, B = kit.A, kit.B


@pytest.mark.parametrize("case", [c for c in CASES if c.needs <= HAS], ids=lambda case: case.name)
async def test_conformance(case: Case, tmp_path: Path) -> None:
    await case.run(lambda: JsonlStore.at(tmp_path / "store"))


def contents(folder: Path) -> dict[str, bytes]:
    """What stands in each file, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def everything(folder: Path) -> bytes:
    return b"".join(contents(folder).values())


# ── files ──


async def test_a_person_can_read_the_file(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await w.commit(*kit.create(A), kit.append(A, 1, 2))
        await w.commit(kit.append(A, 3, 3, text="¡qué tal!"))
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines()
    types = [json.loads(line)["type"] for line in lines]
    assert types == ["~header", "~conversation", "~branch", "~append", "message", "message", "~commit"] + [
        "~append",
        "message",
        "~commit",
    ]
    assert lines[4:6] == [row.data for row in kit.rows(1, 2)]
    assert "¡qué tal!".encode() in lines[-2]


@pytest.mark.req("S3-04")
@pytest.mark.parametrize(
    "id",
    [
        "..",
        ".",
        "a/b",
        "/etc/passwd",
        "%2E",
        ".hidden",
        "x" * 101,
        "🦜" * 128,
        "a\\b",
        " x",
        "a%~b",
        "A.b-c_9",
    ],
)
async def test_an_id_never_leaves_the_folder(tmp_path: Path, id: str) -> None:
    conversation = ConversationId(id)
    async with kit.opened(lambda: JsonlStore.at(tmp_path / "in" / "store")) as store:
        w = await kit.writer(store)
        await w.filled(conversation, 2)
        assert await kit.listed(store) == [conversation]
    names = [path.name for path in (tmp_path / "in" / "store").glob("*.jsonl")]
    assert names == [file_name(id)]
    assert len(names[0]) < 250
    assert id_of(names[0]) in (id, None)
    assert [name for name in contents(tmp_path) if name.endswith(".jsonl")] == [f"in/store/{names[0]}"]


def test_names_are_verbatim_where_safe_and_never_shared() -> None:
    assert file_name("conv_01HX-a.b") == "conv_01HX-a.b.jsonl"
    ids = ["a/b", "a%2Fb", "a%252Fb", "A", "a", "..", "%2E.", "x" * 128, "x" * 127 + "y", "é", "e\u0301"]
    assert len({file_name(id) for id in ids}) == len(ids)


async def test_a_fork_stands_alone_in_its_file(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path / "one")) as store:
        w = await kit.writer(store)
        await w.filled(A, 5)
        await w.commit(*kit.fork(A, B, 3), kit.append(B, 4, 4, text="own"))
    (tmp_path / "two").mkdir()
    (tmp_path / "one" / "b.jsonl").rename(tmp_path / "two" / "b.jsonl")
    async with kit.opened(lambda: JsonlStore.at(tmp_path / "two")) as store:
        assert await kit.read(store, B) == [*kit.rows(1, 3), kit.row(4, "own")]
        assert (await store.session(kit.S)).root == B  # known from the file alone
        again = await kit.writer(store)
        await again.commit(kit.append(B, 5, 5))
        assert await kit.seqs(store, B) == [1, 2, 3, 4, 5]


async def test_records_of_any_bytes_come_back_as_they_were(tmp_path: Path) -> None:
    odd = (b"\xff\xfe\n\n", b'{"type":"~commit"}', b"", b'{"type":"later","seq":4,"x":[1]}', b'{"a":\n1}')
    stored = tuple(Row(seq, data) for seq, data in enumerate(odd, 1))
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await w.commit(*kit.create(A), msgspec.structs.replace(kit.append(A, 1, 5), rows=stored))
        assert await kit.read(store, A) == list(stored)
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        assert await kit.read(store, A) == list(stored)
    for line in (tmp_path / "a.jsonl").read_bytes().splitlines():
        json.loads(line)


# ── opening ──


async def test_what_is_no_folder_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFound):
        await JsonlStore.at(tmp_path / "file")
    with pytest.raises(StoreNotFound):
        await JsonlStore.at(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


async def test_reading_writes_nothing(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await w.filled(A, 3)
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"type":"~append","branch":0,"first":4,"la')
    before = contents(tmp_path)
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        assert await kit.seqs(store, A) == [1, 2, 3]
        await store.list()
        await store.changes(kit.S, 0)
    assert contents(tmp_path) == before


async def test_a_second_opening_takes_over(tmp_path: Path) -> None:
    async with (
        kit.opened(lambda: JsonlStore.at(tmp_path)) as one,
        kit.opened(lambda: JsonlStore.at(tmp_path)) as two,
    ):
        with pytest.raises(StoreReadOnly, match="opened again"):
            await one.claim(kit.S)
        w = await kit.writer(two)
        await w.filled(A, 2)
        assert await kit.seqs(one, A) == [1, 2]
        async with kit.opened(lambda: JsonlStore.at(tmp_path)) as three:
            await kit.refused(StoreReadOnly, w.commit(kit.append(A, 3, 3)), "a commit of the older one")
            again = await kit.writer(three)  # held by this very process: taken over
            await again.commit(kit.append(A, 3, 3))
            assert await kit.seqs(two, A) == [1, 2, 3]


async def test_a_file_from_the_future_is_refused_alone(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await w.filled(A, 1)
        await w.filled(B, 1)
        file = tmp_path / "a.jsonl"
        text = file.read_bytes().replace(b'"version":1', b'"version":2', 1)
        file.write_bytes(text)
        with pytest.raises(VersionTooNew):
            await store.open(A)
        await kit.refused(VersionTooNew, w.commit(kit.append(A, 2, 2)), "a commit to it")
        assert file.read_bytes() == text
        await w.commit(kit.append(B, 2, 2))
        assert await kit.listed(store) == [B]


async def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"some": "data"}\n')
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await kit.refused(StoreCorrupt, w.commit(*kit.create(A)), "a conversation of its name")
    assert (tmp_path / "a.jsonl").read_text() == '{"some": "data"}\n'


# ── erasing ──


async def test_nothing_of_what_was_erased_is_left(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await w.commit(
            *kit.create(A), kit.append(A, 1, 1, text="secret-1"), kit.append(A, 2, 2, text="secret-2")
        )
        await w.commit(*kit.fork(A, B, 2))
        await w.commit(kit.append(A, 3, 3, text="secret-3"))
        await w.commit(rewrite(A, kit.row(1, "[gone]")))
        assert b"secret-1" not in everything(tmp_path)
        await w.commit(drop(A, 2, 3))
        assert b"secret" not in everything(tmp_path)
        await w.commit(kit.append(A, 4, 4, text="secret-4"), kit.item(A, "secret", client_id="secret-5"))
        (tmp_path / "a.jsonl.torn-1").write_bytes(b"secret-6")
        await w.commit(*kit.create(ConversationId("c"), title="x"), delete(A))
        assert b"secret" not in everything(tmp_path)
        assert await kit.seqs(store, B) == [1, 2]


async def test_the_body_of_a_settled_item_is_wiped(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await w.commit(*kit.create(A))
        await w.commit(kit.item(A, "one"), kit.item(A, "two"))
        body = msgspec.json.encode(kit.item(A, "one").row.body).strip(b'"')
        assert body in everything(tmp_path)
        await w.commit(DropInbox(conversation=A, item=ItemId("one")))
        assert body not in everything(tmp_path)
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        rows = (await store.open(A)).inbox
        assert [(row.item, row.body) for row in rows] == [("two", kit.item(A, "two").row.body)]


async def test_a_long_queue_does_not_rewrite_the_log(tmp_path: Path) -> None:
    async with kit.opened(lambda: JsonlStore.at(tmp_path)) as store:
        w = await kit.writer(store)
        await w.filled(A, 3)
        file = tmp_path / "a.jsonl"
        before = (os.stat(file).st_ino, file.read_bytes())
        await asyncio.gather(*(store.commit((kit.item(A, f"i{n}"),)) for n in range(10_000)))
        assert (os.stat(file).st_ino, file.read_bytes()) == before
        items = [row.item for row in (await store.open(A)).inbox]
        assert items == [f"i{n}" for n in range(10_000)]
        for n in range(0, 10_000, 500):
            await w.commit(*(DropInbox(conversation=A, item=ItemId(f"i{m}")) for m in range(n, n + 500)))
        assert (await store.open(A)).inbox == ()
        await store.commit((kit.item(A, "last"),))
        assert (await store.open(A)).inbox[0].n == 10_001
    assert (tmp_path / "store.log").stat().st_size < 8_000_000


# ── one file ──


@pytest.mark.req("S3-04", "S3-04b")
async def test_one_file_is_the_store_of_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "talk.jsonl"
    assert is_empty(path)
    async with kit.opened(lambda: JsonlStore.at_file(path, A)) as store:
        w = await kit.writer(store)
        await w.commit(*kit.create(A), kit.append(A, 1, 2), kit.item(A, "i"))
        await kit.refused(InvalidInput, w.commit(*kit.create(B)), "a second conversation")
    assert not is_empty(path)
    assert path.is_file()
    async with kit.opened(lambda: JsonlStore.at_file(path, A)) as store:
        assert await kit.read(store, A) == list(kit.rows(1, 2))
        assert [row.item for row in (await store.open(A)).inbox] == ["i"]


@pytest.mark.req("S3-04", "S3-04b")
async def test_a_damaged_file_is_restored_but_for_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    async with kit.opened(lambda: JsonlStore.at_file(path, A)) as store:
        w = await kit.writer(store)
        await w.commit(*kit.create(A), kit.append(A, 1, 3))
        await w.commit(kit.append(A, 4, 6))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[lines.index(kit.row(2).data + b"\n")] = b'{"type":"message", broken\n'
    lines.insert(5, b'{"type":"hologram","seq":99,"ts":1}\n')
    path.write_bytes(b"".join(lines) + b'{"type":"~append","branch":0,"fi')
    other, session = ConversationId("another id"), SessionId("another session")
    async with kit.opened(lambda: JsonlStore.at_file(path, other)) as store:
        found = await store.read([Segment(other, 0, 0, 6)])
        assert [row.seq for row in found] == [1, 2, 3, 4, 5, 6]
        assert decode_lenient(found[1].data, 2).name == "corrupt"  # type: ignore[union-attr]
        assert [row for row in found if row.seq != 2] == [row for row in kit.rows(1, 6) if row.seq != 2]
        w = await kit.writer(store, session)
        row = (await store.open(other)).conversation
        await w.commit(
            PutConversation(row=msgspec.structs.replace(row, session=session)), kit.append(other, 7, 7)
        )
        assert await kit.seqs(store, other) == [1, 2, 3, 4, 5, 6, 7]
        assert any("never committed" in problem.what for problem in store.incidents)
    assert b'"hologram"' in path.read_bytes()
    assert (tmp_path / "talk.jsonl.torn-1").read_bytes() == b'{"type":"~append","branch":0,"fi'


async def test_a_file_of_someone_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary\n")
    with pytest.raises(StoreCorrupt):
        await JsonlStore.at_file(tmp_path / "notes.txt", A)
    assert not is_empty(tmp_path / "notes.txt")
    with pytest.raises(InvalidInput):
        await JsonlStore.at_file(tmp_path, A)
    assert (tmp_path / "notes.txt").read_text() == "dear diary\n"
