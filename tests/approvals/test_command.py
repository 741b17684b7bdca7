"""A command line and what it would run."""

import shlex
import subprocess
import sys

import pytest

from tertulia.approvals.command import MAX_LENGTH, MAX_WORDS, read
from tertulia.approvals.words import looks_alike, shown

pytestmark = pytest.mark.req("S2-08a")


def words(text: str) -> list[tuple[str | None, ...]]:
    return [part.words for part in read(text).parts]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("git status", ("git", "status")), ("git  status -s", ("git", "status")), ("ls -l 'a b'", ("ls",)),
        ("git log --oneline HEAD~3", ("git", "log")), ("npm ls", ("npm", "ls")), ("date", ("date",)),
        ("git status 2>/dev/null", ("git", "status")), ("ls 2>&1", ("ls",)),
        ("git status # why", ("git", "status")),
        # what its words may make of it
        ("git", None), ("git push", None), ("git -c core.pager=x log", None), ("git log --output=f", None),
        ("git log --outp f", None), ("git diff --ext-diff", None), ("date -s x", None), ("rg --pre=sh x", None),
        ("rg -iz x", None), ("npm test", None), ("cargo check", None), ("./git status", None), ("/bin/ls", None),
        # what starts something else
        ("env git status", None), ("sudo git status", None), ("bash -c 'git status'", None),
        ("xargs git status", None),
        ("find . -name x", None), ("make", None), ("python x.py", None), ("eval git status", None),
        # what is not told by the words
        ("git $X", None), ("git log $X", None), ("ls *", None), ("ls {a,b}", None), ("ls ~", None),
        ("$X status", None),
        ("A=1 git status", None), ("git log > f", None), ("git log >> f", None), ("ls < f", None),
        ("ls <<< x", None),
        ("ls $(pwd)", None), ("ls `pwd`", None), ("ls <(pwd)", None), ("ls $'a'", None), ('ls $"a"', None),
        ("l\u0455", None), ("gіt status", None), ("ls\xa0x", None), ("ls\u200b", None), ("ls\rx", None),
        ("ls\x0bx", None),
    ],
)  # fmt: skip
def test_the_path_of_a_command(text: str, path: tuple[str, ...] | None) -> None:
    parts = read(text).parts
    assert (parts[0].path if len(parts) == 1 else None) == path


def test_every_command_is_found_wherever_it_stands() -> None:
    for text in (
        "a; rm x", "a && rm x", "a || rm x", "a | rm x", "a & rm x", "a\nrm x", "(rm x)", "{ rm x; }", "! rm x",
        "echo $(rm x)", 'echo "$(rm x)"', "echo `rm x`", "cat <(rm x)", "if a; then rm x; fi",
        "for i in a; do rm x; done",
        "while a; do rm x; done", "case x in y) rm x;; esac", "f() { rm x; }", "A=$(rm x) b", "export A=$(rm x)",
        "echo ${A:-$(rm x)}", "[[ $(rm x) ]]", "cat <<E\n$(rm x)\nE",
    ):  # fmt: skip
        assert ("rm", "x") in words(text), text


def test_quotes_are_taken_off_as_the_shell_does() -> None:
    for text in ("rm x", "'rm' x", '"rm" "x"', "r''m x", "\\rm \\x", 'r"m" x', "rm \\\n x"):
        assert words(text) == [("rm", "x")], text
    for text in ("r\\\nm x", "r\\\nm $X"):  # the grammar parts it, the shell does not
        assert not read(text).simple, text
    assert words('ls "\\$X" "a$" "a|$"') == [("ls", "$X", "a$", "a|$")]
    assert words("rm 'a b'") == [("rm", "a b")]
    assert words("rm a\\ b") == [("rm", "a b")]
    assert words("echo HEAD~1 {} a@b stash@{0}") == [("echo", "HEAD~1", "{}", "a@b", "stash@{0}")]
    assert words('echo $X "$X" *.py a{1..3} x=~/y') == [("echo", None, None, None, None, None)]


