"""Identifiers."""

import typing
from typing import Any

import pytest

from tertulia.records import ids
from tertulia.records.errors import InvalidId, InvalidInput


@pytest.mark.req("S2-03a")
@pytest.mark.parametrize(
    ("make", "prefix"),
    [
        (ids.new_session_id, "sess_"),
        (ids.new_conversation_id, "conv_"),
        (ids.new_turn_id, "turn_"),
        (ids.new_item_id, "item_"),
        (ids.new_call_id, "call_"),
    ],
)
def test_an_id_says_what_it_names_and_never_comes_twice(make: typing.Callable[[], str], prefix: str) -> None:
    made = [make() for _ in range(2_000)]
    assert len(set(made)) == len(made)
    for value in made[:50]:
        assert value.startswith(prefix)
        assert ids.check_id(value) == value


@pytest.mark.req("S2-03a")
def test_the_types_of_ids_are_distinct() -> None:
    kinds = (ids.SessionId, ids.ConversationId, ids.TurnId, ids.ItemId, ids.CallId)
    assert len({kind.__name__ for kind in kinds}) == len(kinds)
    hints = {make: typing.get_type_hints(make)["return"] for make in (ids.new_session_id, ids.new_turn_id)}
    assert list(hints.values()) == [ids.SessionId, ids.TurnId]


def test_ids_sort_by_the_time_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for milliseconds in (0, 1, 31, 32, 1_700_000_000_000, 1_700_000_000_001, 2**45 - 1):
        monkeypatch.setattr("tertulia.records.ids.time.time_ns", lambda ms=milliseconds: ms * 1_000_000)
        made.append(ids.new_turn_id())
    assert made == sorted(made)


@pytest.mark.parametrize(
    "value", ["..", ".", "a/b", "A", "🙂" * 128, "CON", "-", "x" * 128, "a b", "%00", "conv:1", "'; --", "é"]
)
def test_odd_ids_are_ids(value: str) -> None:
    assert ids.check_id(value) == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "\t\n",
        "a\x00b",
        "a\nb",
        "\x7f",
        "x" * 129,
        "🙂" * 300,
        "\ud800",
        "\x1b[31m",
        None,
        7,
        b"a",
        ["a"],
        True,
    ],
)
def test_what_is_no_id_is_refused(value: Any) -> None:
    with pytest.raises(InvalidId) as caught:
        ids.check_id(value, "conversation id")
    assert "conversation id" in str(caught.value)
    assert isinstance(caught.value, InvalidInput)
    assert len(str(caught.value)) < 200
