"""list, glob, grep."""

import os
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tertulia.records.errors import InvalidInput, NotFound, SandboxError
from tertulia.sandbox.files import Files
from tertulia.sandbox.policy import Policy, bounds
from tertulia.tools.builtin import search


@pytest.fixture
def tree(root: Path) -> Path:
    for path, text in {
        "a.py": "import os\nprint('hello')\n",
        "src/b.py": "def hello():\n    return 1\n\n\nHELLO = 2\n",
        "src/deep/c.txt": "nothing here\n",
        "build/out.py": "hello from the build\n",
        ".gitignore": "build/\n*.log\n!keep.log\n",
        "x.log": "hello\n",
        "keep.log": "hello\n",
        "src/.gitignore": "c.txt\n",
        ".git/config": "hello\n",
        ".hidden/d.py": "hello hidden\n",
        "node_modules/m.py": "hello module\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "blob.py").write_bytes(b"hello\0\1")
    return root


async def test_list_shows_folders_first_and_sizes(use: Any, tree: Path) -> None:
    (tree / "link").symlink_to("a.py")
    lines = (await use("list")).splitlines()
    assert lines[:3] == ["build/", "node_modules/", "src/"]
    assert "a.py (25 bytes)" in lines
    assert "link (link)" in lines
    assert ".gitignore (25 bytes)" not in lines
    assert ".hidden/" in (await use("list", hidden=True)).splitlines()
    assert await use("list", path="src/deep") == "c.txt (13 bytes)"


async def test_list_is_bounded_and_says_what_is_wrong(use: Any, root: Path) -> None:
    assert await use("list") == ". is empty"
    for n in range(520):
        (root / f"{n:03}").touch()
    assert (await use("list")).endswith("\n[20 more]")
    with pytest.raises(NotFound):
        await use("list", path="absent")
    with pytest.raises(InvalidInput):
        await use("list", path="000")
    with pytest.raises(SandboxError):
        await use("list", path="..")


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*.py", ".", {"a.py", "blob.py", "src/b.py", ".hidden/d.py"}),
        ("src/*.py", ".", {"src/b.py"}),
        ("**/b.*", ".", {"src/b.py"}),
        ("src/**", ".", {"src/b.py", "src/.gitignore"}),
        ("./a.py", ".", {"a.py"}),
        ("[ab].py", ".", {"a.py", "src/b.py"}),
        ("[!a].py", ".", {"src/b.py", ".hidden/d.py"}),
        ("*.{log,txt}", ".", {"keep.log"}),
        ("?.py", "src", {"src/b.py"}),
        ("*.txt", "src/deep", set()),
    ],
)
async def test_glob_finds_names_and_leaves_out_what_git_ignores(
    use: Any, tree: Path, pattern: str, path: str, found: set[str]
) -> None:
    said = await use("glob", pattern=pattern, path=path)
    assert set(said.splitlines()) == (found or {"no file matches"})


async def test_glob_shows_the_latest_first(use: Any, root: Path) -> None:
    for age, name in enumerate(("new", "older", "oldest")):
        (root / name).touch()
        os.utime(root / name, (1e9 - age, 1e9 - age))
    assert (await use("glob", pattern="*")).splitlines() == ["new", "older", "oldest"]
    with pytest.raises(InvalidInput):
        await use("glob", pattern="/")


async def test_grep_finds_lines(use: Any, tree: Path) -> None:
    lines = (await use("grep", pattern="hello")).splitlines()
    assert lines[:2] == [".hidden/d.py:1: hello hidden", "a.py:2: print('hello')"]
    assert lines[2:] == ["keep.log:1: hello", "src/b.py:1: def hello():"]
    assert await use("grep", pattern="^HELLO", path="src") == "src/b.py:5: HELLO = 2"
    assert len((await use("grep", pattern="hello", path="src", ignore_case=True)).splitlines()) == 2
    assert await use("grep", pattern="hello", include="*.log") == "keep.log:1: hello"
    assert await use("grep", pattern=r"return \d", path="src/b.py", around=1) == (
        "src/b.py:1- def hello():\nsrc/b.py:2:     return 1\nsrc/b.py:3- "
    )
    assert await use("grep", pattern="no such thing") == "no line matches"


