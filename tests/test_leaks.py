"""The checks of conftest.py, each on a test that leaves something behind."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAKS = {
    "task": """
        import asyncio
        async def test_it():
            asyncio.get_running_loop().leak = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    """,
    "thread": """
        import threading
        release = threading.Event()
        def test_it():
            threading.Thread(target=release.wait, args=(20,), name="forgotten").start()
        def test_end():
            release.set()
    """,
    "daemon": """
        import threading
        release = threading.Event()
        def test_it():
            threading.Thread(target=release.wait, args=(20,), name="tertulia-forgotten", daemon=True).start()
        def test_end():
            release.set()
    """,
    "process": """
        import subprocess
        children = []
        def test_it():
            children.append(subprocess.Popen(["sleep", "20"]))
        def test_end():
            children[0].kill()
            children[0].wait(20)
    """,
    "file": """
        import os
        def test_it(tmp_path):
            os.open(tmp_path / "forgotten", os.O_CREAT | os.O_RDWR)
    """,
    "resource": """
        import socket
        def test_it():
            cycle = []
            cycle.append((cycle, socket.socket()))
    """,
}


@pytest.fixture
def project(pytester: pytest.Pytester, pytestconfig: pytest.Config) -> pytest.Pytester:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text())
    pytester.makepyprojecttoml((pytestconfig.rootpath / "pyproject.toml").read_text())
    return pytester


@pytest.mark.parametrize("leak", LEAKS)
def test_what_a_test_leaves_behind_fails_it(project: pytest.Pytester, leak: str) -> None:
    file = project.makepyfile(LEAKS[leak])
    result = project.runpytest_subprocess(file, timeout=30)
    result.assert_outcomes(passed=1 + ("test_end" in LEAKS[leak]), errors=1)
    result.stdout.re_match_lines([".*(left behind|ResourceWarning).*"])


def test_what_a_test_ends_itself_is_no_leak(project: pytest.Pytester) -> None:
    file = project.makepyfile(
        """
        import asyncio, subprocess, threading
        async def test_it(tmp_path):
            task = asyncio.create_task(asyncio.Event().wait())
            task.cancel()
            await asyncio.to_thread(threading.Event().wait, 0)
            subprocess.run(["true"], check=True)
            threading.Timer(0.1, print).start()  # ends by itself soon
            (tmp_path / "file").write_text("closed")
        """
    )
    project.runpytest_subprocess(file, timeout=30).assert_outcomes(passed=1)
