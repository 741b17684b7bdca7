"""A sandbox in a folder of its own, and a short way to run something in it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tertulia.sandbox.output import Output
from tertulia.sandbox.policy import Policy
from tertulia.sandbox.sandbox import Choice, Sandbox


class Ran(NamedTuple):
    status: int
    stopped: str | None
    text: str


Run = Callable[..., Awaitable[Ran]]


async def run_in(sandbox: Sandbox, *command: str, seconds: float = 20.0) -> Ran:
    line = ["/bin/bash", "-c", *command] if len(command) == 1 else list(command)
    process, output = sandbox.start(line, seconds=seconds), Output()
    process.on_output = output.add
    async with asyncio.timeout(30):
        ended = await process.wait()
    return Ran(ended.status, ended.stopped, output.text)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home folder, with a key and a token of ours in it."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("the private key")
    (home / ".config" / "tertulia").mkdir(parents=True)
    (home / ".config" / "tertulia" / "token").write_text("the token")
    (home / ".bashrc").write_text("# as it was\n")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TERTULIA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def root(home: Path) -> Path:
    root = home / "project"
    root.mkdir()
    return root


@pytest.fixture
async def sandboxed(root: Path) -> AsyncIterator[Callable[..., Sandbox]]:
    made: list[Sandbox] = []

    def make(choice: Choice = "on", cwd: Path = root, **policy: object) -> Sandbox:
        made.append(Sandbox(Policy(**policy) if policy else choice, str(cwd)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for sandbox in made:
        async with asyncio.timeout(15):
            await sandbox.aclose()


@pytest.fixture
def run(sandboxed: Callable[..., Sandbox]) -> Run:
    """Runs a shell command, or a program with arguments, in a new sandbox. Keyword arguments are its policy's."""

    async def run(*command: str, cwd: Path | None = None, seconds: float = 20.0, **policy: object) -> Ran:
        place = {} if cwd is None else {"cwd": cwd}
        return await run_in(sandboxed(**place, **policy), *command, seconds=seconds)  # type: ignore[arg-type]

    return run


@pytest.fixture
def run_off(sandboxed: Callable[..., Sandbox]) -> Run:
    """The same with the sandbox switched off."""

    async def run(command: str, seconds: float = 20.0) -> Ran:
        return await run_in(sandboxed("off"), command, seconds=seconds)

    return run
