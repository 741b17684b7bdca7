"""`python -m gates`, and the gates that are other people's tools."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gates import layers, tools
from gates.__main__ import GATES, main
from gates.base import Finding

Tree = Callable[[dict[str, str]], Path]

CONFIG = """
    [tool.ruff]
    line-length = 60

    [tool.mypy]
    strict = true

    [tool.importlinter]
    root_package = "tertulia"

    [[tool.importlinter.contracts]]
    id = "packages"
    name = "downwards"
    type = "layers"
    containers = ["tertulia"]
    layers = ["upper", "lower"]

    [[tool.importlinter.contracts]]
    id = "later"
    name = "a package to come"
    type = "layers"
    containers = ["tertulia.later"]
    layers = ["a"]
"""
GOOD = {
    "pyproject.toml": CONFIG,
    "src/tertulia/__init__.py": "",
    "src/tertulia/lower.py": "x = 1\n",
    "src/tertulia/upper.py": "from tertulia.lower import x\n\ny = x\n",
}


def test_layers(tree: Tree) -> None:
    assert layers.check(tree(GOOD)) == []
    root = tree({"src/tertulia/upper.py": "", "src/tertulia/lower.py": "x = 1\nfrom tertulia import upper\n"})
    assert (layers.check(root)[0].path, layers.check(root)[0].line) == ("src/tertulia/lower.py", 2)


def test_lint_format_and_types(tree: Tree) -> None:
    root = tree(GOOD)
    assert tools.check_lint(root) == tools.check_format(root) == tools.check_types(root) == []
    tree({"src/tertulia/lower.py": "import os\ndef f(a): return  a\n"})
    assert "F401" in str(tools.check_lint(root))
    assert "lower.py" in str(tools.check_format(root))
    assert "no-untyped-def" in str(tools.check_types(root))


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Finding]]:
    """Two gates in place of the real ones: what each finds."""
    found = {"one": [Finding("a.py", 3, "is wrong: right it")], "two": list[Finding]()}
    for name in list(GATES):
        monkeypatch.delitem(GATES, name)
    for name in found:
        monkeypatch.setitem(GATES, name, lambda root, name=name: found[name])
    return found


def test_findings_are_printed_and_fail(
    gates: dict[str, list[Finding]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 1
    assert "[one] a.py:3: is wrong: right it\n" in capsys.readouterr().out
    assert main(["two"]) == 0
    gates["one"].clear()
    assert main([]) == 0


def test_findings_as_json(gates: dict[str, list[Finding]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 1
    expected = {"gate": "one", "path": "a.py", "line": 3, "text": "is wrong: right it"}
    assert json.loads(capsys.readouterr().out) == [expected]


def test_a_file_that_does_not_parse_is_a_finding(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree({"src/x.py": "def f(:\n"}))
    assert main(["locks"]) == 1
    assert "src/x.py:1: does not parse" in capsys.readouterr().out


def test_an_unknown_gate_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["nonsense"])
    assert end.value.code == 2
    assert "no gate is called nonsense" in capsys.readouterr().err
