"""The command line of bubblewrap for one command. Later arguments lie over earlier ones."""

import os

from .policy import MIB, Bounds, inside
from .protected import Plan

EMPTY = ("/run", "/tmp")
"""Where the host's sockets are."""

SHARED_MEMORY = 256 * MIB

FIXED = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--disable-userns", "--die-with-parent",
    "--new-session", "--cap-drop", "ALL",
)  # fmt: skip


def arguments(bounds: Bounds, plan: Plan, cwd: str, *, filter_fd: int, info_fd: int) -> list[str]:
    """All but the command. Everything is read-only but the roots; /proc too, where a setting's owner may write it."""
    scratch = str(bounds.policy.limits.memory // 2)
    made = [
        "--ro-bind", "/", "/", "--dev", "/dev", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm",
        "--remount-ro", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--remount-ro", "/proc",
    ]  # fmt: skip
    for place in EMPTY:
        made += ["--size", scratch, "--tmpfs", place]
    shown = [("--bind", root) for root in bounds.roots] + [
        ("--ro-bind", path) for path in bounds.read_only if path not in bounds.roots
    ]
    for option, path in sorted(shown, key=lambda each: each[1].count("/")):
        made += [option, path, path]
    for path in sorted(dict.fromkeys(plan.fixed), key=lambda each: each.count("/")):
        made += ["--bind", path, path]
    for path in dict.fromkeys(plan.read_only):
        made += ["--ro-bind", path, path]
    for path in plan.opened:
        if any(inside(path, place) for place in plan.read_only):
            made += ["--bind", path, path]
    for path in plan.hidden:
        if any(inside(path, place) for place in EMPTY) and bounds.readable(path) is None:
            continue  # it is not there at all
        folder = os.path.isdir(path)
        made += ["--tmpfs", path, "--remount-ro", path] if folder else ["--ro-bind", "/dev/null", path]
    made += [*FIXED, *(() if bounds.policy.network == "on" else ("--unshare-net",))]
    made += ["--seccomp", str(filter_fd), "--info-fd", str(info_fd), "--chdir", cwd]
    return made
