"""Changes of files when others change them too: beside a turn, in the midst of it, and while it is put back."""

import asyncio
import itertools
import threading
from pathlib import Path

import pytest

from tertulia import ToolContext
from tertulia.records.errors import Conflict, PromptCancelled
from tertulia.testing import call
from tests.session.stores import GatedStore
from tests.session.test_rewind import opened, results, turns

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


class Door:
    """A lock that says who comes and who has left. The first `held` of them wait until it is opened."""

    def __init__(self, held: int) -> None:
        self.opened = threading.Event()
        self._held = held
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._seen = {"came": 0, "left": 0}
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        number = next(self._numbers)
        self._loop.call_soon_threadsafe(self._see, "came")
        if number < self._held:
            assert self.opened.wait(30)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._loop.call_soon_threadsafe(self._see, "left")

    def _see(self, what: str) -> None:
        self._seen[what] += 1
        self._news.set()

    async def until(self, what: str, count: int) -> None:
        async with asyncio.timeout(20):
            while self._seen[what] < count:
                self._news.clear()
                await self._news.wait()


async def test_what_someone_else_wrote_between_two_changes_is_not_lost(store: GatedStore, root: Path) -> None:
    async def both(context: ToolContext) -> None:
        await context.write_file("a.txt", b"1\n", b"0\n")
        (root / "a.txt").write_text("1\ntheirs\n")
        await context.write_file("a.txt", b"2\ntheirs\n", b"1\ntheirs\n")
        await context.write_file("a.txt", b"3\ntheirs\n", b"2\ntheirs\n")
        await context.write_file("b.txt", b"new", None)

    (root / "a.txt").write_text("0\n")
    async with await opened(store, root, [call("both")], tools=[both]) as session:
        (turn,) = await turns(session)
        with pytest.raises(Conflict, match=r"someone else during turn .*: a\.txt \("):
            await session.rewind_files(turn)
        assert (root / "a.txt").read_text() == "3\ntheirs\n"
        assert (root / "b.txt").read_text() == "new"
        assert "-0\n+3\n+theirs\n" in str(await session.file_changes(turn))
        (root / "a.txt").write_text("0\n")  # by hand
        assert await session.rewind_files(turn) == ["b.txt"]


async def test_a_change_that_was_recorded_and_never_made_is_no_one_elses(
    store: GatedStore, root: Path
) -> None:
    async def again(context: ToolContext) -> None:
        door = context.sandbox.changes.writing = Door(held=1)  # type: ignore[assignment]
        first = asyncio.ensure_future(context.write_file("a.txt", b"1\n", b"0\n"))
        await door.until("came", 1)
        first.cancel()
        await context.write_file("a.txt", b"2\n", b"0\n")
        door.opened.set()
        await door.until("left", 2)

    (root / "a.txt").write_text("0\n")
    async with await opened(store, root, [call("again")], tools=[again]) as session:
        (turn,) = await turns(session)
        assert (root / "a.txt").read_text() == "2\n"
        assert await session.rewind_files(turn) == ["a.txt"]
        assert (root / "a.txt").read_text() == "0\n"


async def test_of_two_calls_that_read_the_same_one_gets_a_conflict(store: GatedStore, root: Path) -> None:
    async def put(text: str, context: ToolContext) -> str:
        await context.write_file("a.txt", text.encode(), b"before")
        return text

    (root / "a.txt").write_text("before")
    calls = [call("put", text=text) for text in ("one", "two")]
    async with await opened(store, root, calls, tools=[put]) as session:
        door = session._shared.sandbox.changes.writing = Door(held=2)  # type: ignore[assignment]
        running = asyncio.ensure_future(turns(session))
        await door.until("came", 2)
        assert (root / "a.txt").read_text() == "before"
        door.opened.set()
        (turn,) = await running
        said = dict(await results(session))
        assert said["ok"] == (root / "a.txt").read_text()
        assert "changed by someone else" in said["error"]
        assert await session.rewind_files(turn) == ["a.txt"]


async def test_a_call_that_was_given_up_while_it_waited_to_write_does_not(
    store: GatedStore, root: Path
) -> None:
    async def put(context: ToolContext) -> None:
        await context.write_file("a.txt", b"late", None)

    async with await opened(store, root, [call("put")], tools=[put], grace=0) as session:
        door = session._shared.sandbox.changes.writing = Door(held=1)  # type: ignore[assignment]
        running = asyncio.ensure_future(session.prompt("Go."))
        await door.until("came", 1)
        await session.cancel()
        with pytest.raises(PromptCancelled):
            await running
        door.opened.set()
        await door.until("left", 1)
        assert not (root / "a.txt").exists()


async def test_putting_back_waits_for_a_change_that_is_being_made(store: GatedStore, root: Path) -> None:
    (root / "a.txt").write_text("one\ntwo\n")
    edits = [[call("edit", path="a.txt", old=old, new=old.upper())] for old in ("one", "two")]
    async with await opened(store, root, *edits) as session:
        (turn,) = await turns(session)
        fork = await session.fork()
        changes = session._shared.sandbox.changes
        lock = changes.lock = Door(held=0)  # type: ignore[assignment]
        writing = changes.writing = Door(held=1)  # type: ignore[assignment]
        editing = asyncio.ensure_future(turns(fork))
        await writing.until("came", 1)  # it has read the file
        rewinding = asyncio.ensure_future(session.rewind_files(turn))
        await lock.until("came", 2)
        assert not rewinding.done()
        writing.opened.set()
        with pytest.raises(Conflict, match=r"a\.txt"):
            await rewinding
        await editing
        assert (root / "a.txt").read_text() == "ONE\nTWO\n"
        assert not (await session.file_changes(turn)).rewound
