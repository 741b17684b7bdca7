"""The error tree."""

import inspect
import re

import pytest

from tertulia.records import errors
from tertulia.records.errors import TertuliaError

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, TertuliaError) and value.__module__ == errors.__name__
]


def drawn() -> dict[str, str | None]:
    """Each name in the docstring's tree, with the name it stands under."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s{2,}.*)?$", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        parents[found[2]] = above[depth - 1] if depth else None
        above[depth:] = [found[2]]
    return parents


@pytest.mark.req("S2-03a")
def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert drawn() == {
        kind.__name__: None
        if kind is TertuliaError
        else next(base.__name__ for base in kind.__bases__ if issubclass(base, TertuliaError))
        for kind in CLASSES
    }


def test_the_drawn_attributes_exist() -> None:
    for name, attribute in re.findall(r"([A-Z]\w+)\s+\.(\w+)", errors.__doc__ or ""):
        assert f"self.{attribute} = " in inspect.getsource(getattr(errors, name))


@pytest.mark.req("S2-03a")
def test_one_tree_holds_what_was_asked_for() -> None:
    codes = {kind.code for kind in CLASSES}
    assert codes >= {
        "cancelled",
        "timeout",
        "approval_denied",
        "sandbox",
        "mcp",
        "tool_conflict",
        "storage_policy_violation",
        "internal",
    }


def test_each_class_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)
    assert all("code" in vars(kind) for kind in CLASSES)


def test_none_is_a_cancellation_of_asyncio() -> None:
    for kind in CLASSES:
        assert issubclass(kind, Exception)
        assert "CancelledError" not in {base.__name__ for base in kind.__mro__}


def test_an_error_says_what_happened_and_what_to_do() -> None:
    error = errors.ConfigError("no such model", hint="run tertulia models", name="x")
    assert str(error) == "no such model (run tertulia models)"
    assert (error.message, error.hint, error.details) == (
        "no such model",
        "run tertulia models",
        {"name": "x"},
    )
    assert isinstance(error, ValueError)
    assert str(errors.StoreFull()) == "store_full"


def test_the_errors_with_facts_carry_them() -> None:
    fork = errors.InvalidForkEntryIndex(-1)
    assert (fork.index, fork.details) == (-1, {"index": -1})
    newer = errors.VersionTooNew("record format", 3, 1)
    assert (newer.found, newer.supported) == (3, 1)
    held = errors.SessionHeld("sess_1", "process 7")
    assert held.holder == "process 7"
    limited = errors.RateLimited("slow down", retry_after=1.5, hint="wait")
    assert (limited.retry_after, limited.details, limited.hint) == (1.5, {"retry_after": 1.5}, "wait")
