"""The sandbox of one Session: its files, its commands, what its turns changed.

Made with every Session and used by few, so what it needs is looked up, and imported, at the first use.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from ..records.errors import InvalidInput, SandboxError
from .policy import Bounds, Limits, Policy, bounds

if TYPE_CHECKING:
    from .changes import Changes
    from .files import Files
    from .jobs import Jobs
    from .process import Process

LONGEST = 100_000
"""Bytes of one argument; the kernel takes 128 KiB."""

CLOSING = 10.0

Choice = Literal["on", "off"] | Policy


class Sandbox:
    """`files` may be used from any thread, the rest in the Session's loop."""

    def __init__(self, choice: Choice, cwd: str) -> None:
        given: object = choice
        if not isinstance(given, Policy) and given not in ("on", "off"):
            raise InvalidInput(f"sandbox is {given!r}", hint="'on', 'off' or a Policy")
        self.cwd = cwd
        self._choice = choice
        self._store: tuple[str, ...] = ()
        self._lock = threading.Lock()
        self._files: Files | None = None
        self._bounds: Bounds | None = None
        self._plain: tuple[str, ...] | None = None
        self._changes: Changes | None = None
        self._jobs: Jobs | None = None
        self._running: set[Process] = set()
        self._closed = False
        if isinstance(choice, Policy):
            self.bounds()  # what was written by hand is refused at once

    @property
    def confined(self) -> bool:
        return self._choice != "off"

    def hide(self, store: tuple[str, ...]) -> None:
        """The Session's own log is not for its tools."""
        self._store, self._bounds = store, None

    def bounds(self) -> Bounds | None:
        """None where a person has switched the sandbox off."""
        if self._choice == "off":
            return None
        if self._bounds is None:
            policy = Policy() if self._choice == "on" else self._choice
            self._bounds = bounds(policy, os.path.realpath(self.cwd), self._store)
            if self._plain is None:
                from .repository import is_bare

                # Once, before any command: what one makes of a root is no reason to leave the next one alone with it.
                self._plain = tuple(root for root in self._bounds.roots if not is_bare(root))
        return self._bounds

    @property
    def files(self) -> "Files":
        from .files import Files

        with self._lock:
            if self._files is None:
                self._files = Files(self.bounds(), self.cwd)
            return self._files

    @property
    def changes(self) -> "Changes":
        from .changes import Changes

        with self._lock:
            if self._changes is None:
                self._changes = Changes()
            return self._changes

    @property
    def jobs(self) -> "Jobs":
        from .jobs import Jobs

        if self._jobs is None:
            self._jobs = Jobs()
        return self._jobs

    def start(self, command: Sequence[str], *, seconds: float | None = None) -> "Process":
        """Run a program in cwd. SandboxError where it cannot be confined: it never runs with less than was asked for.

        The process has to be awaited.
        """
        if self._closed:
            raise SandboxError("the session is closed")
        if max(len(os.fsencode(word)) for word in command) > LONGEST:
            raise InvalidInput("the command is too long", hint="write it to a file and run that")
        bounds = self.bounds()
        limits = Limits() if bounds is None else bounds.policy.limits
        if seconds is not None:
            limits = msgspec.structs.replace(limits, seconds=min(seconds, limits.seconds))
        process = self._free(command, limits) if bounds is None else self._confined(command, limits, bounds)
        self._running.add(process)
        process.at_end(lambda: self._running.discard(process))
        return process

    def _free(self, command: Sequence[str], limits: Limits) -> "Process":
        from .process import spawn

        return spawn(command, cwd=self.cwd, environment=dict(os.environ), limits=limits)

    def _confined(self, command: Sequence[str], limits: Limits, bounds: Bounds) -> "Process":
        from .launch import launch
        from .probe import probe
        from .protected import plan

        found = probe()
        if found.program is None or found.problem is not None:
            raise SandboxError(
                f"commands cannot be confined here: {found.problem}",
                hint="`tertulia doctor` says more; a person can open the session with sandbox='off'",
            )
        try:
            made = plan(bounds)
        except OSError as error:
            raise SandboxError(
                f"the command's protected paths cannot be held: {error.strerror}",
                hint="`ulimit -n` raises how many files may be open: each absent path that is protected takes one",
            ) from error
        try:
            process = launch(
                found.program, bounds, made, os.path.realpath(self.cwd), command, limits, self._plain or ()
            )
        except BaseException:
            made.release()
            raise
        process.at_end(made.release)
        return process

    async def aclose(self) -> None:
        """Stop everything that runs, background jobs among it, and wait until it is gone."""
        self._closed = True
        for process in tuple(self._running):
            process.stop("the session was closed")
        if self._running:
            await asyncio.wait([process.gone for process in self._running], timeout=CLOSING)
        if self._jobs is not None:
            await self._jobs.ended()
