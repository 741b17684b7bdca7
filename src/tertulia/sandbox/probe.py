"""Which parts of the sandbox work on this machine. Tried once per process, not guessed."""

import functools
import os
import shutil
import subprocess
import tempfile

import msgspec

from . import beneath, cgroup, seccomp
from .bubblewrap import arguments
from .policy import Bounds, Policy
from .protected import Plan

PROGRAM = "bwrap"
SECONDS = 10.0


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """`problem`: why commands cannot be confined here, None when they can."""

    program: str | None
    problem: str | None
    limits: str  # cgroup v1, cgroup v2, watcher
    files: str  # openat2, step by step

    @property
    def works(self) -> bool:
        return self.problem is None


@functools.cache
def probe() -> Probe:
    program = shutil.which(PROGRAM)
    versions = sorted({version for _, version in cgroup.places()})
    return Probe(
        program=program,
        problem=_try(program),
        limits=f"cgroup v{versions[0]}" if versions else "watcher",
        files="openat2" if beneath.has_openat2() else "step by step",
    )


def filter_pipe() -> int:
    """The system call filter, to be read once."""
    code = seccomp.program()
    assert code is not None  # the probe has looked
    out, into = os.pipe()
    os.write(into, code)
    os.close(into)
    return out


def _try(program: str | None) -> str | None:
    """Run a command that does nothing, with everything that a real one gets."""
    if not hasattr(os, "pidfd_open"):
        return "the kernel is too old, or this is not Linux"
    if program is None:
        return f"{PROGRAM} is not installed"
    if seccomp.program() is None:
        return f"system calls cannot be filtered on {os.uname().machine}"
    with tempfile.TemporaryDirectory(prefix="tertulia-probe-") as folder:
        root = os.path.realpath(folder)
        bounds = Bounds(policy=Policy(), roots=(root,), read_only=(), denied=(), home=root)
        code, info = filter_pipe(), os.open(os.devnull, os.O_WRONLY)
        command = arguments(bounds, Plan(), root, filter_fd=code, info_fd=info)
        try:
            done = subprocess.run(
                [program, *command, "/bin/sh", "-c", ":"], stdin=subprocess.DEVNULL, capture_output=True,
                timeout=SECONDS, pass_fds=(code, info), check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{PROGRAM} cannot run: {error}"
        finally:
            os.close(code)
            os.close(info)
    if done.returncode:
        return done.stderr.decode(errors="replace").strip()[:500] or f"{PROGRAM} ended with {done.returncode}"
    return None
