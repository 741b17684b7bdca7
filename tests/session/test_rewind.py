"""What turns change in files: recorded first, shown as a diff, and put back, also by another process later."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tertulia import Session, ToolContext
from tertulia.records.errors import (
    Conflict,
    ConversationBusy,
    InvalidInput,
    NotFound,
    PromptCancelled,
    SandboxError,
    StoreFull,
)
from tertulia.records.record import Custom
from tertulia.sandbox import changes
from tertulia.session.changing import Change
from tertulia.testing import ScriptedModel, call, hold
from tests.session.stores import GatedStore, committed
from tests.session.test_crash import Victim

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


async def opened(store: Any, root: Path, *answers: Any, **options: Any) -> Session:
    """A Session whose model calls these tools, one turn for each list of calls."""
    script = [step for each in answers for step in ([each, "Done."] if isinstance(each, list) else [each])]
    model = ScriptedModel(script, default="Done.")
    given = {"model": model, "tools": "default", "approvals": "allow", **options}
    return await Session.open(store=store, cwd=root, **given)


async def turns(session: Any, count: int = 1) -> list[str]:
    return [(await session.prompt("Go.")).turn_id for _ in range(count)]


async def results(session: Any) -> list[tuple[str, str]]:
    return [(each.status, each.text) for each in await session.transcript() if each.type == "tool_result"]


FIRST = [call("write", path="a.txt", content="2\n"), call("edit", path="b.txt", old="old", new="new")]
SECOND = [call("write", path="a.txt", content="3\n")]


async def test_the_changes_of_a_turn_are_one_diff_and_are_put_back(store: GatedStore, root: Path) -> None:
    (root / "b.txt").write_text("old\n")
    async with await opened(store, root, FIRST, SECOND) as session:
        first, second = await turns(session, 2)
        shown = await session.file_changes(first)
        assert (shown.turn_id, shown.files, shown.rewound) == (first, ("a.txt", "b.txt"), False)
        assert str(shown) == (
            "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+2\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-old\n+new\n"
        )
        assert (await session.file_changes()).diff == "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-2\n+3\n"
        with pytest.raises(Conflict, match=r"a\.txt"):  # the later turn comes first
            await session.rewind_files(first)
        assert (root / "b.txt").read_text() == "new\n"  # all or nothing
        assert await session.rewind_files(second) == ["a.txt"]
        assert (root / "a.txt").read_text() == "2\n"
        assert (await session.file_changes()).turn_id == first
        assert await session.rewind_files(first) == ["a.txt", "b.txt"]
        assert os.listdir(root) == ["b.txt"]
        assert (root / "b.txt").read_text() == "old\n"
        with pytest.raises(Conflict, match="already"):
            await session.rewind_files(first)
        assert (await session.file_changes(first)).rewound
        for unknown in (None, "turn_none"):
            with pytest.raises(NotFound):
                await session.file_changes(unknown)


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
async def test_a_turn_is_put_back_after_reopening(tmp_path: Path, root: Path, kind: str) -> None:
    place = str(tmp_path / "s.db") if kind == "sqlite" else f"jsonl:{tmp_path / 'logs'}"
    (root / "b.txt").write_text("old\n")
    async with await opened(place, root, FIRST, SECOND) as session:
        id, (first, second) = session.id, await turns(session, 2)
        diffs = [str(await session.file_changes(each)) for each in (first, second)]
    async with await opened(place, root, id=id) as session:
        assert [str(await session.file_changes(each)) for each in (first, second)] == diffs
        assert await session.rewind_files(second) == ["a.txt"]
    async with await opened(place, root, id=id) as session:
        with pytest.raises(Conflict, match="already"):
            await session.rewind_files(second)
        assert await session.rewind_files(first) == ["a.txt", "b.txt"]
    assert os.listdir(root) == ["b.txt"]
    assert (root / "b.txt").read_text() == "old\n"


@pytest.mark.parametrize("where", ["written", "announced"])
async def test_a_turn_is_put_back_after_the_process_was_killed(
    tmp_path: Path, root: Path, where: str
) -> None:
    path = tmp_path / "s.db"
    (root / "a.txt").write_text("mine\n")
    victim = Victim(path, str(root), where, program="tests.session.crash_rewind")
    try:
        victim.kill()
    finally:
        with victim.process:
            victim.process.kill()
    ((id,),) = victim.said("session")
    assert (root / "a.txt").read_text() == ("theirs\n" if where == "written" else "mine\n")
    async with await opened(path, root, id=id) as session:
        shown = await session.file_changes()
        assert shown.files == ("a.txt",)
        assert shown.diff.endswith("-mine\n+theirs\n")
        assert await session.rewind_files(shown.turn_id) == (["a.txt"] if where == "written" else [])
    assert (root / "a.txt").read_text() == "mine\n"


async def test_a_file_is_touched_only_when_what_it_held_is_durable(store: GatedStore, root: Path) -> None:
    (root / "a.txt").write_text("mine\n")
    async with await opened(store, root, SECOND, SECOND, approvals="ask") as session:
        running = asyncio.ensure_future(turns(session))
        async with asyncio.timeout(10), session.events(since=0) as events:
            async for event in events:
                if event.type == "approval_request":
                    break
        (asked,) = session.approvals.pending()
        await session.flush()
        store.hold()
        await session.approvals.answer(asked.id, decision="allow", scope="session")
        for _ in range(3):  # the decision, perhaps with it what is about to be changed
            await store.waiting()
            held = [committed(batch) for batch, *_ in store._held]
            assert (root / "a.txt").read_text() == "mine\n"
            if any(getattr(each, "kind", "") == "file_change" for batch in held for each in batch):
                break
            store.let_one()
        else:
            pytest.fail("the file was changed, and no commit said so before")
        store.let_go()
        await running
        assert (root / "a.txt").read_text() == "3\n"


async def test_a_store_that_is_full_keeps_the_file_from_being_changed(
    store: GatedStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(data: bytes) -> str:
        raise StoreFull("the disk is full")

    (root / "a.txt").write_text("mine\n")
    monkeypatch.setattr(store, "put_blob", full, raising=False)
    async with await opened(store, root, SECOND) as session:
        await turns(session)
        ((status, text),) = await results(session)
        assert (status, text) == ("error", "the disk is full")
        assert (root / "a.txt").read_text() == "mine\n"
        with pytest.raises(NotFound):
            await session.file_changes()


async def test_what_was_changed_since_is_a_conflict_and_nothing_is_touched(root: Path) -> None:
    for name in "abcd":
        (root / name).write_text("before")
    calls = [call("write", path=name, content="after") for name in "abcd"]
    async with await opened(None, root, calls) as session:
        (turn,) = await turns(session)
        (root / "a").write_text("someone else's")
        (root / "b").unlink()
        (root / "c").unlink()
        (root / "c").mkdir()
        with pytest.raises(Conflict, match=r": a, b, c \("):
            await session.rewind_files(turn)
        assert (root / "d").read_text() == "after"
        (root / "a").write_text("after")
        (root / "b").write_text("before")  # as it was: there is nothing to do
        (root / "c").rmdir()
        (root / "c").write_text("after")
        assert await session.rewind_files(turn) == ["a", "c", "d"]
        assert {(root / name).read_text() for name in "abcd"} == {"before"}


async def test_a_link_that_came_in_between_is_not_followed(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub" / "a").write_text("after")
    (root / "sub").mkdir()
    for path in ("sub/a", "b"):
        (root / path).write_text("before")
    calls = [call("write", path=path, content="after") for path in ("sub/a", "b")]
    async with await opened(None, root, calls) as session:
        (turn,) = await turns(session)
        (root / "elsewhere").write_text("after")
        (root / "b").unlink()
        (root / "b").symlink_to("elsewhere")
        (root / "sub" / "a").unlink()
        (root / "sub").rmdir()
        (root / "sub").symlink_to(outside / "sub")
        with pytest.raises(Conflict, match=r"b, sub/a"):
            await session.rewind_files(turn)
        assert (root / "elsewhere").read_text() == (outside / "sub" / "a").read_text() == "after"


async def test_what_is_no_longer_inside_of_the_roots_is_not_written(tmp_path: Path, root: Path) -> None:
    (root / "a.txt").write_text("mine\n")
    async with await opened(tmp_path / "s.db", root, SECOND) as session:
        id, (turn,) = session.id, await turns(session)
    other = tmp_path / "other"
    other.mkdir()
    async with await opened(tmp_path / "s.db", other, id=id) as session:
        with pytest.raises(SandboxError, match="outside"):
            await session.rewind_files(turn)
    assert (root / "a.txt").read_text() == "3\n"


async def test_a_failure_in_the_midst_takes_back_what_was_done(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (root / name).write_text("before")
    calls = [call("write", path=name, content="after") for name in "ab"]
    async with await opened(None, root, calls) as session:
        (turn,) = await turns(session)
        files = session._shared.sandbox.files
        write = files.write

        def failing(path: str, data: bytes) -> Any:
            if path.endswith("b"):
                raise InvalidInput("no space left")
            return write(path, data)

        monkeypatch.setattr(files, "write", failing)
        with pytest.raises(InvalidInput, match="no space"):
            await session.rewind_files(turn)
        assert (root / "a").read_text() == "after"
        monkeypatch.undo()
        assert await session.rewind_files(turn) == ["a", "b"]


async def test_several_changes_of_one_file_in_one_turn(store: GatedStore, root: Path) -> None:
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(8)))
    before = (root / "a.txt").read_text()
    calls = [call("edit", path="a.txt", old=f"line {n}\n", new=f"LINE {n}\n") for n in range(8)]
    async with await opened(store, root, calls) as session:
        (turn,) = await turns(session)
        assert {status for status, _ in await results(session)} == {"ok"}
        assert (root / "a.txt").read_text() == before.upper()
        assert (await session.file_changes()).diff.count("+LINE") == 8
        assert await session.rewind_files(turn) == ["a.txt"]
        assert (root / "a.txt").read_text() == before


async def test_a_change_that_failed_is_none_of_the_turn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a.txt").write_text("mine\n")
    async with await opened(None, root, SECOND) as session:

        def failing(path: str, data: bytes) -> Any:
            raise InvalidInput("no space left")

        monkeypatch.setattr(session._shared.sandbox.files, "write", failing)
        await turns(session)
        assert await results(session) == [("error", "no space left")]
        with pytest.raises(NotFound):
            await session.file_changes()


async def binary(context: ToolContext, path: str, remove: bool = False) -> str:
    """Write bytes, or remove a file, as a tool of one's own does."""
    files = context.sandbox.files
    before = (Path(context.cwd) / path).read_bytes() if (Path(context.cwd) / path).exists() else None
    place = await context.write_file(path, None if remove else b"\xff\0\1", before)
    return files.shown(place)


