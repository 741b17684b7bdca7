"""Starting one confined command: pipes, bubblewrap with its arguments, its limits and its way to the network."""

import os
import socket
from collections.abc import Sequence

from ..records.errors import SandboxError
from .bubblewrap import arguments
from .cgroup import Cgroup, places
from .policy import Bounds, Limits, environment
from .probe import filter_pipe
from .process import Process, spawn
from .protected import Plan
from .proxy import Proxy

MOST = 9_000
"""Arguments that bubblewrap takes, the command's among them."""

GATE = 'echo >&0 && read -r tertulia_gate && exec "$@" </dev/null; exit 125'
"""The first to run inside: it says that it is there, and waits at its input to be let through.

Only then does all of the namespace end with us. Where we have ended meanwhile, the input does, and nothing begins.
"""


def launch(
    program: str, bounds: Bounds, plan: Plan, cwd: str, command: Sequence[str], limits: Limits,
    plain: Sequence[str],
) -> Process:  # fmt: skip
    """`plain`: the roots that must not become repositories."""
    ours: list[int] = []  # closed here when it comes to nothing, by the process otherwise
    theirs: list[int] = []
    group = Cgroup(limits) if places() else None
    try:
        code = filter_pipe()
        theirs.append(code)
        info, info_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        ours.append(info)
        theirs.append(info_end)
        line = arguments(bounds, plan, cwd, filter_fd=code, info_fd=info_end)
        gate, stdin = (each.detach() for each in socket.socketpair())
        ours.append(gate)
        theirs.append(stdin)
        made = ["--", "/bin/sh", "-c", GATE, "sh", *command]
        theirs.append(_filled(line, MOST - len(made) - 3))
        made = [program, "--args", str(theirs[-1]), *made]
        process = spawn(
            made if group is None else group.entered(made), cwd="/", environment=environment(bounds.policy),
            limits=limits, pass_fds=[each for each in theirs if each != stdin], info=info, stdin=stdin,
        )  # fmt: skip
        ours.clear()
    except BaseException:
        if group is not None:
            group.discard()
        raise
    finally:
        for descriptor in (*ours, *theirs):
            os.close(descriptor)
    process.let(gate, None if bounds.hosts is None else Proxy(bounds.hosts))
    process.hold(bounds.roots, plain, group)
    return process


def _filled(line: list[str], most: int) -> int:
    """A file without a name that holds the arguments."""
    if len(line) > most:
        raise SandboxError(
            f"there are too many protected and hidden paths for one command: {len(line)} words, of at most {most}",
            hint="a root with fewer repositories in it, or Policy(writable=…) for some of these paths",
        )
    file = os.memfd_create("tertulia-arguments")
    with open(file, "wb", closefd=False) as written:
        written.write(b"".join(os.fsencode(word) + b"\0" for word in line))
    os.lseek(file, 0, os.SEEK_SET)
    return file
