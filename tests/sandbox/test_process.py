"""How a command is run and ended, with the sandbox and without."""

import asyncio
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import InvalidInput, SandboxError
from tertulia.sandbox import probe as probing
from tertulia.sandbox.cgroup import places
from tertulia.sandbox.limits import tree
from tertulia.sandbox.output import Output
from tertulia.sandbox.policy import Policy
from tertulia.sandbox.process import Process
from tertulia.sandbox.sandbox import Sandbox


async def test_output_and_status_come_back(run: Any) -> None:
    ran = await run("pwd; echo err >&2; exit 7")
    assert ran.status == 7
    assert ran.text.endswith("project\nerr\n")
    assert (await run("kill -9 $$")).status in (-9, 137)
    assert (await run("no-such-program")).status == 127


async def test_many_commands_one_after_the_other_all_begin_and_end(sandboxed: Callable[..., Sandbox]) -> None:
    """What bubblewrap says of its processes comes in pieces, now and then between two looks at it."""
    sandbox = sandboxed()
    async with asyncio.timeout(25):
        for _ in range(60):
            assert (await sandbox.start(["/bin/true"]).wait()).status == 0


async def test_output_streams_while_it_runs(sandboxed: Callable[..., Sandbox], root: Path) -> None:
    os.mkfifo(root / "go")
    process, seen, output = (
        sandboxed().start(["/bin/sh", "-c", "echo first; cat go"]),
        asyncio.Event(),
        Output(),
    )

    def came(data: bytes) -> None:
        output.add(data)
        seen.set()

    process.on_output = came
    waiting = asyncio.ensure_future(process.wait())
    async with asyncio.timeout(10):
        await seen.wait()
        assert output.text == "first\n"
        assert not process.ended
        await asyncio.to_thread((root / "go").write_text, "second\n")
        assert (await waiting).status == 0
    assert output.text == "first\nsecond\n"


async def test_a_cancelled_wait_kills_it_first(sandboxed: Callable[..., Sandbox]) -> None:
    process = sandboxed().start(["/bin/sh", "-c", "trap '' TERM INT; echo on; sleep 60 & wait"])
    started = asyncio.Event()
    process.on_output = lambda data: started.set()
    waiting = asyncio.ensure_future(process.wait())
    async with asyncio.timeout(10):
        await started.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert process.ended


@pytest.mark.parametrize("network", ["off", ("example.org",)])
async def test_a_wait_that_is_cancelled_again_and_again_leaves_nothing(
    sandboxed: Callable[..., Sandbox], root: Path, network: Any
) -> None:
    sandbox = sandboxed(network=network)
    for turns in range(12):
        process = sandbox.start(["/bin/sleep", "60"])
        waiting = asyncio.ensure_future(process.wait())
        for _ in range(turns * 3):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while not waiting.done():
                waiting.cancel()
                await asyncio.sleep(0)
        assert waiting.cancelled() or turns == 0
        if turns:
            assert process.gone.done()
            assert process._group is None or process._group._folders == []
        else:
            process.stop("enough")
            async with asyncio.timeout(20):
                await process.wait()
    assert os.listdir(root) == []


async def test_what_begins_has_no_file_of_ours(sandboxed: Callable[..., Sandbox], run: Any) -> None:
    for policy in ({}, {"network": ("example.org",)}):
        ran = await run("/bin/ls", "/proc/self/fd", **policy)
        assert ran.text.split() == ["0", "1", "2", "3"]  # the last is the folder it looks at
        assert (await run("/bin/sh", "-c", "read x", **policy)).status == 1  # nothing comes in


async def test_a_program_that_cannot_run_says_so(run: Any) -> None:
    assert (await run("no-such-program", "x")).status == 127
    assert (await run("/etc/passwd", "x")).status == 126
    assert (await run("/bin/sh", "-c", "exit 125")).status == 125


