"""Starting one confined command: pipes, bubblewrap with its arguments, its limits and its way to the network."""

import os
from collections.abc import Sequence

from ..records.errors import SandboxError
from .bubblewrap import arguments
from .cgroup import Cgroup, places
from .policy import Bounds, Limits, environment
from .probe import filter_pipe
from .process import Process, spawn
from .protected import Plan
from .proxy import Proxy

LARGEST = 60_000
"""Bytes of all arguments of bubblewrap, which have to fit into a pipe."""


def launch(
    program: str, bounds: Bounds, plan: Plan, cwd: str, command: Sequence[str], limits: Limits
) -> Process:
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
        gate = None
        if bounds.hosts is not None:  # it waits there, with everything made ready, for its way to the network
            gate_end, gate = os.pipe()
            ours.append(gate)
            theirs.append(gate_end)
            line += ["--block-fd", str(gate_end)]
        theirs.append(_filled(line))
        made = [program, "--args", str(theirs[-1]), "--", *command]
        process = spawn(
            made if group is None else group.entered(made), cwd="/", environment=environment(bounds.policy),
            limits=limits, pass_fds=theirs, info=info,
        )  # fmt: skip
        ours.clear()
    except BaseException:
        if group is not None:
            group.discard()
        raise
    finally:
        for descriptor in (*ours, *theirs):
            os.close(descriptor)
    if bounds.hosts is not None and gate is not None:
        process.connect(Proxy(bounds.hosts), gate)
    process.hold(bounds.roots, group)
    return process


def _filled(line: list[str]) -> int:
    """A pipe that holds the arguments, to be read once."""
    data = b"".join(os.fsencode(word) + b"\0" for word in line)
    if len(data) > LARGEST:
        raise SandboxError("there are too many protected and hidden paths for one command")
    out, into = os.pipe()
    os.write(into, data)
    os.close(into)
    return out
