"""Starting one confined command: pipes, bubblewrap with its arguments, and the gate it waits at until it is held."""

import os
from collections.abc import Sequence

from ..records.errors import SandboxError
from .bubblewrap import arguments
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
    try:
        code = filter_pipe()
        theirs.append(code)
        info, info_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        ours.append(info)
        theirs.append(info_end)
        gate_end, gate = os.pipe()
        ours.append(gate)
        theirs.append(gate_end)
        line = arguments(bounds, plan, cwd, filter_fd=code, info_fd=info_end)
        theirs.append(_filled([*line, "--block-fd", str(gate_end)]))
        process = spawn(
            [program, "--args", str(theirs[-1]), "--", *command], cwd="/", environment=environment(bounds.policy),
            limits=limits, pass_fds=theirs, info=info,
        )  # fmt: skip
        if bounds.hosts is not None:
            process.proxy = Proxy(bounds.hosts)
        ours.clear()
    finally:
        for descriptor in (*ours, *theirs):
            os.close(descriptor)
    process.begin(gate, bounds.roots)
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
