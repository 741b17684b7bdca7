"""Every benchmark runs at tiny sizes and measures something. How fast anything is, is nobody's business here."""

import json
from pathlib import Path

import pytest

from bench.__main__ import NAMES, ON_DEMAND, main, run, table
from bench.harness import Goal, Result
from tertulia.sandbox.probe import Probe

NOT_EVERYWHERE = ("sandbox", "local")
"""Without bubblewrap that works, or without weights, there is nothing to measure; they say so."""


@pytest.mark.parametrize("name", NAMES)
def test_it_measures_something_beside_something(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = run(name, "quick")
    if not results and name in NOT_EVERYWHERE:
        assert f"{name}: not measured, " in capsys.readouterr().err
        return
    assert results
    assert any(result.ratio is not None for result in results)
    for result in results:
        assert result.ours > 0
        assert result.ratio is None or result.ratio > 0


def test_what_cannot_be_measured_here_says_so_in_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TERTULIA_LOCAL_MODEL", str(tmp_path / "no.gguf"))
    nothing = Probe(program=None, problem="bwrap is not installed", limits="watcher", files="openat2")
    monkeypatch.setattr("bench.sandbox.probe", lambda: nothing)
    assert [run(name, "quick") for name in NOT_EVERYWHERE] == [[], []]
    said = capsys.readouterr().err
    assert "sandbox: not measured, bwrap is not installed\n" in said
    assert "local: not measured, the weights " in said


@pytest.mark.parametrize("name", ON_DEMAND)
def test_what_prints_a_text_prints_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "quick") == []
    assert "function calls" in capsys.readouterr().out


def test_every_file_of_the_folder_that_measures_is_listed() -> None:
    folder = Path(__file__).parents[2] / "bench"
    found = {file.stem for file in folder.glob("*.py") if "async def run(scale: Scale)" in file.read_text()}
    assert found == {*NAMES, *ON_DEMAND}
    readme = (folder / "README.md").read_text()
    assert not [name for name in NAMES if f"| `{name}` |" not in readme]


def test_the_command_prints_a_table_and_writes_the_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["view", "--quick", "--json", str(tmp_path / "figures.json")])
    lines = capsys.readouterr().out.splitlines()
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert lines[0].startswith("| workload")
    assert len(lines) == 2 + len(figures["view"])
    assert set(figures["view"][0]) == {"what", "ours", "unit", "floor", "beside", "ratio", "goal", "met"}


def test_a_name_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no benchmark is called nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ours", "floor", "goal", "met"),
    [
        (3.0, 2.0, Goal("ratio", 1.5), True),
        (3.1, 2.0, Goal("ratio", 1.5), False),
        (7.0, 2.0, Goal("over", 5), True),
        (7.1, 2.0, Goal("over", 5), False),
        (1500.0, None, Goal("ours", 1500, least=True), True),
        (1499.0, None, Goal("ours", 1500, least=True), False),
        (1.0, None, Goal("ratio", 1.5), None),
        (1.0, 1.0, None, None),
    ],
)
def test_a_goal_is_met_or_not(ours: float, floor: float | None, goal: Goal | None, met: bool | None) -> None:
    result = Result("it", ours, "ms", floor, "a floor", goal)
    assert result.met is met
    assert {None: "", True: "yes", False: "NO"}[met] in table([result]).splitlines()[2]
