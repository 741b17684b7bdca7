"""Verdicts beside the shell itself: what bash runs, whatever the text, is what was judged."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tertulia.approvals import Rules
from tests.approvals.test_rules import verdict

pytestmark = pytest.mark.req("S2-08a")

BASH = "/bin/bash"
RULES = Rules(allow=["* *"], deny=["rm *"])

pieces = st.sampled_from(
    ["rm", "rm x", "ls", "echo", "env", "bash -c", "sh", "xargs", "eval", "A=rm", "A=1", "$A", "${A}", "$(", "`",
     ")", "(", "{",
     "}", ";", "&&", "||", "|", "&", "\n", "<<E\n", "\nE\n", "<<'E'\n", "<<<", ">", "<", "2>&1", '"', "'", "\\",
     "\\\n", " ", "#",
     "!", "$'", '$"', "\\x72m", "if", "then", "fi", "for i in", "do", "done", "case", "in", "esac", ";;", "f()",
     "function f",
     "[[", "]]", "((", "))", "time", "exec", "command", "*", "~", "{a,", "rm}", "$((", "coproc", "\r", "\x0b",
     "\xa0"]
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], str]:
    """Runs a command line where every program is a stub; what `rm` was called with."""
    programs, told = tmp_path / "bin", tmp_path / "told"
    programs.mkdir()
    for name in ("ls", "echo", "env", "sh", "bash", "xargs", "rm"):
        tell = f'echo "rm $@" >> {told}\n' if name == "rm" else ""
        pass_on = (
            '/bin/bash "$@"\n' if name in ("sh", "bash") else '"$@"\n' if name in ("env", "xargs") else ""
        )
        (programs / name).write_text(f"#!{BASH}\n{tell}{pass_on}")
        (programs / name).chmod(0o755)

    def run(command: str) -> str:
        told.unlink(missing_ok=True)
        subprocess.run(
            [BASH, "-c", command], cwd=tmp_path, env={"PATH": str(programs), "A": "rm"}, timeout=10, check=False,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        return told.read_text() if told.exists() else ""

    return run


def test_the_stubs_tell_what_ran(run: Callable[[str], str]) -> None:
    for command in ("rm x", "env rm x", "bash -c 'rm x'", "A=1; $A x; rm x"):
        assert run(command) == "rm x\n"
    assert run("echo rm x") == ""


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pieces, min_size=2, max_size=9), st.sampled_from(["", " "]))
def test_what_is_allowed_runs_nothing_that_is_denied(run: Any, parts: list[str], between: str) -> None:
    command = between.join(parts)
    if verdict(command, RULES) == "allow" or verdict(command, Rules(deny=["rm *"]), "allow") == "allow":
        assert run(command) == "", command
