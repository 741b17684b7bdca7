"""A command that runs: its output as it comes, its end, and the end of everything it started."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from ..records.errors import SandboxError
from . import limits as watching
from .cgroup import Cgroup
from .policy import Limits
from .proxy import Proxy
from .repository import is_bare, unmake

CHUNK = 65536
CHILD = re.compile(rb'"child-pid": (\d+)\D')
AFTER = 1.0
"""Seconds that the output may stay open when the command is gone: unconfined, something it started may hold it."""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is the exit status, negative for a signal; `stopped` says why we ended it, when we did.

    `refused`: the hosts that it asked for and may not reach.
    """

    status: int
    stopped: str | None = None
    refused: tuple[str, ...] = ()


class Process:
    """Belongs to the loop it was started in. `wait` has to be awaited; then everything of it is gone.

    `info`: where bubblewrap says which process is the first of its namespace; None for an unconfined command.
    """

    def __init__(
        self, started: "subprocess.Popen[bytes]", output: int, info: int | None, limits: Limits
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._started = started
        self._output = output
        self._info = info
        self._told = b""  # what came by `info`
        self._first = 0  # the first process of the namespace
        self._limits = limits
        self._watched: tuple[Sequence[str], Sequence[str]] | None = None
        self._gate: int | None = None
        self._absent: set[str] = set()  # what it waits for at the gate
        self._group: Cgroup | None = None
        self._opening: asyncio.Task[None] | None = None
        self._proxy: Proxy | None = None
        self._stopped: str | None = None
        self._cancelled: asyncio.CancelledError | None = None
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._namespace: asyncio.Future[None] = self._loop.create_future()
        self._drained: asyncio.Future[None] = self._loop.create_future()
        self._pidfds = [os.pidfd_open(started.pid)]
        self.gone: asyncio.Future[None] = self._loop.create_future()  # with all that it started
        self._done: list[Callable[[], None]] = []
        self.on_output: Callable[[bytes], None] = lambda data: None
        self._loop.add_reader(self._pidfds[0], self._exit)
        self._loop.add_reader(output, self._read)
        if info is None:
            self._namespace.set_result(None)
        else:
            self._loop.add_reader(info, self._informed)
        self._timer = self._loop.call_later(
            limits.seconds, self.stop, f"it ran longer than {limits.seconds:g} s"
        )

    @property
    def ended(self) -> bool:
        return self._exited.done()

    def hold(self, roots: Sequence[str], plain: Sequence[str], group: Cgroup | None) -> None:
        """To its limits; with a group the kernel does it too. `plain` roots become no repositories."""
        self._watched, self._group = (tuple(roots), tuple(plain)), group
        for root in plain:
            self.at_end(partial(self._cleared, root))

    def let(self, gate: int, proxy: Proxy | None) -> None:
        """Through the gate, when it has said there that it is ready; `proxy`, its only way out, is made meanwhile."""
        self._gate, self._proxy = gate, proxy
        self._absent = {"shell"} if proxy is None else {"shell", "proxy"}
        self._loop.add_reader(gate, self._spoke, gate)

    def at_end(self, call: Callable[[], None]) -> None:
        self._done.append(call)

    def stop(self, why: str) -> None:
        """Kill it with all that it started. Harmless when it has ended."""
        if self._exited.done():
            return
        self._stopped = self._stopped or why
        own, *first = self._pidfds
        for pidfd in first:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.setpriority(
                    os.PRIO_PROCESS, self._first, -20
                )  # where we may: it has to get its turn to end
        _kill_tree(self._started.pid)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(own, signal.SIGKILL)

    async def wait(self) -> Exit:
        """Until it and all that it started is gone. When this is cancelled, it is killed first."""
        watcher = None
        if self._watched is not None:
            watcher = asyncio.create_task(self._watch(*self._watched), name="tertulia-watch")
        try:
            await self._surely(self._exited, self._namespace)
            if self._cancelled is None:
                await self._surely(self._drained, timeout=AFTER)
            for task in (watcher, self._opening):
                if task is not None:
                    task.cancel()
                    await self._surely(task)
            if self._proxy is not None:
                await self._surely(asyncio.create_task(self._proxy.aclose(), name="tertulia-proxy"))
        finally:
            self._free()
            if self._group is not None:
                await self._surely(asyncio.create_task(self._group.remove(), name="tertulia-group"))
        if self._cancelled is not None:
            raise self._cancelled
        refused = tuple(self._proxy.refused) if self._proxy is not None else ()
        return Exit(status=self._started.returncode, stopped=self._stopped, refused=refused)

    async def _surely(self, *futures: "asyncio.Future[None]", timeout: float | None = None) -> None:
        """Until these are done, a moment, whoever cancels meanwhile, and how often: that is told at the end."""
        until = None if timeout is None else self._loop.time() + timeout
        while not all(future.done() for future in futures):
            rest = None if until is None else until - self._loop.time()
            if rest is not None and rest <= 0:
                return
            try:
                await asyncio.wait(futures, timeout=rest)
            except asyncio.CancelledError as error:
                self._cancelled = self._cancelled or error
                self.stop("it was cancelled")

    async def _watch(self, roots: Sequence[str], plain: Sequence[str]) -> None:
        self.stop(await watching.watch(self._started.pid, self._limits, roots, plain))

    def _read(self) -> None:
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return
        if data:
            self.on_output(data)
        else:
            self._loop.remove_reader(self._output)
            _settle(self._drained)

    def _informed(self) -> None:
        """The first process of the namespace is the last of it to end: its end is everyone's."""
        assert self._info is not None
        try:
            data = os.read(self._info, CHUNK)
        except BlockingIOError:
            data = b""
        self._told += data
        found = CHILD.search(self._told)
        if found is None and data and self._started.returncode is None:
            return  # bubblewrap writes it in pieces
        self._loop.remove_reader(self._info)
        try:
            if found is None:
                raise ProcessLookupError
            self._first = int(found[1])
            pidfd = os.pidfd_open(self._first)
        except OSError:  # it came to none, or that has ended
            _settle(self._namespace)
            return
        self._pidfds.append(pidfd)
        self._loop.add_reader(pidfd, self._namespace_gone, pidfd)
        if self._proxy is not None:
            self._opening = self._loop.create_task(self._ready(self._proxy), name="tertulia-proxy")

    async def _ready(self, proxy: Proxy) -> None:
        try:
            await proxy.start(self._first)
        except (OSError, SandboxError) as error:
            self.stop(f"its way to the network could not be made: {error}")
            return
        self._arrived("proxy")

    def _cleared(self, root: str) -> None:
        """Also what it made in its last moment."""
        if is_bare(root):
            unmake(root)
            self._stopped = self._stopped or watching.BARE.format(root)

    def _spoke(self, gate: int) -> None:
        """The kernel ends it with us from now on; before, it would have begun without us."""
        self._loop.remove_reader(gate)
        try:
            said = os.read(gate, 1)
        except ConnectionError:
            said = b""
        if said:  # otherwise it has ended
            self._arrived("shell")

    def _arrived(self, what: str) -> None:
        self._absent.discard(what)
        if self._gate is None or self._absent:
            return
        try:
            os.write(self._gate, b"\n")
        except BrokenPipeError:
            return  # it was stopped before it began
        finally:
            self._shut()

    def _shut(self) -> None:
        """Nothing passes the gate any more."""
        gate, self._gate = self._gate, None
        if gate is not None:
            self._loop.remove_reader(gate)
            os.close(gate)

    def _namespace_gone(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        _settle(self._namespace)

    def _exit(self) -> None:
        self._loop.remove_reader(self._pidfds[0])
        self._started.wait()
        if self._info is None:
            with contextlib.suppress(OSError):  # what it left behind in its group
                os.killpg(self._started.pid, signal.SIGKILL)
        elif len(self._pidfds) == 1 and not self._namespace.done():
            self._informed()
        _settle(self._exited)

    def _free(self) -> None:
        self._timer.cancel()
        self._shut()
        for descriptor in (self._output, *self._pidfds, *(() if self._info is None else (self._info,))):
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        calls, self._done = self._done, []
        for call in calls:
            call()
        _settle(self.gone)


def spawn(
    command: Sequence[str], *, cwd: str, environment: dict[str, str], limits: Limits,
    pass_fds: Sequence[int] = (), info: int | None = None, stdin: int = subprocess.DEVNULL,
) -> Process:  # fmt: skip
    """From the loop's own thread: bubblewrap ends when the thread that started it does. Both outputs are one."""
    output, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(end, True)
    try:
        started = subprocess.Popen(
            command, cwd=cwd, env=environment, stdin=stdin, stdout=end, stderr=end, pass_fds=pass_fds,
            start_new_session=info is None,
        )  # fmt: skip
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(end)
    return Process(started, output, info, limits)


def _kill_tree(pid: int) -> None:
    """All that can be found. The kernel kills a namespace too, but its first process has to get its turn for that."""
    for each in watching.tree(pid, 100_000)[1:]:
        with contextlib.suppress(OSError):
            os.kill(each, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
