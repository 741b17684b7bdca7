"""Verdicts beside the shell itself: what bash runs, whatever the text, is what was judged."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tertulia.approvals import Rules
from tests.approvals.kit import verdict

pytestmark = pytest.mark.req("S2-08a")

BASH = "/bin/bash"
RULES = Rules(allow=["* *"], deny=["rm *"])
NARROW = Rules(allow=["echo *", "ls *"])
GRANTED = (("path", "git", "status"), ("path", "pwd"))
TORTURE = bool(os.environ.get("TERTULIA_TORTURE"))
EXAMPLES = 20_000 if TORTURE else 500

LETTERS = [
    "rm", "rm x", "ls", "echo", "env", "bash -c", "sh", "xargs", "eval", "A=rm", "A=1", "$A", "${A}", "$(", "`", ")",
    "(", "{", "}", ";", "&&", "||", "|", "&", "\n", "<<E\n", "\nE\n", "<<'E'\n", "<<<", ">", "<", "2>&1", '"', "'",
    "\\", "\\\n", " ", "#", "!", "$'", '$"', "\\x72m", "if", "then", "fi", "for i in", "do", "done", "case", "in",
    "esac", ";;", "f()", "function f", "[[", "]]", "((", "))", "time", "exec", "command", "*", "~", "{a,", "rm}",
    "$((", "coproc", "\r", "\x0b", "\xa0",
]  # fmt: skip
SEAMS = [
    "\\ ", "\\ #", " \\ #;", "a\\ #", "\\\t", "#x\n", " #", "\n\\rm x", "$A\n", "*\n", '"$A"\n', "$(ls)\n", "{A}>f",
    "{PATH}>/dev/null", "{PATH}>&2", "{A}<", ' "ls"\\/x', "'ls'\\/x $A", "ls\\/x", "\\/x", "''", '""', "-n2>/dev/null",
    "-2>/dev/null", "-9>&2", "12>/dev/null", "2>/dev/null", "&>/dev/null", ">&1", ">&12", ">&-", "</dev/null", "$?",
    "$#", "$_", "$$", "$", "git status", "git log", "pwd", "cd a", "[x]", "]]", "=", ":", "~/", "é", "|&", "\\;",
    "\\#", "printf -v PATH %s 10", "printf %n PATH", "printf '%s\\n' a", "test -v 'a[$(rm x)]'", "test $_",
    "echo '-v a[$(rm x)]'", "printf -v 'a[$(rm x)]' x", "let 'x=a[$(rm x)]'", "wait -p PATH", "hash -p rm ls",
]  # fmt: skip
FED = [
    "echo rm x |", "printf 'r%s x' m |", "echo ls |", "xargs env", "xargs nice", "xargs -I% %", "xargs -I% sh -c %",
    "xargs ls", "| sh", "| sh -s a", "| sh -o errexit", "| bash /dev/stdin", "| bash +x", "| env sh", "| nice bash",
    "| foo", "foo --exec='rm x'", "foo -c'rm x'", "foo -qc'rm x'", "foo '!rm x'", "foo --exec=rm", "foo -c 'rm x'\"?\"",
    "foo rm x", "sh -c'rm x'", "bash -ec 'rm x'", "env -S'rm x'", "foo --exec='echo rm x | sh'", "nice -n 5 rm x",
    "foo --exec=sh", "foo -csh", "foo --exec='sh -s'", "foo --exec='env rm x'", "git -c a='!rm x'",
]  # fmt: skip


EVERYDAY = [
    " ",
    ";",
    "&&",
    "|",
    "\n",
    "rm x",
    "echo",
    "ls",
    "a",
    "-l",
    "'b c'",
    '"',
    "'",
    "$(",
    ")",
    "\\",
    "#",
]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], list[str]]:
    """Runs a command line where every program is a stub; what was started, and what was left in the folder."""
    programs, told, here = tmp_path / "bin", tmp_path / "told", tmp_path / "here"
    for folder in (programs, here / "ls", here / "10", here / "a"):
        folder.mkdir(parents=True)
    bodies = {
        "env": '[[ $1 == -S ]] && exec /bin/bash -c "$2"; [[ $1 == -S* ]] && exec /bin/bash -c "${1#-S}"; "$@"',
        "nice": '[[ $1 == -n ]] && shift 2; "$@"',
        "sh": '/bin/bash "$@"',
        "bash": '/bin/bash "$@"',
        "xargs": 'read -r -d \'\' given; [[ $1 == -I% ]] && shift && set -- "${@//%/$given}" && exec "$@"; "$@" $given',
        "foo": 'for each; do case $each in --exec=*) /bin/bash -c "${each#*=}";; -c*) /bin/bash -c "${each#-c}";; '
        '-qc*) /bin/bash -c "${each#-qc}";; !*) /bin/bash -c "${each#!}";; *[!?]*) ;; esac; done; "$@"',
    }
    for name in ("ls", "echo", "rm", "git", *bodies):
        _stub(programs / name, name, told, bodies.get(name, ""))
    for path in ("ls/x", "10/git", "10/ls", "10/echo"):
        _stub(here / path, "planted", told, "")

    def run(command: str) -> list[str]:
        told.unlink(missing_ok=True)
        before = sorted(here.rglob("*"))
        subprocess.run(
            [BASH, "-c", command], cwd=here, env={"PATH": str(programs), "A": "rm"}, timeout=20, check=False,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        left = [path for path in sorted(here.rglob("*")) if path not in before]
        started = told.read_text(errors="replace").splitlines() if told.exists() else []
        return [*started, *(f"left {path.name}" for path in left)]

    return run


def _stub(path: Path, name: str, told: Path, body: str) -> None:
    path.write_text(f"#!{BASH}\necho {name} \"${{*//$'\\n'/ }}\" >> {told}\n{body}\n")
    path.chmod(0o755)


def removals(started: list[str]) -> list[str]:
    return [each for each in started if each.startswith("rm ")]


def test_the_stubs_tell_what_ran(run: Callable[[str], list[str]]) -> None:
    for command in (
        "rm x", "env rm x", "bash -c 'rm x'", "A=1; $A x; rm x", "foo --exec='rm x'", "foo -qc'rm x'", "foo '!rm x'",
        "printf 'rm x' | xargs env", "printf 'rm x' | xargs -I% sh -c %", "printf 'rm x' | sh -s a", "env -S'rm x'",
    ):  # fmt: skip
        assert removals(run(command)) == ["rm x"], command
    assert run("echo rm x") == []
    assert run("echo {PATH}>/dev/null && git status")[-1] == "planted status"
    assert run('"ls"\\/x') == ["planted "]
    assert run("ls >f") == ["ls ", "left f"]


def lines(*kinds: list[str]) -> Any:
    pieces = st.one_of(*(st.sampled_from(kind) for kind in (*kinds, EVERYDAY)))
    between = st.sampled_from(["", " "])
    begin = st.sampled_from(["", "", "ls ", "echo ", "ls $A", "git status ", "foo ", "printf 'r%s x' m "])
    return st.tuples(begin, between, st.lists(pieces, min_size=1, max_size=9)).map(
        lambda t: t[0] + t[1].join(t[2])
    )


@pytest.mark.timeout(1800 if TORTURE else 60)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines(LETTERS) | lines(SEAMS, FED) | lines(LETTERS, SEAMS, FED))
def test_what_is_allowed_runs_nothing_that_is_denied(run: Any, command: str) -> None:
    assume("foo" not in command or "$" not in command)  # docs/approvals.md: words that only the run knows
    if verdict(command, RULES) == "allow" or verdict(command, Rules(deny=["rm *"]), "allow") == "allow":
        assert removals(run(command)) == [], command


@pytest.mark.timeout(1800 if TORTURE else 60)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines(SEAMS) | lines(SEAMS, LETTERS))
def test_nothing_starts_that_was_neither_allowed_nor_granted(run: Any, command: str) -> None:
    for rules, granted, fine in (
        (NARROW, (), ("ls ", "echo ")),
        (Rules(), GRANTED, ("git status",)),
        (NARROW, GRANTED, ("ls ", "echo ", "git status")),
    ):
        if verdict(command, rules, "deny", granted) == "allow":
            assert [each for each in run(command) if not each.startswith(fine)] == [], command
