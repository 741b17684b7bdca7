"""Stands between us and one stdio server, so that nothing of the server outlives us, whatever kills us.

Run as a script of its own (`python -I -S supervisor.py LIFELINE OWNER COMMAND…`), with the standard library only. The
server has our pipes as its own; this process only watches. It ends everything when LIFELINE, a pipe that we alone
hold, closes, when the process OWNER ends, or when the server does. The server runs in a PID namespace, where the
kernel itself kills all that is left; where none can be had, orphans fall to this process, which kills them; where it is
not Linux, the server's process group is killed.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

TERM_GRACE = 0.5  # seconds between SIGTERM and SIGKILL
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
NOT_FOUND = 127

libc = ctypes.CDLL(None, use_errno=True)
LINUX = sys.platform == "linux"
LOOK = 0.2  # seconds between two looks at processes, where nothing tells of their end


def isolate() -> bool:
    """A PID namespace for the children from now on; without privileges, one in a user namespace."""
    if not LINUX:
        return False
    if libc.unshare(CLONE_NEWPID | CLONE_NEWNS) == 0:
        return True
    user, group = os.getuid(), os.getgid()
    if user == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0:
        return False
    try:
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    except OSError:
        return False
    return True


def own_proc() -> None:
    """/proc of the namespace's own, so that a server finds itself there. Where that is refused, it sees the host's."""
    libc.mount(None, b"/", None, MS_REC | MS_SLAVE, None)
    libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def execute(command: list[str]) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_FOUND)


def first_process(command: list[str]) -> NoReturn:
    """Process 1 of the namespace: starts the server, buries who dies, and takes all with it at the server's end."""
    own_proc()
    server = os.fork()
    if server == 0:
        execute(command)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(server, signal.SIGTERM))
    quiet()
    while True:
        pid, status = os.wait()
        if pid == server:
            os._exit(exit_code(status))


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def quiet() -> None:
    """Let go of the server's pipes: who reads them sees their end when the server is gone, not when we are."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def start(command: list[str]) -> int:
    parent, apart = os.getpid(), isolate()
    child = os.fork()
    if child == 0:
        if LINUX:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if apart:
            first_process(command)
        if os.getppid() != parent:  # it died before it could be told of
            os._exit(1)
        os.setsid()
        execute(command)
    return child


def watch(lifeline: int, owner: int, child: int) -> None:
    """Until the lifeline closes, or the owner or the child ends."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP)
    if not hasattr(os, "pidfd_open"):
        while not poll.poll(LOOK * 1000) and os.getppid() == owner and not waitable(child):
            pass
        return
    poll.register(os.pidfd_open(child), select.POLLIN)
    try:
        poll.register(os.pidfd_open(owner), select.POLLIN)
    except OSError:
        return  # it has gone already
    if os.getppid() == owner:
        poll.poll()


def waitable(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def finish(child: int) -> int:
    """End the child, then whatever it left behind."""
    code = ended(child, 0.0)
    if code is None:
        os.kill(child, signal.SIGTERM)
        code = ended(child, TERM_GRACE)
    if code is None:
        os.kill(child, signal.SIGKILL)
        code = exit_code(os.waitpid(child, 0)[1])
    if not LINUX:  # there, what it left behind has become ours
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    bury()
    return code


def ended(child: int, patience: float) -> int | None:
    until = time.monotonic() + patience
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return exit_code(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.01)


def bury() -> None:
    """Kill orphans until there are none: those of a dead one become ours and are found next."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.002)


def children() -> list[int]:
    """By /proc, since `children` files are not in every kernel."""
    own, found = str(os.getpid()), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                found.append(int(stat.parent.name))
        except (OSError, IndexError):
            continue  # it has ended meanwhile
    return found


def main(arguments: list[str]) -> NoReturn:
    lifeline, owner, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    os.set_inheritable(lifeline, False)
    if LINUX:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is ours to answer
    child = start(command)
    quiet()
    watch(lifeline, owner, child)
    os._exit(finish(child))


if __name__ == "__main__":
    main(sys.argv[1:])
