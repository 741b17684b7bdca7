"""What every test is held to: it leaves no task, thread, process or open file behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("default", deadline=None, max_examples=50, print_blob=True)
hypothesis.settings.register_profile("torture", deadline=None, max_examples=2_000, print_blob=True)
hypothesis.settings.load_profile("torture" if os.environ.get("TERTULIA_TORTURE") else "default")

OURS = "tertulia"  # how the names of our own threads begin: daemon or not, they end with what started them
GRACE = 1.0  # seconds that a thread may take to end after it was told to
FAILED = pytest.StashKey[bool]()
BEFORE = pytest.StashKey["Held"]()


class Held:
    """What this process holds at one moment."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.children = _children()
        self.files = _open_files()


def _children() -> set[str]:
    """Children, zombies among them; none where the kernel does not list them."""
    found = set()
    for file in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(file.read_text().split())
        except OSError:
            continue  # the thread has ended meanwhile
    return {pid for pid in found if "resource_tracker" not in _command(pid)}  # Python's own, it stays


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _open_files() -> set[tuple[str, str]]:
    """Descriptors of files in the folder for temporary ones, where the tests have their stores."""
    found = set()
    for link in Path("/proc/self/fd").glob("*"):
        try:
            found.add((link.name, os.readlink(link)))
        except OSError:
            continue  # the descriptor of this very listing
    return {(number, target) for number, target in found if target.startswith(tempfile.gettempdir() + "/")}


def pytest_collection_finish() -> None:
    """What is there now stays: the collection after each test then looks at the test's own objects only."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    item.stash[BEFORE] = Held()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield  # the fixtures are gone now, the event loop too
    if not item.stash.get(FAILED, False) and (left := _left(item.stash[BEFORE])):
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)
    return result


def _left(before: Held) -> list[str]:
    for thread in set(threading.enumerate()) - before.threads:
        if _counts(thread):
            thread.join(GRACE)
    now = Held()
    left = [f"thread {thread.name}" for thread in now.threads - before.threads if _counts(thread)]
    left += [f"process {pid} {_command(pid)}" for pid in now.children - before.children]
    left += [f"open file {target}" for _, target in now.files - before.files]
    return left


def _counts(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith(OURS)


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """First to be set up, so last to be torn down, just before the loop of the test is closed."""
    inner = getattr(getattr(request.function, "hypothesis", None), "inner_test", request.function)
    if inspect.iscoroutinefunction(inner):
        request.getfixturevalue("_no_task_left")
    yield
    gc.collect()  # what was not closed says so now, within this test


@pytest.fixture
async def _no_task_left(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0)  # what was cancelled last gets to end
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks and not request.node.stash.get(FAILED, False):
        pytest.fail("the test left behind: " + "; ".join(sorted(map(repr, tasks))[:5]), pytrace=False)
