"""llama.cpp in this process: each file of weights is loaded once, and shared by all who talk to it.

It knows no event loop. A request is a `Job` with a thread of its own, which waits there for its turn.
"""

import atexit
import contextlib
import os
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ..records.errors import ConfigError

SLOTS = 2
"""Requests that are answered at the same time; the others wait in order."""

CONTEXT = 4096
"""Tokens that each of them may have, prompt and answer together."""

BATCH = 64
"""Tokens of a prompt that are read at once. A cancel is noticed between two batches, and smaller ones cost nothing."""

CACHE = 256
"""MiB for the beginnings of prompts that wait for their conversation to go on."""

ENDING = 5.0  # seconds that the threads may take to end when the process does

Chunk = dict[str, Any]


class Job:
    """One request. In its thread `take` gets what comes, and at the very end `ended` what went wrong, or None."""

    def __init__(
        self, path: Path, body: Chunk, take: Callable[[Chunk], None], ended: Callable[[Exception | None], None]
    ) -> None:  # fmt: skip
        self.path = path
        self.body = body
        self.stopped = False
        self._take = take
        self._ended = ended
        self.thread = threading.Thread(target=self._run, name="tertulia-local", daemon=True)

    def start(self) -> None:
        _jobs.add(self)
        self.thread.start()

    def stop(self) -> None:
        """Nothing is taken any more; the thread ends at the next chunk, batch or turn."""
        self.stopped = True
        loaded = _loaded.get(self.path)
        if loaded is not None:
            loaded.wake()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            load(self.path).answer(self)
        except Exception as raised:  # noqa: BLE001 - handed to the one who waits, where it is raised
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop that waited for it is closed
            self._ended(error)
        _jobs.discard(self)

    def chunk(self, chunk: Chunk) -> bool:
        """Called by llama.cpp; whether to stop."""
        if not self.stopped:
            try:
                self._take(chunk)
            except RuntimeError:  # the loop that reads them is closed
                self.stopped = True
        return self.stopped


class Loaded:
    """A file of weights in memory."""

    def __init__(self, path: Path) -> None:
        self.server = _start(path)
        self._turn = threading.Condition()
        self._free = SLOTS
        self._waiting: deque[Job] = deque()

    def answer(self, job: Job) -> None:
        """Waits for a slot, and answers. llama.cpp would let it wait too, but there nothing could stop it."""
        if not self._admitted(job):
            return
        try:
            self.server.handle_chat_completions(job.body, job.chunk)
        finally:
            with self._turn:
                self._free += 1
                self._turn.notify_all()

    def wake(self) -> None:
        with self._turn:
            self._turn.notify_all()

    def _admitted(self, job: Job) -> bool:
        with self._turn:
            self._waiting.append(job)
            self._turn.wait_for(lambda: job.stopped or (self._free > 0 and self._waiting[0] is job))
            self._waiting.remove(job)
            if not job.stopped:
                self._free -= 1
            self._turn.notify_all()
        return not job.stopped


_loaded: dict[Path, Loaded] = {}
_loading = threading.Lock()
_jobs: set[Job] = set()


def load(path: Path) -> Loaded:
    """The weights in memory, loaded by the first who asks."""
    with _loading:
        if path not in _loaded:
            if sys.stderr.isatty():
                sys.stderr.write(f"loading {path.name} …\n")
            _loaded[path] = Loaded(path)
        return _loaded[path]


def unload() -> None:
    """Stop what runs and free the memory. What ends the process while a thread is inside llama.cpp would crash it."""
    jobs = list(_jobs)
    for job in jobs:
        job.stop()
    for job in jobs:
        job.thread.join(ENDING)
    with _loading:
        _loaded.clear()


atexit.register(unload)


def _start(path: Path) -> Any:
    library = import_module("xllamacpp")
    params = library.CommonParams()
    params.model.path = str(path)
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * CONTEXT  # the context is divided among the slots
    params.n_batch = params.n_ubatch = BATCH
    params.cpuparams.n_threads = max(1, (os.cpu_count() or 2) // 2)  # threads that wait for a busy core spin
    params.cache_ram_mib = CACHE
    params.endpoint_metrics = True  # see below
    params.warmup = False
    params.verbosity = -1  # not a word on stdout or stderr
    params.ui = False
    params.n_threads_http = 1
    # It opens an HTTP server that nothing switches off. On a socket in a private folder that is gone
    # right after, nobody can reach it.
    with tempfile.TemporaryDirectory(prefix="tertulia-") as folder:
        params.hostnames = [str(Path(folder, "unused.sock"))]
        try:
            server = library.Server(params)
        except RuntimeError as error:
            raise ConfigError(
                f"llama.cpp cannot load {path}", hint="give a whole .gguf file of a model it knows"
            ) from error
    server.handle_metrics()  # answered by its loop: a server that ends before that has begun never ends
    return server
