"""`tertulia store`, and the choice of a store's kind behind it."""

import json
import sys
from pathlib import Path

import pytest

from tertulia.cli.main import main
from tertulia.records.errors import InvalidInput, StoreNotFound
from tertulia.store import care
from tertulia.store.report import Problem, Report

Capture = pytest.CaptureFixture[str]

PROBLEM = Problem(where="conv_1 seq 5", what="bytes that are no record", action="a repair leaves it out")


class FakeCare:
    """Stands for the care of one kind of store; remembers what it was asked."""

    def __init__(self, problems: tuple[Problem, ...] = ()) -> None:
        self.problems = problems
        self.asked: list[tuple[str, ...]] = []

    def report(self, *asked: str, written: Path | None = None) -> Report:
        self.asked.append(asked)
        return Report(
            kind="fake",
            path=asked[1],
            conversations=2,
            kept=7,
            lost=len(self.problems),
            problems=self.problems,
            written=str(written) if written else None,
        )

    def check(self, path: Path) -> Report:
        return self.report("check", str(path))

    def repair(self, path: Path, target: Path) -> Report:
        return self.report("repair", str(path), str(target), written=target if self.problems else None)

    def backup(self, path: Path, target: Path, progress: care.Progress | None = None) -> Report:
        if progress:
            progress(1, 2)
            progress(2, 2)
        return self.report("backup", str(path), str(target), written=target)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCare:
    monkeypatch.chdir(tmp_path)
    Path("s.db").touch()
    kept = FakeCare()
    monkeypatch.setattr(care, "_load", lambda name: kept)
    return kept


def test_a_sound_store_is_said_to_be_sound(fake: FakeCare, capsys: Capture) -> None:
    assert main(["store", "check", "s.db"]) == 0
    assert capsys.readouterr().out == "s.db: fake, 2 conversations, 7 records\nno problems\n"


def test_problems_are_listed_and_fail_a_check_and_a_dry_run(fake: FakeCare, capsys: Capture) -> None:
    fake.problems = (PROBLEM,)
    assert main(["store", "check", "s.db"]) == 1
    assert main(["store", "repair", "s.db", "--dry-run"]) == 1
    assert fake.asked == [("check", "s.db")] * 2
    shown = capsys.readouterr().out
    assert shown.count("conv_1 seq 5: bytes that are no record; a repair leaves it out\n") == 2
    assert "1 record cannot be read\n1 problem; `tertulia store repair` writes a repaired copy\n" in shown


def test_a_repair_writes_beside_the_store_or_where_it_is_told(fake: FakeCare, capsys: Capture) -> None:
    fake.problems = (PROBLEM,)
    assert main(["store", "repair", "s.db"]) == 0
    assert main(["store", "repair", "s.db", "--output", "t.db"]) == 0
    assert fake.asked == [("repair", "s.db", "s.db.repaired"), ("repair", "s.db", "t.db")]
    assert "written: t.db" in capsys.readouterr().out


def test_a_repair_of_a_sound_store_writes_nothing(fake: FakeCare, capsys: Capture) -> None:
    assert main(["store", "repair", "s.db"]) == 0
    assert capsys.readouterr().out.endswith("no problems\n")


def test_the_report_as_json(fake: FakeCare, capsys: Capture) -> None:
    fake.problems = (PROBLEM,)
    assert main(["store", "backup", "s.db", "t.db", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ok"], shown["written"], shown["kept"]) == (False, "t.db", 7)
    assert shown["problems"] == [
        {"where": "conv_1 seq 5", "what": "bytes that are no record", "action": "a repair leaves it out"}
    ]


@pytest.mark.parametrize(("terminal", "shown"), [(True, "\rbackup:  50 %\rbackup: 100 %\n"), (False, "")])
def test_progress_is_for_terminals(
    fake: FakeCare, capsys: Capture, monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert main(["store", "backup", "s.db", "t.db"]) == 0
    assert capsys.readouterr().err == shown


def test_the_kind_of_a_store_is_seen_by_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(care, "_load", lambda name: loaded.append(name) or FakeCare())
    (tmp_path / "log" / "deep").mkdir(parents=True)
    (tmp_path / "log" / "deep" / "c.jsonl").touch()
    (tmp_path / "s.db").touch()
    for store in (
        tmp_path / "s.db",
        f"sqlite:{tmp_path / 's.db'}",
        tmp_path / "log",
        f"jsonl:{tmp_path / 'log'}",
    ):
        care.check(str(store))
    assert loaded == ["sqlite_care"] * 2 + ["jsonl_care"] * 2


def test_what_is_no_store_on_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.db").touch()
    for store in (tmp_path, tmp_path / "gone", f"jsonl:{tmp_path / 's.db'}", f"sqlite:{tmp_path}"):
        with pytest.raises(StoreNotFound) as refused:
            care.check(str(store))
        assert refused.value.hint
    with pytest.raises(InvalidInput, match="no file or folder"):
        care.check("postgresql://host/name")
