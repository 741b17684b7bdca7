"""The command itself: what it prints where, and how it ends."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tertulia.cli import main as cli
from tertulia.cli.main import COMMANDS, main, make_parser
from tertulia.records.errors import SessionHeld

Capture = pytest.CaptureFixture[str]
Install = Callable[[Callable[[argparse.Namespace], int]], None]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Adds a command `probe` that does this."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true")

    def install(run: Callable[[argparse.Namespace], int]) -> None:
        known = cli._module
        probe = SimpleNamespace(add=add, run=run)
        monkeypatch.setitem(COMMANDS, "probe", ("probe", "only for this test"))
        monkeypatch.setattr(cli, "_module", lambda name: probe if name == "probe" else known(name))

    return install


def test_the_version_is_that_of_the_package(capsys: Capture) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tertulia {version('tertulia')}\n"


def test_without_a_command_the_overview_is_shown_as_a_usage_error(capsys: Capture) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    for name, (_, text) in COMMANDS.items():
        assert name in shown.err
        assert text in shown.err


@pytest.mark.parametrize(
    "typed", [["nonsense"], ["store"], ["store", "check"], ["store", "check", "a", "--jso"]]
)
def test_what_is_mistyped_is_a_usage_error(typed: list[str], capsys: Capture) -> None:
    assert main(typed) == 2
    assert capsys.readouterr().err.startswith("usage: tertulia")


def test_help_is_no_error(capsys: Capture) -> None:
    assert main(["store", "repair", "--help"]) == 0
    assert "--dry-run" in capsys.readouterr().out


def test_every_command_has_a_module_that_declares_and_runs_it() -> None:
    for name in COMMANDS:
        make_parser(only=name)
        assert callable(cli._module(name).run)


def test_an_error_is_a_line_a_hint_and_no_traceback(command: Install, capsys: Capture) -> None:
    def refuse(_: argparse.Namespace) -> int:
        raise SessionHeld("sess_1", "process 7")

    command(refuse)
    assert main(["probe"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    message = "session sess_1 is being written by process 7"
    hint = "close it there, or read it here without writing"
    assert shown.err == f"tertulia: {message}\n  {hint}\n"
    assert main(["probe", "--json"]) == 1
    error = {"code": "session_held", "message": message, "hint": hint}
    assert json.loads(capsys.readouterr().out) == {"error": error}


def test_an_interrupted_command_ends_with_130(command: Install, capsys: Capture) -> None:
    def interrupt(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    command(interrupt)
    assert main(["probe"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_reader_that_goes_away_leaves_no_traceback(size: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = (
        "import sys; from tertulia.cli import main as cli; from types import SimpleNamespace as N\n"
        "cli.COMMANDS['probe'] = ('probe', ''); run = lambda options: print('x' * SIZE) or 0\n"
        "cli._module = lambda name: N(add=lambda parser: None, run=run); sys.exit(cli.main(['probe']))"
    )
    command = [sys.executable, "-c", code.replace("SIZE", str(size))]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": writing, "stderr": subprocess.PIPE}
    done = subprocess.run(command, **pipes, env=buffered, check=False, timeout=30)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_the_overview_imports_no_command_and_no_driver() -> None:
    code = (
        "import sys; from tertulia.cli.main import main; main(['--help']);"
        "print([name for name in ('tertulia.cli.store', 'apsw') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_python_dash_m_is_the_command() -> None:
    command = [sys.executable, "-m", "tertulia", "store", "check", "no/such/store"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tertulia: nothing is at no/such/store")
