"""`true` in the sandbox, from its start to the end of all that belongs to it.

Beside: bubblewrap with the very same arguments and system call filter, and with the fewest that confine anything.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator

from tertulia.sandbox.bubblewrap import arguments
from tertulia.sandbox.policy import Bounds
from tertulia.sandbox.probe import filter_pipe, probe
from tertulia.sandbox.protected import plan
from tertulia.sandbox.sandbox import Sandbox

from .harness import Goal, Result, Scale, pick, progress, rounds, timed

TRUE = ("/bin/true",)
FEWEST = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "--die-with-parent"]


async def run(scale: Scale) -> list[Result]:
    found = probe()
    if found.program is None or found.problem is not None:
        progress(f"sandbox: not measured, {found.problem}")
        return []
    program, times = found.program, pick(scale, 1, 5)
    with _folder() as folder:
        sandbox = Sandbox("on", folder)
        bounds = sandbox.bounds()
        assert bounds is not None
        ours, same, fewest = await rounds(
            pick(scale, 1, 15),
            lambda: timed(times, lambda: _ours(sandbox)),
            lambda: timed(times, lambda: _same(program, bounds, folder)),
            lambda: timed(times, lambda: _bare(program, FEWEST)),
        )
        await sandbox.aclose()
    return [
        Result("sandboxed true", ours, "ms", same, "bwrap, the same arguments", Goal("ratio", 1.3)),
        Result("sandboxed true", ours, "ms", fewest, "bwrap, the fewest arguments"),
    ]


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tertulia-bench-") as folder:
        yield os.path.realpath(folder)


async def _ours(sandbox: Sandbox) -> None:
    _ended((await sandbox.start(TRUE).wait()).status)


async def _same(program: str, bounds: Bounds, folder: str) -> None:
    code, info = filter_pipe(), os.open(os.devnull, os.O_WRONLY)
    made = plan(bounds)
    try:
        line = arguments(bounds, made, folder, filter_fd=code, info_fd=info)
        await _bare(program, line, code, info)
    finally:
        made.release()
        os.close(code)
        os.close(info)


async def _bare(program: str, line: list[str], *descriptors: int) -> None:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        program, *line, *TRUE, stdin=quiet, stdout=quiet, stderr=quiet, pass_fds=descriptors
    )
    _ended(await process.wait())


def _ended(status: int) -> None:
    if status:
        raise AssertionError(f"true ended with {status}")
