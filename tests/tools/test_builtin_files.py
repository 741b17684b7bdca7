"""read, write, edit, and what a turn's changes look like afterwards."""

import base64
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import Conflict, InvalidInput, NotFound, SandboxError
from tertulia.records.parts import Data, Image
from tertulia.sandbox import changes
from tertulia.sandbox.changes import unified
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


async def test_a_diff_is_made_when_others_may_write_again(
    use: Any, context: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    def looking(*_: Any) -> str:
        held.append(context.sandbox.changes.lock.locked())
        return ""

    monkeypatch.setattr("tertulia.tools.builtin.files.unified", looking)
    await use("write", path="a.txt", content="one")
    await use("edit", path="a.txt", old="one", new="two")
    assert held == [False, False]


def test_a_diff_has_lines_that_end_as_in_every_diff() -> None:
    before = "a\fb\n\x1c\u2028c\r\n"
    diff = unified("a", before.encode(), before.replace("b", "B").encode())
    assert diff == "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n-a\fb\n+a\fB\n \x1c\u2028c\r\n"


@pytest.mark.timeout(30)  # less than a second; comparing all lines with all takes minutes
def test_a_diff_of_many_lines_that_recur_takes_no_time() -> None:
    some = random.Random(1)
    before, other = ([f"{some.randrange(200)}\n" for _ in range(90_000)] for _ in range(2))
    after = list(before)
    for place in (5, 30_000, 30_002, 89_990):
        after[place] = "new\n"
    for new in (after, other):
        diff = unified("a", "".join(before).encode(), "".join(new).encode())
        assert patched(before, diff) == new
        if new is other:
            assert diff.count("\n-") > 89_990  # not worth the time
    few = unified("a", "".join(before).encode(), "".join(after).encode())
    assert (few.count("\n@@ "), few.count("\n+new")) == (3, 4)


@pytest.mark.parametrize("steps", [0, 40, changes.STEPS])
def test_a_diff_is_right_however_much_was_compared(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "STEPS", steps)
    some = random.Random(steps)
    for _ in range(300):
        kinds = some.choice((2, 5, 40))
        before = [f"{some.randrange(kinds)}\n" for _ in range(some.randrange(30))]
        after = list(before)
        for _ in range(some.randrange(5)):
            place = some.randrange(len(after) + 1)
            after[place : place + some.randrange(3)] = [f"{some.randrange(kinds)}\n"] * some.randrange(3)
        for each in (before, after):
            if each and some.random() < 0.3:
                each[-1] = each[-1].rstrip()
        diff = unified("a", "".join(before).encode(), "".join(after).encode())
        assert patched(before, diff) == after


def patched(before: list[str], diff: str) -> list[str]:
    """What the diff makes of these lines. It fails where the diff does not fit them exactly."""
    lines = diff.replace("\n\\ No newline at end of file\n", "\0\n").split("\n")[2:-1]
    after: list[str] = []
    at = left = came = 0
    for line in lines:
        sign, text = line[0], line[1:-1] if line.endswith("\0") else line[1:] + "\n"
        if sign == "@":
            assert left == came == 0
            found = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line)
            assert found
            start, left, to, came = (1 if each is None else int(each) for each in found.groups())
            first = start - (left > 0)
            after, at = after + before[at:first], first
            assert len(after) == to - (came > 0)
            continue
        if sign in " -":
            assert before[at] == text
            at, left = at + 1, left - 1
        if sign in " +":
            after.append(text)
            came -= 1
    return after + before[at:]


def test_too_many_changed_lines_are_counted_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "LINES", 40)
    before = [f"{n}\n" for n in range(1000)]
    near, far = list(before), list(before)
    near[500] = near[504] = far[1] = far[900] = "new\n"
    content = "".join(before).encode()
    assert unified("a", content, "".join(near).encode()).count("+new") == 2
    said = "File a changed, in too many lines to be shown: it had 1,000, and has 1,001\n"
    assert unified("a", content, "".join([*far, "more\n"]).encode()) == said