def test_a_cd_is_followed_into_a_folder_below_and_no_other_way() -> None:
    assert [part.at for part in read("cd src/a && ls").parts] == ["", "src/a"]
    assert [part.at for part in read("cd a && cd ./b && ls").parts] == ["", "a", "a/b"]
    for text in ("cd /a && ls", "cd .. && ls", "cd a/../.. && ls", "cd a; ls", "cd a || ls", "cd $A && ls",
                 "cd && ls",
                 "cd - && ls", "(cd a) && ls", "cd a | ls", "export A=1 && ls", "alias ls=rm && ls", ". x && ls",
                 "set -o x && ls", "! cd a && ls"):  # fmt: skip
        assert read(text).parts[-1].at is None, text
    assert read("cd /a").parts[0].path == ("cd",)


def test_what_cannot_be_read_is_not_believed() -> None:
    unreadable = [
        "",
        " \n",
        "ls 'a",
        "ls)",
        "if",
        "{a,b}",
        "ls \x00",
        "ls \x1b[1m",
        "ls \u202eyx",
        "a\u2028b",
        "a" * MAX_LENGTH + "b",
    ]
    for text in unreadable:
        assert not read(text).simple or not read(text).parts, text
        assert not read(text).sure, text


def test_a_word_of_the_grammar_is_no_program() -> None:
    for text in ("! { r$@m x; }", "{ r$@m x; }", "time then x", "coproc { a; }"):
        assert not read(text).sure, text


def test_wrappers_and_interpreters_are_sure_only_with_known_words() -> None:
    for text in ("env ls", "sudo ls -l", "python x.py", "make", "xargs ls"):
        assert read(text).sure, text
    for text in ("env $X", "bash", "sh -", "bash -c ls", "python3.11 -c x", "perl -ne x", "env python -",
                 "node -e x", "awk",
                 "eval 'a <<< $X'", "ssh h 'for i in a; do b; done'", "foo env $X",
                 "nice bash -lc x", "$X", "gіt x", "env " + "a " * MAX_WORDS):  # fmt: skip
        assert not read(text).sure, text


def test_the_insides_of_a_wrapper() -> None:
    def inner(text: str) -> list[tuple[str | None, ...]]:
        return [each.words for part in read(text).parts for each in part.started()]

    for text in ("env A=1 rm x", "sudo -u a rm x", "bash -c 'ls; rm x'", "bash -c \"env sh -c 'rm x'\"",
                 "eval rm x", "eval 'rm x'",
                 "find . -exec rm x", "ssh host 'rm x'", "trap 'rm x' EXIT", "env -S 'rm x'"):  # fmt: skip
        assert ("rm", "x") in [found[:2] for found in inner(text)], text


def test_what_is_not_seen_is_written_out() -> None:
    assert shown("ls \u202ex\x1b[0m\xa0é\n") == "ls \\u{202e}x\\u{1b}[0m\\u{a0}é\n"
    assert looks_alike("gіt status")
    assert not looks_alike("echo 日本語 ok")


CRASHED = (
    "\U0009e0e9\n\n\U00028424\U0006fde8\u1243\u122b\nG#\U000f5797.\U000cb0e4`~\u1992\u242b\u14bf"
    "\u234f\U000a44867\n\U0006fdb8,\n\u121e\u0a68\nI\U0002902bP-O\u0593\u1f715"
    "\n\u2706\u0cc5)\u1330Cc\U001052e9\U000e7132\U000bba6f>\U0007bc2cF\u27b8{\U000f5e22\U00068db8\U000db44d"
    "\u08e2\u232b"
)
"""At this the grammar's scanner read beyond its tables, and the process was gone."""


def test_the_grammar_is_given_no_character_at_which_it_crashes() -> None:
    run = (
        f"from tertulia.approvals import command\nfor _ in range(2000): command.read.__wrapped__({CRASHED!r})"
    )
    assert subprocess.run([sys.executable, "-c", run], check=False).returncode == 0


@pytest.mark.parametrize("text", ["cat 文件.txt", "git commit -m 'größer'", "echo é\\ ü", "ls 'a b' ñ"])
def test_letters_outside_of_ascii_are_words_as_they_stand(text: str) -> None:
    (part,) = read(text).parts
    assert list(part.words) == shlex.split(text)
    assert read(text).simple


@pytest.mark.parametrize("text", ["eé", "$é", "é=1 rm x", "exéc rm", "<<É\nrm x\nÉ"])
def test_they_make_no_other_construct_look_simple(text: str) -> None:
    assert not any(part.words[0] in ("exec", "export", "Q") for part in read(text).parts)
