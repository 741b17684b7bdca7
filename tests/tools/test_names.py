"""Patterns for names: what they mean, and that none of them takes long."""

import fnmatch
import random
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertulia.records.errors import InvalidInput
from tertulia.sandbox.files import Files
from tertulia.tools.builtin import names, search
from tertulia.tools.builtin.names import named

WORDS = st.text("ab-]", min_size=1, max_size=5)
# Of a range that is none (`[b-a]`) fnmatch makes things of its own.
LETTERS = st.sampled_from(["a", "b", "*", "?", "[", "]", "!", "[a-b]", "[!a-b]", "[a-]"])
PARTS = st.one_of(st.just("**"), st.lists(LETTERS, min_size=1, max_size=5).map("".join)).map(
    lambda part: "**" if part.strip("*") == "" and len(part) > 1 else part  # more stars mean the same
)


@given(st.lists(LETTERS, min_size=1, max_size=8).map("".join), WORDS)
def test_a_name_fits_as_in_the_shell(pattern: str, name: str) -> None:
    assert named(pattern)(name) == fnmatch.fnmatchcase(name, pattern)
    assert named(pattern)(f"x/y/{name}") == fnmatch.fnmatchcase(name, pattern)


def fits(parts: list[str], path: list[str]) -> bool:
    """The same, by trying everything."""
    if not parts:
        return not path
    if parts[0] == "**":
        return any(fits(parts[1:] or ["*"], path[n:]) for n in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], parts[0]) and fits(parts[1:], path[1:])


@given(st.lists(PARTS, min_size=2, max_size=5), st.lists(WORDS, min_size=1, max_size=5))
def test_a_path_fits_folder_by_folder(parts: list[str], path: list[str]) -> None:
    if parts[-1] == "**":
        parts = [*parts, "*"]
    assert named("/".join(parts))("/".join(path)) == fits(parts, path)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.{c,h}", ["a.c", "d/a.h"], ["a.cc", "a."]),
        ("{src,lib}/**/*.py", ["src/a.py", "lib/x/y/a.py"], ["a.py", "src/a.c"]),
        ("a{", ["a{"], ["a"]),
        ("[[:digit:]]*", ["1a"], ["a1"]),
        ("x/[!a]", ["x/b"], ["x/a", "x//"]),
    ],
)
def test_braces_and_brackets(pattern: str, yes: list[str], no: list[str]) -> None:
    fit = named(pattern)
    assert [path for path in (*yes, *no) if fit(path)] == yes


def test_what_is_too_much_is_refused() -> None:
    for pattern in ("{a,b}" * 20, "x" * 2000, "", "/"):
        with pytest.raises(InvalidInput):
            named(pattern)


def lines_run(pattern: str, path: str) -> int:
    """How many lines of the matcher one match takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != names.__file__:
            return None
        count += event == "line"
        return trace

    fit = named(pattern)
    fit(path)  # what it learns of letters, it learns once
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fit(path)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    "pattern", ["*a" * 30 + "b", "**/" * 100 + "x*y", "*" * 500 + "b", "?*" * 100 + "/b"]
)
def test_a_wicked_pattern_takes_one_pass(pattern: str) -> None:
    path = "/".join(["a" * 60] * 10)
    assert lines_run(pattern, path) <= 15 * len(path) + 50


PIECES = [
    "a",
    "b",
    "ab",
    "*",
    "**",
    "?",
    "/",
    "/",
    "[ab]",
    "[!a]",
    "[a-b]",
    "\\a",
    "\\*",
    "[",
    "!",
    "#",
    " ",
    "*b",
    "a*",
]


def test_ignored_is_what_git_ignores(root: Path) -> None:
    """Files that are listed, with thousands of rules, a few at a time, in two folders."""
    chance = random.Random(20)
    context: Any = SimpleNamespace(sandbox=SimpleNamespace(files=Files(None, str(root))))
    for path in (
        "a",
        "b",
        "ab",
        "aab/a",
        "a b",
        "ba/a",
        "ba/ab/a",
        "ba/ab/b",
        "bb/aa/ab/b",
        "bb/b",
        "bb/a/b",
        "#a",
        "!a",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for _ in range(120):
        for folder in (root, root / "ba"):
            rules = [
                "".join(chance.choices(PIECES, k=chance.randint(1, 6))) for _ in range(chance.randint(1, 5))
            ]
            rules = [
                chance.choice(("", "", "!")) + rule + chance.choice(("", "", "/", " ")) for rule in rules
            ]
            # Of stars behind something else, git 2.39 says what its memory happens to be like.
            rules = [rule for rule in rules if not re.search(r"[^/!]\*\*+(/|$)", rule.strip())]
            (folder / ".gitignore").write_text("\n".join(rules) + "\n")
        command = ["git", "-C", str(root), "ls-files", "-z", "--others", "--exclude-standard"]
        wanted = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        said = [(folder / ".gitignore").read_text() for folder in (root, root / "ba")]
        found = set(search.glob("*", context).splitlines()) - {"no file matches"}
        assert found == set(filter(None, wanted)), said