async def test_nothing_begins_where_its_owner_is_gone(
    sandboxed: Callable[..., Sandbox], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it is killed meanwhile: its end of the gate is closed, by nobody who could write to it."""
    monkeypatch.setattr(Process, "_arrived", lambda self, what: self._shut())
    async with asyncio.timeout(20):
        ended = await sandboxed().start(["/bin/touch", "here"]).wait()
    assert (ended.status, os.listdir(root)) == (125, [])


async def test_closing_ends_what_runs(sandboxed: Callable[..., Sandbox]) -> None:
    sandbox = sandboxed()
    job = sandbox.jobs.add("sleep 60", sandbox.start(["sleep", "60"]))
    async with asyncio.timeout(10):
        await sandbox.aclose()
    assert job.exit is not None
    assert job.exit.stopped == "the session was closed"
    with pytest.raises(SandboxError, match="closed"):
        sandbox.start(["true"])


KILLED = """
import asyncio, sys
from tertulia.sandbox.sandbox import Sandbox

async def main():
    sandbox = Sandbox("on", sys.argv[1])
    process = sandbox.start(["/bin/sh", "-c", "setsid sleep 60 & sleep 60 & echo on; wait"])
    process.on_output = lambda data: print(process._started.pid, flush=True)
    await process.wait()

asyncio.run(main())
"""


def test_nothing_outlives_a_process_that_is_killed(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        bwrap = int(owner.stdout.readline())
        started = tree(bwrap, 100)
        assert len(started) >= 4
        owner.kill()
    assert all(_ends(pid) for pid in started)
    if places():
        places.cache_clear()
        assert places()  # looks again, and takes away what was left
        assert not [name for place, _ in places() for name in os.listdir(place) if name.endswith(f"-{bwrap}")]


async def test_switched_off_it_runs_unconfined(run_off: Any, tmp_path: Path) -> None:
    ran = await run_off(f"echo x > {tmp_path}/outside; exit 4")
    assert (ran.status, (tmp_path / "outside").read_text()) == (4, "x\n")


async def test_switched_off_its_children_still_end_with_it(run_off: Any) -> None:
    began = time.monotonic()
    ran = await run_off("setsid sleep 100 & sleep 100", seconds=0.3)
    assert ran.stopped == "it ran longer than 0.3 s"
    ran = await run_off("sleep 100 & echo $!")
    assert _ends(int(ran.text))
    assert time.monotonic() - began < 50, "it was waited for"


@pytest.mark.req("S2-14b")
async def test_where_nothing_confines_a_command_is_refused(
    run: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = probing.Probe(program=None, problem="bwrap is not installed", limits="watcher", files="openat2")
    monkeypatch.setattr(probing, "probe", lambda: broken)
    with pytest.raises(SandboxError, match="bwrap is not installed") as raised:
        await run("touch x")
    assert "sandbox='off'" in (raised.value.hint or "")
    assert os.listdir(root) == []


async def test_a_bubblewrap_that_fails_is_a_problem_with_its_words(tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'no permission to make namespaces' >&2; exit 1\n")
    fake.chmod(0o755)
    assert probing._try(str(fake)) == "no permission to make namespaces"
    assert probing._try(None) == "bwrap is not installed"


def test_what_cannot_be_kept_is_refused_at_once(tmp_path: Path) -> None:
    for policy in (Policy(network=("no host",)), Policy(roots=("/",)), Policy(roots=("no-such-folder",))):
        with pytest.raises(SandboxError):
            Sandbox(policy, str(tmp_path))
    with pytest.raises(InvalidInput):
        Sandbox("maybe", str(tmp_path))  # type: ignore[arg-type]


async def test_a_folder_of_keys_is_no_root(run: Any, home: Path) -> None:
    with pytest.raises(SandboxError, match="never shown"):
        await run("true", cwd=home / ".ssh")


async def test_a_long_command_is_refused_not_cut(run: Any) -> None:
    with pytest.raises(InvalidInput, match="too long"):
        await run("x" * 200_000)


def test_output_keeps_its_beginning_and_end() -> None:
    output = Output(limit=20)
    output.add("0123456789é".encode()[:-1])
    output.add("é".encode()[-1:])
    for _ in range(20):
        output.add(b"x" * 5)
    output.add(b"the end")
    assert output.text.startswith("0123456789\n[… ")
    assert output.text.endswith("the end")
    assert output.new().endswith("the end")
    assert output.new() == ""
    output.add(b"+")
    assert output.new() == "+"


def _ends(pid: int) -> bool:
    """Whether it has ended, or does within a moment: a killed process takes one."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], 2.0)[0])
    finally:
        os.close(pidfd)
