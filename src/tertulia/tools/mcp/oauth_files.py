"""Who we are signed in as, at each server: one private file for each, or memory.

One file for each server, so that two that are signed in to at the same time never write over each other, and a damaged
one costs one signing in. Its name and its content name the address: what one address gave is never read for another.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any

import msgspec

from ...records.errors import ConfigError
from .config import ServerConfig

LARGEST = 1024 * 1024
OTHERS = 0o077


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of one sign-in. `server` and `resource` are what they say of themselves, as the SDK read it."""

    url: str
    tokens: dict[str, Any] = {}
    expires_at: float | None = None
    client: dict[str, Any] = {}
    issuer: str = ""
    server: dict[str, Any] = {}
    resource: dict[str, Any] = {}

    def __repr__(self) -> str:  # nothing of it belongs into a log
        return "Held()"


class Damaged(ConfigError):
    """What is stored cannot be used; signing in again replaces it."""


class Vault:
    """`asked`: from what time on a person may be asked to sign in again. Without a folder it ends with this object."""

    def __init__(self, folder: Path | None = None) -> None:
        self.asked: dict[ServerConfig, float] = {}
        self._folder = folder
        self._memory: dict[str, bytes] = {}

    def read(self, server: ServerConfig) -> Held | None:
        name = _name(server)
        data = self._memory.get(name) if self._folder is None else _contents(self._folder / name, server)
        if data is None:
            return None
        try:
            held = msgspec.json.decode(data, type=Held)
        except msgspec.DecodeError:  # it would quote what it read
            raise damaged(server) from None
        if held.url != server.url:
            raise damaged(server)
        return held

    def write(self, server: ServerConfig, held: Held) -> None:
        """In one step: who reads meanwhile gets all of the old or all of the new."""
        data = msgspec.json.encode(held)
        if self._folder is None:
            self._memory[_name(server)] = data
            return
        self.prepare()
        fresh = self._folder / f".{secrets.token_hex(8)}"
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                os.fchmod(out.fileno(), 0o600)
                out.write(data)
            fresh.replace(self._folder / _name(server))
        except OSError as error:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                fresh.unlink(missing_ok=True)
            raise ConfigError(
                f"the sign-in to {server.name} cannot be kept: {error.strerror}", hint=str(self._folder)
            ) from error

    def prepare(self) -> None:
        """The folder is there and nobody else can put anything into it."""
        if self._folder is None:
            return
        try:
            if not self._folder.is_dir():
                self._folder.parent.mkdir(parents=True, exist_ok=True)
                self._folder.mkdir(exist_ok=True)
                self._folder.chmod(0o700)
            mode = self._folder.stat().st_mode
        except OSError as error:
            raise ConfigError(
                f"{self._folder} cannot hold sign-ins: {error.strerror}", hint="give another folder"
            ) from error
        if mode & 0o022:
            raise ConfigError(
                f"others can write to {self._folder}, where sign-ins are kept",
                hint=f"chmod 700 {self._folder}",
            )

    def signed_in(self, server: ServerConfig) -> bool:
        """Whether a token is stored; it may have run out, or be refused by now."""
        held = self.read(server)
        return held is not None and bool(held.tokens)

    def forget(self, name: str) -> int:
        """Drop what is kept for servers of this name, whatever their address was; how many there were."""
        if self._folder is None or not self._folder.is_dir():
            return 0
        mine = re.compile(re.escape(name) + r"-[0-9a-f]{16}\.json")
        found = [each for each in self._folder.iterdir() if mine.fullmatch(each.name)]
        for each in found:
            each.unlink(missing_ok=True)
        return len(found)


def damaged(server: ServerConfig) -> Damaged:
    return Damaged(
        f"what is kept of the sign-in to {server.name} is damaged",
        hint=f"sign in again: `tertulia mcp login {server.name}`",
    )


def _name(server: ServerConfig) -> str:
    return f"{server.name}-{hashlib.sha256(f'{server.name} {server.url}'.encode()).hexdigest()[:16]}.json"


def _contents(file: Path, server: ServerConfig) -> bytes | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise _refused(file, server, why) from error
    with os.fdopen(descriptor, "rb") as held:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(file, server, "is no file")
        if status.st_mode & OTHERS:
            try:
                os.fchmod(descriptor, 0o600)
            except OSError as error:
                raise _refused(file, server, "can be read by others") from error
        data = held.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise damaged(server)
    return data


def _refused(file: Path, server: ServerConfig, why: str) -> ConfigError:
    return ConfigError(f"the stored sign-in to {server.name} {why}", hint=f"look at {file}, and remove it")