async def test_grep_says_what_is_wrong_and_stops_in_time(
    use: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="no regular expression"):
        await use("grep", pattern="(")
    (root / "many").write_text("x\n" * 500)
    (root / "zz").write_text("x\n")
    lines = (await use("grep", pattern="x")).splitlines()
    assert len(lines) == search.MATCHES + 1
    assert "there may be more" in lines[-1]
    (root / "trap").write_text("a" * 40 + "!")
    monkeypatch.setattr(search, "SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(InvalidInput, match="too long"):
        await use("grep", pattern="^(a+)+$", path="trap")
    assert time.monotonic() - began < 3


async def test_links_are_not_followed_out(use: Any, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("hello")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside" / "f")
    assert await use("grep", pattern="hello") == "no line matches"
    assert await use("glob", pattern="f") == "no file matches"
    with pytest.raises(SandboxError):
        await use("grep", pattern="hello", path="folder")


@pytest.mark.parametrize("swaps_after", range(1, 7))
@pytest.mark.parametrize("tool", ["grep", "glob", "list"])
async def test_a_link_that_is_swapped_meanwhile_shows_nothing_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, swaps_after: int
) -> None:
    """`l` is a folder like any other when it is looked at, and the one with the key when it is opened."""
    for folder in ("private", "p/private"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "private" / "key").write_text("the key")
    (tmp_path / "l").symlink_to("p")
    files = Files(bounds(Policy(denied=("private",)), str(tmp_path)), str(tmp_path))
    located, looks = files.locate, 0

    def swapping(path: str, *, write: bool = False) -> Any:
        nonlocal looks
        place = located(path, write=write)
        looks += 1
        if looks == swaps_after:
            (tmp_path / "l").unlink()
            (tmp_path / "l").symlink_to(".")
        return place

    monkeypatch.setattr(files, "locate", swapping)
    context: Any = SimpleNamespace(sandbox=SimpleNamespace(files=files))
    try:
        if tool == "grep":
            said = search.grep("the", context, path="l")
        else:
            said = (
                search.glob("*", context, path="l")
                if tool == "glob"
                else search.list_folder(context, "l/private")
            )
    except (SandboxError, NotFound):
        return
    assert "key" not in said


async def test_no_pattern_of_a_folder_holds_the_search_up(use: Any, root: Path) -> None:
    (root / ("a" * 60)).touch()
    (root / ".gitignore").write_text("*a" * 40 + "b\n" + "**/" * 40 + "b\n")
    assert set((await use("glob", pattern="*a" * 40 + "*")).splitlines()) == {"a" * 60}
    assert await use("glob", pattern="*a" * 40 + "b") == "no file matches"
    assert await use("grep", pattern="x", include="*a" * 40 + "b") == "no line matches"


async def test_a_folder_without_end_is_given_up(
    use: Any, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SECONDS", -1.0)
    with pytest.raises(InvalidInput, match="too much to look through"):
        await use("glob", pattern="*")


async def test_what_git_ignores_takes_little_memory(use: Any, root: Path) -> None:
    """However many folders say it: what a walk has left is forgotten, and it keeps only small files for the next."""
    for n in range(8):
        (root / f"{n}").mkdir()
        (root / f"{n}" / ".gitignore").write_text(f"{n}*\n" + "*[ab]\n" * 10_000)
        (root / f"{n}" / "f.py").touch()
    tracemalloc.start()
    try:
        assert len((await use("glob", pattern="*.py")).splitlines()) == 8
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (kept < 1_000_000, most < 10_000_000) == (True, True), (kept, most)


async def test_a_gitignore_is_read_as_far_as_its_bounds(use: Any, root: Path) -> None:
    for name in ("first", "last"):
        (root / name).touch()
    rules = "first\n" + "# a comment is no rule\n" * 2000 + "x\n" * 1998 + "last\n"
    (root / ".gitignore").write_text(rules)
    assert await use("glob", pattern="*t") == "no file matches"
    (root / ".gitignore").write_text(rules.replace("last", "y\nlast"))
    assert await use("glob", pattern="*t") == "last"
    (root / ".gitignore").write_text("first\n" + " " * 64 * 1024)
    assert set((await use("glob", pattern="*t")).splitlines()) == {"first", "last"}
