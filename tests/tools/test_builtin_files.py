"""read, write, edit, and what a turn's changes look like afterwards."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import Conflict, InvalidInput, NotFound, SandboxError
from tertulia.records.parts import Data, Image
from tertulia.tools.builtin import default_tools
from tertulia.tools.schema import ArgumentError

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_the_built_in_tools_stand_in_a_fixed_order_and_those_that_act_ask() -> None:
    tools = default_tools()
    names = ["read", "write", "edit", "list", "glob", "grep", "shell", "job", "delegate", "fetch", "chart"]
    assert [tool.name for tool in tools] == names
    assert [tool.name for tool in tools if tool.ask] == ["write", "edit", "shell", "fetch"]
    assert [tool.name for tool in tools if not tool.enabled] == ["fetch"]
    assert [tool.command for tool in tools if tool.command] == ["command"]
    assert all(tool.short_description for tool in tools)
    assert "context" not in str([tool.parameters for tool in tools])


async def test_reading_shows_line_numbers_and_says_what_is_left(use: Any, root: Path) -> None:
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 8)))
    assert (await use("read", path="a.txt")).splitlines()[0] == "     1\tline 1"
    shown = await use("read", path="a.txt", offset=3, limit=2)
    assert shown == "     3\tline 3\n     4\tline 4\n[3 more lines; go on with offset=5]"
    assert await use("read", path=str(root / "a.txt"), offset=7) == "     7\tline 7"


async def test_reading_what_cannot_be_read(use: Any, root: Path) -> None:
    (root / "binary").write_bytes(b"\x7fELF\0\1\2")
    (root / "latin").write_bytes("señor".encode("latin-1"))
    (root / "empty").touch()
    (root / "wide").write_text("x" * 5000)
    with (root / "huge").open("wb") as file:
        file.truncate(20 * 1024 * 1024)
    assert await use("read", path="empty") == "empty is empty"
    assert "[… 3000 more characters; go on with column=2001]" in await use("read", path="wide")
    for path, text in (("binary", "binary"), ("latin", "not UTF-8"), (".", "a folder"), ("huge", "at most")):
        with pytest.raises(InvalidInput, match=text):
            await use("read", path=path)
    with pytest.raises(NotFound):
        await use("read", path="absent")
    with pytest.raises(SandboxError):
        await use("read", path="/etc/passwd")
    for bad in ({"offset": 0}, {"limit": 0}, {"offset": 99}):
        with pytest.raises(InvalidInput):
            await use("read", path="wide", **bad)
    with pytest.raises(ArgumentError, match="offset"):
        await use("read", path="wide", offset="first")


async def test_an_image_is_shown_as_one(use: Any, root: Path) -> None:
    (root / "dot.png").write_bytes(PIXEL)
    assert await use("read", path="dot.png") == Image(media="image/png", data=PIXEL, name="dot.png")


async def test_writing_makes_folders_and_comes_with_a_diff(use: Any, root: Path) -> None:
    said, diff = await use("write", path="new/a.txt", content="one\ntwo\n")
    assert said.text == "new/a.txt created"
    assert diff == Data(name="diff", value="--- /dev/null\n+++ b/new/a.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n")
    said, diff = await use("write", path="new/a.txt", content="one\nthree")
    assert said.text == "new/a.txt changed"
    assert diff.value.endswith(" one\n-two\n+three\n\\ No newline at end of file\n")
    said, diff = await use("write", path="new/a.txt", content="one\nthree")
    assert (said.text, diff.value) == ("new/a.txt unchanged", "")
    assert (root / "new" / "a.txt").read_text() == "one\nthree"


async def test_an_edit_needs_its_text_exactly_once(use: Any, root: Path) -> None:
    (root / "a.py").write_text("x = 1\ny = 1\n")
    for old, text in (("z = 1", "does not stand"), ("= 1", "2 times"), ("", "empty")):
        with pytest.raises(InvalidInput, match=text):
            await use("edit", path="a.py", old=old, new="= 2")
    with pytest.raises(InvalidInput, match="the same"):
        await use("edit", path="a.py", old="x", new="x")
    with pytest.raises(NotFound):
        await use("edit", path="b.py", old="x", new="y")
    _, diff = await use("edit", path="a.py", old="x = 1", new="x = 2")
    assert "-x = 1\n+x = 2\n y = 1\n" in diff.value
    await use("edit", path="a.py", old=" =", new=" :=", replace_all=True)
    assert (root / "a.py").read_text() == "x := 2\ny := 1\n"


async def test_an_edit_keeps_the_line_ends_of_the_file(use: Any, root: Path) -> None:
    (root / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await use("edit", path="dos.txt", old="one\ntwo", new="1\n2")
    assert (root / "dos.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


async def test_a_change_by_someone_else_in_between_is_not_overwritten(
    use: Any, context: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a.txt").write_text("one")
    files = context.sandbox.files
    read = files.read

    def reading(path: str, *limit: int) -> bytes:
        data: bytes = read(path, *limit)
        (root / "a.txt").write_text("someone else's")
        return data

    monkeypatch.setattr(files, "read", reading)
    with pytest.raises(Conflict, match="someone else"):
        await use("edit", path="a.txt", old="one", new="two")
    assert (root / "a.txt").read_text() == "someone else's"
