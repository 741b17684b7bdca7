"""Owners: who is alive is what the kernel says."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tertulia.store import owners
from tertulia.store.owners import Owners

CHILD = """
import sys
from tertulia.store.owners import Owners
owners = Owners(sys.argv[1])
print(owners.join(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["ofd", "process"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "process":
        monkeypatch.setattr(owners, "OFD", False)
    elif not owners.OFD:
        pytest.skip("this system has no such locks")
    return str(request.param)


def test_a_joined_number_is_alive_until_its_opener_closes(tmp_path: Path, locks: str) -> None:
    first, second = Owners(tmp_path / "o"), Owners(tmp_path / "o")
    number = first.join()
    other = second.join()
    assert 0 < number < 2**62
    assert number != other
    assert first.alive(number)
    assert second.alive(number)
    first.close()
    first.close()
    assert not second.alive(number)
    assert second.alive(other)
    second.close()


def test_the_file_is_private(tmp_path: Path) -> None:
    Owners(tmp_path / "o").close()
    assert stat.S_IMODE((tmp_path / "o").stat().st_mode) == 0o600


@pytest.mark.parametrize("frozen", [False, True])
def test_a_killed_process_is_dead_at_once_and_a_stopped_one_is_not(
    tmp_path: Path, locks: str, frozen: bool
) -> None:
    mine = Owners(tmp_path / "o")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "o")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        number = int(child.stdout.readline())
        assert mine.alive(number)
        if frozen:
            child.send_signal(signal.SIGSTOP)
            assert mine.alive(number)
        child.kill()
        child.wait(30)
        assert not mine.alive(number)
    mine.close()


def test_a_forked_child_that_closes_takes_nothing_from_its_parent(tmp_path: Path, locks: str) -> None:
    mine = Owners(tmp_path / "o")
    number = mine.join()
    pid = os.fork()
    if pid == 0:
        mine.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    other = Owners(tmp_path / "o")
    assert other.alive(number)
    other.close()
    mine.close()


def test_what_is_closed_is_free_though_a_forked_child_lives_on(tmp_path: Path, locks: str) -> None:
    mine = Owners(tmp_path / "o")
    number = mine.join()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        os.read(told, 1)
        os._exit(0)
    os.close(told)
    mine.close()
    other = Owners(tmp_path / "o")
    assert not other.alive(number)
    other.close()
    os.close(tell)
    os.waitpid(pid, 0)
