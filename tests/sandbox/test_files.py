"""Files as tools see them: what is read and written, and what is not, whatever a path says."""

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tertulia.records.errors import InvalidInput, NotFound, SandboxError
from tertulia.sandbox import beneath
from tertulia.sandbox.files import Files
from tertulia.sandbox.sandbox import Sandbox
from tertulia.sandbox.walk import walk


@pytest.fixture(params=["openat2", "step by step"])
def files(
    request: pytest.FixtureRequest, sandboxed: Callable[..., Sandbox], monkeypatch: pytest.MonkeyPatch
) -> Files:
    if request.param == "step by step":
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    elif not beneath.has_openat2():
        pytest.skip("this kernel has no openat2")
    return sandboxed().files


@pytest.fixture
def outside(home: Path) -> Path:
    folder = home / "outside"
    folder.mkdir()
    (folder / "secret").write_text("the secret")
    return folder


def refused(files: Files, path: str) -> None:
    with pytest.raises(SandboxError):
        files.read(path)
    with pytest.raises(SandboxError):
        files.write(path, b"x")


def test_paths_that_lead_out_are_refused(files: Files, root: Path, outside: Path) -> None:
    (root / "sub").mkdir()
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "dangling").symlink_to(outside / "new")
    (root / "up").symlink_to("../outside")
    for path in (
        "../outside/secret", "sub/../../outside/secret", str(outside / "secret"), "link/secret", "file", "up/secret",
        "sub/../link/secret", "~/outside/secret", "/proc/self/root" + str(outside / "secret"), "/etc/passwd",
    ):  # fmt: skip
        refused(files, path)
    with pytest.raises(SandboxError):
        files.write("dangling", b"x")
    with pytest.raises(SandboxError):
        files.remove("link/secret")
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "the secret"


def test_links_that_stay_inside_are_followed(files: Files, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "absolute").symlink_to(root / "sub")
    (root / "new").symlink_to("sub/made")
    files.write("absolute/a", b"1")
    files.write("new", b"2")
    assert (files.read("sub/../sub/a"), files.read("sub/made")) == (b"1", b"2")
    assert (root / "new").is_symlink()


def test_keys_are_not_read_through_a_root_that_holds_them(
    home: Path, sandboxed: Callable[..., Sandbox]
) -> None:
    files = sandboxed(cwd=home).files
    for path in (".ssh/id_ed25519", ".config/tertulia/token", ".ssh/new", ".aws/credentials"):
        refused(files, path)
    (home / "key").symlink_to(".ssh/id_ed25519")
    refused(files, "key")
    with files.folder(".") as (folder, top):
        found = {entry.path.split("/")[0] for entry in walk(files, folder, top, lambda *_: True)}
    assert found == {".bashrc"}


def test_a_swap_between_looking_and_opening_does_not_escape(files: Files, root: Path, outside: Path) -> None:
    """A folder that is turned into a link and back, all the time, while it is read and written through."""
    (root / "a").mkdir()
    (root / "a" / "secret").write_text("harmless")
    (root / "out").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        exchange = ctypes.CDLL(None).renameat2
        while not stop.is_set():
            assert exchange(-100, os.fsencode(root / "a"), -100, os.fsencode(root / "out"), 2) == 0

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    try:
        for _ in range(300):
            try:
                seen.add(files.read("a/secret"))
                files.write("a/made", b"x")
            except (SandboxError, NotFound, InvalidInput):
                continue
    finally:
        stop.set()
        swapping.join(10)
    assert seen <= {b"harmless"}
    assert os.listdir(outside) == ["secret"]


def test_a_link_put_in_the_way_at_the_last_moment_is_seen(
    files: Files, root: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").mkdir()
    (root / "a" / "secret").write_text("harmless")
    located = files.locate

    def swapping(path: str, *, write: bool = False) -> object:
        place = located(path, write=write)
        if not (root / "a").is_symlink():
            os.rename(root / "a", root / "b")
            (root / "a").symlink_to(outside)
        return place

    monkeypatch.setattr(files, "locate", swapping)
    with pytest.raises(SandboxError):
        files.read("a/secret")


def test_loops_of_links_end(files: Files, root: Path) -> None:
    (root / "x").symlink_to("y")
    (root / "y").symlink_to("x")
    with pytest.raises((SandboxError, InvalidInput, NotFound)):
        files.read("x")


def test_a_write_replaces_all_or_nothing(files: Files, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write("a/b/c.txt", b"first")
    os.chmod(root / "a/b/c.txt", 0o750)
    before = os.stat(root / "a/b/c.txt").st_ino
    files.write("a/b/c.txt", b"second")
    found = os.stat(root / "a/b/c.txt")
    assert (files.read("a/b/c.txt"), stat.S_IMODE(found.st_mode)) == (b"second", 0o750)
    assert found.st_ino != before

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(InvalidInput, match="No space left"):
        files.write("a/b/c.txt", b"third")
    assert files.read("a/b/c.txt") == b"second"
    assert os.listdir(root / "a/b") == ["c.txt"]


def test_what_is_no_file_is_said_so(files: Files, root: Path) -> None:
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    (root / "text").write_text("x")
    with pytest.raises(InvalidInput, match="is a folder"):
        files.read("folder")
    with pytest.raises(InvalidInput, match="folder"):
        files.write("folder", b"x")
    with pytest.raises(InvalidInput, match="not a regular file"):
        files.read("pipe")
    with pytest.raises(InvalidInput, match="not a regular file"):
        files.write("pipe", b"x")
    with pytest.raises(InvalidInput):
        files.write("text/below", b"x")
    with pytest.raises(NotFound):
        files.read("absent")
    with pytest.raises(InvalidInput, match="at most 0"):
        files.read("text", 0)
    for path in ("", "a\0b"):
        with pytest.raises(InvalidInput, match="no path"):
            files.read(path)


def test_folders_to_read_are_not_written(sandboxed: Callable[..., Sandbox], outside: Path) -> None:
    files = sandboxed(read_only=(str(outside),)).files
    assert files.read(str(outside / "secret")) == b"the secret"
    with pytest.raises(SandboxError, match="read only"):
        files.write(str(outside / "secret"), b"x")


def test_switched_off_every_path_may_be_used(sandboxed: Callable[..., Sandbox], outside: Path) -> None:
    files = sandboxed("off").files
    assert files.read("../outside/secret") == b"the secret"
    files.write(str(outside / "new"), b"x")
    assert (outside / "new").read_bytes() == b"x"
