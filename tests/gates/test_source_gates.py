"""The gates that read source: locks, doors, test hygiene, words."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gates import doors, hygiene, locks, words

Tree = Callable[[dict[str, str]], Path]

UNDER_A_LOCK = {
    "await": "async def f(lock):\n    async with lock:\n        await g()\n",
    "attribute": "async def f(self):\n    with self._write_lock:\n        await g()\n",
    "made there": "async def f(self):\n    with self.locks[1]:\n        async for x in g():\n            pass\n",
    "nested": "async def f(lock):\n    with lock:\n        if x:\n            async with g():\n                pass\n",
    "comprehension": "async def f(lock):\n    with lock:\n        return [x async for x in g()]\n",
    "yield": "def f(lock):\n    with lock:\n        yield 1\n",
    "by hand": "def f(lock):\n    lock.acquire()\n",
}


@pytest.mark.parametrize("source", UNDER_A_LOCK.values(), ids=UNDER_A_LOCK)
def test_waiting_under_a_lock_is_found(tree: Tree, source: str) -> None:
    root = tree({"src/tertulia/store/x.py": source})
    assert [finding.path for finding in locks.check(root)] == ["src/tertulia/store/x.py"]


def test_whoever_enters_what_yields_under_a_lock_holds_it(tree: Tree) -> None:
    manager = """
        from contextlib import contextmanager

        @contextmanager
        def writing(self):
            with self._lock:
                yield
    """
    assert locks.check(tree({"src/tertulia/store/x.py": manager})) == []
    tree({"src/tertulia/store/y.py": "async def f(x):\n    with x.writing():\n        await g()\n"})
    assert [str(finding).partition(" ")[0] for finding in locks.check(tree({}))] == [
        "src/tertulia/store/y.py:3:"
    ]


def test_work_under_a_lock_and_what_only_sounds_like_one_pass(tree: Tree) -> None:
    source = """
        async def f(self, block, clock):
            with self._lock:
                held = self.rows if self._lock.locked() else block.acquire()
                async def later():
                    await g()
            await g(held)
            async with block, clock.timer():
                await g()
    """
    assert locks.check(tree({"src/tertulia/store/x.py": source})) == []


def test_session_makes_no_asyncio_lock(tree: Tree) -> None:
    source = "from asyncio import Lock as Guard\n\nguard = Guard()\n"
    root = tree({"src/tertulia/session/x.py": source, "src/tertulia/store/x.py": source})
    assert [str(finding).partition(" ")[0] for finding in locks.check(root)] == [
        "src/tertulia/session/x.py:3:"
    ]


CLOSED = {
    "driver": ("store/jsonl.py", "import apsw"),
    "inside a function": ("session/x.py", "def f():\n    from mcp.client import x"),
    "by name": ("server/x.py", "import importlib\nimportlib.import_module('claude_agent_sdk')"),
    "namespace": ("tools/x.py", "from google import genai"),
    "beside the door": ("acpx/x.py", "import acp"),
    "unknown": ("store/x.py", "import requests"),
}


@pytest.mark.parametrize(("path", "source"), CLOSED.values(), ids=CLOSED)
def test_a_package_beside_its_door_is_found(tree: Tree, path: str, source: str) -> None:
    assert len(doors.check(tree({f"src/tertulia/{path}": source}))) == 1


OPEN = {
    "driver": ("store/sqlite_writer.py", "import apsw"),
    "folder": ("acp/wire.py", "from acp import schema"),
    "module": ("tools/mcp.py", "import mcp.client"),
    "everywhere": ("records/x.py", "import msgspec"),
    "ours and python's": (
        "cli/x.py",
        "import json\nfrom . import acp\nfrom .mcp import x\nimport tertulia.acp",
    ),
    "variable": (
        "cli/x.py",
        "from importlib import import_module\nimport_module(name)\nimport_module('.x', p)",
    ),
}


@pytest.mark.parametrize(("path", "source"), OPEN.values(), ids=OPEN)
def test_a_package_through_its_door_passes(tree: Tree, path: str, source: str) -> None:
    assert doors.check(tree({f"src/tertulia/{path}": source})) == []


UNTIDY = {
    "sleep": "import asyncio\nasync def test_x():\n    await asyncio.sleep(0.1)\n",
    "sleep by another name": "from time import sleep as nap\ndef helper():\n    nap(SECONDS)\n",
    "event": "async def test_x(event):\n    await event.wait()\n",
    "queue": "async def test_x(queue):\n    assert await queue.get() == 1\n",
    "thread": "def test_x(thread):\n    thread.join()\n",
    "process": "def test_x(child):\n    assert child.wait() == 0\n",
    "skip": "import pytest\ndef test_x():\n    pytest.skip()\n",
    "bare mark": "import pytest\n@pytest.mark.skip\ndef test_x():\n    pass\n",
    "skipif": "import pytest\n@pytest.mark.skipif(True)\ndef test_x():\n    pass\n",
    "xfail": "from pytest import mark\n@mark.xfail(strict=True)\ndef test_x():\n    pass\n",
}


@pytest.mark.parametrize("source", UNTIDY.values(), ids=UNTIDY)
def test_sleeps_endless_waits_and_silent_skips_are_found(tree: Tree, source: str) -> None:
    assert len(hygiene.check(tree({"tests/test_x.py": source}))) == 1


def test_bounded_waits_and_reasons_pass(tree: Tree) -> None:
    source = """
        import asyncio, pytest

        @pytest.mark.skipif(True, reason="no such kernel")
        async def test_x(event, queue, thread, clock, variable):
            async def never():
                await event.wait()
            await asyncio.sleep(0)
            await clock.sleep(5)
            async with asyncio.timeout(5):
                await event.wait()
            await asyncio.wait_for(queue.get(), 5)
            task = asyncio.create_task(event.wait())
            thread.join(5)
            assert ",".join(["a"]) and variable.get()
            pytest.skip("not here")
    """
    assert hygiene.check(tree({"tests/test_x.py": source})) == []


# In capitals, so that this file does not hold the words itself.
@pytest.mark.parametrize(
    "text", ["see /WORK/main", "open('/TMP/notes')", "https://PYPI.ORG/x", "--INDEX-URL https://x"]
)
def test_a_forbidden_word_is_found(tree: Tree, text: str) -> None:
    root = tree({"docs/x.md": f"first line\n{text.lower()}\n"})
    assert [(finding.path, finding.line) for finding in words.check(root)] == [("docs/x.md", 2)]


def test_only_tracked_text_is_searched(tree: Tree, commit: Callable[[Path], None]) -> None:
    root = tree({"docs/x.md": "our/work/here, ${HOME}/tmp/x, /tmp alone\n"})
    (root / "image").write_bytes(b"\xff\xfe")
    commit(root)
    tree({"new.md": "/WORK/main".lower()})
    assert words.check(root) == []


def test_without_git_what_gitignore_names_is_left_out(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    word = "/WORK/main".lower()
    root = tree(
        {".gitignore": "# made\n/.venv/\n*.log\n", ".venv/x.py": word, "x.log": word, "docs/x.md": word}
    )
    assert [finding.path for finding in words.check(root)] == ["docs/x.md"]