async def test_a_tool_of_ones_own_changes_bytes_and_removes_files(store: GatedStore, root: Path) -> None:
    (root / "picture").write_bytes(b"\xfe\0")
    (root / "gone").write_text("text\n")
    calls = [call("binary", path="picture"), call("binary", path="gone", remove=True)]
    async with await opened(store, root, calls, tools=[binary]) as session:
        (turn,) = await turns(session)
        assert os.listdir(root) == ["picture"]
        assert (root / "picture").read_bytes() == b"\xff\0\1"
        assert str(await session.file_changes(turn)) == (
            "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-text\nBinary file picture changed\n"
        )
        assert await session.rewind_files(turn) == ["gone", "picture"]
        assert (root / "picture").read_bytes() == b"\xfe\0"
        assert (root / "gone").read_text() == "text\n"


async def test_a_file_that_is_too_large_is_named_and_not_kept(
    store: GatedStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tertulia.session.changing.LARGEST", 5)
    (root / "a.txt").write_text("much longer\n")
    async with await opened(store, root, SECOND) as session:
        (turn,) = await turns(session)
        shown = await session.file_changes(turn)
        assert (shown.files, shown.diff) == (("a.txt",), "File a.txt changed, and is too large to be shown\n")
        with pytest.raises(Conflict, match=r"too large .*a\.txt"):
            await session.rewind_files(turn)
        assert not any(each.refs for each in await session.records() if isinstance(each, Custom))


@pytest.mark.parametrize("retention", ["headers_only", "none"])
@pytest.mark.parametrize("given", ["session", "prompt"])
async def test_a_strict_retention_leaves_neither_contents_nor_paths(
    tmp_path: Path, root: Path, retention: str, given: str
) -> None:
    (root / "precious.txt").write_text("secret before\n")
    calls = [call("write", path="precious.txt", content="secret after\n")]
    options = {"retention": retention} if given == "session" else {}
    async with await opened(tmp_path / "s.db", root, calls, **options) as session:
        prompt = {"retention": retention} if given == "prompt" else {}
        id, turn = session.id, (await session.prompt("Go.", **prompt)).turn_id
        assert (await session.file_changes(turn)).diff.endswith("-secret before\n+secret after\n")
        assert await session.rewind_files(turn) == ["precious.txt"]
        await session.flush()
    assert (root / "precious.txt").read_text() == "secret before\n"
    kept = b"".join((tmp_path / each).read_bytes() for each in os.listdir(tmp_path) if each != "project")
    for word in (b"secret", b"precious"):
        assert word not in kept
    async with await opened(tmp_path / "s.db", root, id=id) as session:
        with pytest.raises(NotFound):
            await session.file_changes(turn)


async def test_contents_that_only_memory_has_are_forgotten_before_memory_is_full(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT", 1)
    async with await opened(None, root, SECOND, FIRST[:1], retention="none") as session:
        first, second = await turns(session, 2)
        for turn in (first, second):
            with pytest.raises(NotFound, match="not kept any more"):
                await session.file_changes(turn)


async def test_a_fork_puts_back_what_it_inherited_and_leaves_its_parents_later_turns(
    store: GatedStore, root: Path
) -> None:
    async with await opened(store, root, FIRST[:1], SECOND, "Done.") as session:
        (first,) = await turns(session)
        fork = await session.fork()
        (second,) = await turns(session)
        assert (await fork.file_changes()).turn_id == first
        with pytest.raises(NotFound):
            await fork.rewind_files(second)
        with pytest.raises(Conflict, match=r"a\.txt"):
            await fork.rewind_files(first)
        await session.rewind_files(second)
        assert await fork.rewind_files(first) == ["a.txt"]
        assert not (await session.file_changes(first)).rewound  # the fork did that
        assert await session.rewind_files(first) == []


async def test_a_conversation_in_a_file_of_its_own_takes_what_it_needs_along(
    tmp_path: Path, root: Path
) -> None:
    async with await opened(None, root, FIRST[:1], SECOND) as session:
        await session.enable_jsonl_persistence(tmp_path / "one.jsonl")  # so the Session's store has no blob
        first, second = await turns(session, 2)
        fork = await session.fork()
        assert await session.rewind_files(second) == ["a.txt"]
        assert await fork.rewind_files(first) == ["a.txt"]


async def test_nothing_is_put_back_while_a_turn_runs(root: Path) -> None:
    held = hold()
    async with await opened(None, root, SECOND, held) as session:
        (turn,) = await turns(session)
        running = asyncio.ensure_future(turns(session))
        await held.until_reached()
        with pytest.raises(ConversationBusy):
            await session.rewind_files(turn)
        held.release()
        await running
        assert await session.rewind_files(turn) == ["a.txt"]


async def test_a_call_that_was_given_up_changes_nothing_any_more(store: GatedStore, root: Path) -> None:
    started, go_on, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(context: ToolContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await go_on.wait()
        try:
            await context.write_file("a.txt", b"late", None)
        except PromptCancelled:
            refused.set()

    async with await opened(store, root, [call("late")], tools=[late], grace=0) as session:
        running = asyncio.ensure_future(session.prompt("Go."))
        async with asyncio.timeout(10):
            await started.wait()
            await session.cancel()
            go_on.set()
            await refused.wait()
        with pytest.raises(PromptCancelled):
            await running
        assert not (root / "a.txt").exists()
        with pytest.raises(NotFound):
            await session.file_changes()


@pytest.mark.parametrize("again", [False, True])
async def test_a_file_that_was_removed_gets_its_permissions_back(
    store: GatedStore, root: Path, again: bool
) -> None:
    (root / "run").write_text("text\n")
    (root / "run").chmod(0o700)
    steps = [[call("binary", path="run", remove=True)], *[[call("binary", path="run")]] * again, "Done."]
    async with await opened(store, root, tools=[binary], model=ScriptedModel(steps)) as session:
        (turn,) = await turns(session)
        assert (root / "run").exists() == again
        assert await session.rewind_files(turn) == ["run"]
        assert (root / "run").read_text() == "text\n"
        assert (root / "run").stat().st_mode & 0o7777 == 0o700


async def test_a_file_that_was_not_removed_keeps_the_permissions_that_it_has_by_now(root: Path) -> None:
    (root / "a.txt").write_text("mine\n")
    async with await opened(None, root, SECOND) as session:
        (turn,) = await turns(session)
        (root / "a.txt").chmod(0o700)
        await session.rewind_files(turn)
        assert (root / "a.txt").stat().st_mode & 0o7777 == 0o700


def test_a_change_recorded_without_permissions_is_read() -> None:
    assert msgspec.convert({"path": "/a", "before": None, "after": "b"}, Change).mode is None


async def test_contents_are_not_compressed_on_the_loop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep, get, threads = changes.Changes.keep, changes.Changes.get, []

    def keeping(self: changes.Changes, name: str, data: bytes) -> None:
        threads.append(threading.current_thread())
        keep(self, name, data)

    def getting(self: changes.Changes, name: str) -> bytes | None:
        threads.append(threading.current_thread())
        return get(self, name)

    monkeypatch.setattr(changes.Changes, "keep", keeping)
    monkeypatch.setattr(changes.Changes, "get", getting)
    async with await opened(None, root, SECOND, retention="none") as session:
        (turn,) = await turns(session)
        assert await session.rewind_files(turn) == ["a.txt"]
        assert await session.file_changes(turn)
    assert len(threads) == 2
    assert threading.current_thread() not in threads
