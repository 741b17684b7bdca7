"""The stores that a scenario runs over: `store` is each of them, `place` each that outlives a process."""

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """What `Session.open(store=)` is given."""
    return {"memory": None, "sqlite": str(tmp_path / "s.db"), "jsonl": f"jsonl:{tmp_path / 'j'}"}[
        request.param
    ]


@pytest.fixture(params=["sqlite", "jsonl"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"sqlite": str(tmp_path / "s.db"), "jsonl": f"jsonl:{tmp_path / 'j'}"}[request.param]
