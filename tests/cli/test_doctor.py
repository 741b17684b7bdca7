"""`tertulia doctor`, and the built-in tools on the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tertulia.cli import doctor, talk
from tertulia.cli.main import main, make_parser
from tertulia.sandbox.probe import Probe

Capture = pytest.CaptureFixture[str]

WORKS = Probe(program="/usr/bin/bwrap", problem=None, limits="cgroup v2", files="openat2")
BROKEN = Probe(program=None, problem="bwrap is not installed", limits="watcher", files="step by step")


def test_it_says_which_layer_is_active(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(doctor, "probe", lambda: WORKS)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "commands run under bubblewrap" in shown
    assert "by cgroup v2: 512 processes" in shown


def test_it_says_why_there_is_none_and_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(doctor, "probe", lambda: BROKEN)
    assert main(["doctor"]) == 1
    assert "commands are refused: bwrap is not installed" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["sandbox"]["layer"], found["sandbox"]["limits"]) == ("none", "watcher")
    assert set(found) == {"version", "python", "system", "sandbox", "stores", "packages", "extras"}


def test_the_built_in_tools_come_with_a_flag() -> None:
    names = [tool.name for tool in talk._tools("demo", True)]
    assert names[:3] == ["read", "write", "edit"]
    assert names.count("chart") == 1
    assert "publish" in names
    assert talk._tools("other", False) == ()
    options = make_parser(only="chat").parse_args(["chat", "--tools"])
    assert (options.tools, options.sandbox) == (True, "on")


def test_the_network_of_commands_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    def chosen(*typed: str) -> Any:
        return talk.sandbox(make_parser(only="chat").parse_args(["chat", *typed]))

    assert (chosen(), chosen("--sandbox", "off")) == ("on", "off")
    assert chosen("--network", "on").network == "on"
    assert chosen("--network", "example.org, *.example.net").network == ("example.org", "*.example.net")
    assert main(["run", "-p", "x", "--model", "demo", "--sandbox", "off", "--network", "on"]) == 1
    assert "leave out one" in capsys.readouterr().err
    assert main(["run", "-p", "x", "--model", "demo", "--network", "http://a/"]) == 1
    assert "names no host" in capsys.readouterr().err


def test_what_acts_is_denied_where_nobody_can_be_asked(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tertulia", "run", "-p", "approval", "--model", "demo", "--tools"],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert "denied" in done.stderr
