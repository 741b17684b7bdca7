"""Branches, paths, and where a fork cuts."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tertulia.records.errors import InvalidForkEntryIndex
from tertulia.records.parts import Blob, Image, Text, Withheld
from tertulia.records.record import Message
from tertulia.transcript.path import BranchRow, Segment, complete_prefix, cut_before, forkable, segments
from tertulia.transcript.repair import unanswered
from tests.transcript.build import (
    answered,
    asked,
    called,
    ended,
    queued,
    said,
    stamped,
    started,
    thought,
    used,
    user,
)
from tests.transcript.strategies import LOGS, NONSENSE, conversations


def branch(conversation: str, n: int = 0, **fields: Any) -> BranchRow:
    return BranchRow(conversation=conversation, n=n, **fields)


def test_a_path_is_the_stretches_from_the_root_to_the_branch() -> None:
    rows = [
        branch("child", last=30, parent=("mother", 1), at=20),
        branch("mother", 1, last=25, parent=("mother", 0), at=10),
        branch("mother", 0, last=15),
    ]
    assert segments(rows, "child", 0) == (
        Segment("mother", 0, 0, 10),
        Segment("mother", 1, 10, 20),
        Segment("child", 0, 20, 30),
    )
    assert segments(rows, "mother", 1) == (Segment("mother", 0, 0, 10), Segment("mother", 1, 10, 25))


def test_until_ends_the_path_wherever_it_falls() -> None:
    rows = [branch("c", 1, last=30, parent=("c", 0), at=20), branch("c", 0, last=25)]
    assert segments(rows, "c", 1, until=22) == (Segment("c", 0, 0, 20), Segment("c", 1, 20, 22))
    assert segments(rows, "c", 1, until=7) == (Segment("c", 0, 0, 7),)
    assert segments(rows, "c", 1, until=0) == ()


def test_empty_stretches_are_left_out() -> None:
    rows = [
        branch("c", 2, last=10, parent=("c", 1), at=10),
        branch("c", 1, last=12, parent=("c", 0), at=10),
        branch("c", 0, last=10),
    ]
    assert segments(rows, "c", 2) == (Segment("c", 0, 0, 10),)
    assert segments([branch("c")], "c", 0) == ()


def test_a_missing_parent_or_a_cycle_ends_the_walk() -> None:
    orphan = branch("c", last=30, parent=("gone", 0), at=20)
    assert segments([orphan], "c", 0) == (Segment("c", 0, 20, 30),)
    rows = [branch("a", last=9, parent=("b", 0), at=6), branch("b", last=8, parent=("a", 0), at=3)]
    assert segments(rows, "a", 0) == (Segment("b", 0, 3, 6), Segment("a", 0, 6, 9))
    rows.append(branch("c", last=12, parent=("a", 0), at=8))
    assert [segment.conversation for segment in segments(rows, "c", 0)] == ["b", "a", "c"]
    assert segments([], "a", 0) == ()


def test_500_nested_forks_cost_a_step_each() -> None:
    rows = [branch(f"c{n}", last=n + 1, parent=(f"c{n - 1}", 0) if n else None, at=n) for n in range(500)]
    before = time.perf_counter()
    found = segments(rows, "c499", 0)
    spent = time.perf_counter() - before
    assert [segment.after for segment in found] == list(range(500))
    assert spent < 0.1, "the goal is 2.5 ms; this bound only catches what grows with the square"


@pytest.mark.req("S0-02")
def test_the_prefix_ends_before_the_first_call_that_waits_also_inside_a_message() -> None:
    log = stamped([started(), queued(), user("go"), said("well"), called("a"), called("b"), answered("a")])
    assert complete_prefix(log) == 4
    assert complete_prefix([*log, *stamped([answered("b")], start=7)]) == 8
    assert complete_prefix(log[:3]) == 3
    assert complete_prefix([]) == 0


@pytest.mark.req("S0-02")
def test_the_prefix_does_not_end_on_reasoning_whose_message_it_leaves_out() -> None:
    log = stamped([started(), user("go"), thought("…"), called("a"), asked("a")])
    assert complete_prefix(log) == 2
    log = stamped([started(), user("go"), thought("…"), said("well"), used(), called("a")])
    assert complete_prefix(log) == 5


def test_a_repeated_call_id_needs_as_many_results() -> None:
    log = stamped([user("go"), called("a"), called("a"), answered("a"), answered("a"), answered("a")])
    assert [complete_prefix(log[:n]) for n in range(1, 7)] == [1, 1, 1, 1, 5, 6]


@pytest.mark.req("S0-02")
@given(LOGS)
@settings(max_examples=100)
def test_the_prefix_is_the_longest_with_every_result(log: list[Any]) -> None:
    end = complete_prefix(log)
    assert not unanswered(log[:end])
    for longer in range(end + 1, len(log) + 1):
        assert unanswered(log[:longer]) or log[longer - 1].type == "reasoning"


@pytest.mark.req("S0-05")
def test_user_messages_are_listed_in_order_with_their_text() -> None:
    two = Message(seq=0, ts=0, role="user", parts=(Text(text="  one"), Text(text="two ")))
    image = Message(seq=0, ts=0, role="user", parts=(Image(media="image/png", data=b"x"),))
    log = stamped(
        [started(), two, said("ok"), ended(), started("t2"), image, user("steered", origin="steer")]
    )
    found = forkable(log, "conv_1")
    assert [(item.entry_index, item.text, item.record_id, item.seq) for item in found] == [
        (0, "one\ntwo", "conv_1:2", 2),
        (2, "[image]", "conv_1:6", 6),
        (3, "steered", "conv_1:7", 7),
    ]


@pytest.mark.req("S0-05", "S0-20")
def test_only_what_a_person_wrote_is_listed_and_never_what_is_empty() -> None:
    empty = Message(seq=0, ts=0, role="user", parts=())
    blank = user(" \n ")
    injected = [user("note", origin=origin) for origin in ("compaction", "interruption", "hook", "engine")]
    system = Message(seq=0, ts=0, role="system", parts=(Text(text="rules"),))
    log = stamped([empty, blank, *injected, system, said("hello"), called("a"), answered("a")])
    assert forkable(log, "c") == ()
    for index in range(len(log)):
        with pytest.raises(InvalidForkEntryIndex):
            cut_before(log, index)
    withheld = Message(seq=0, ts=0, role="user", parts=(Withheld(of="text"),))
    large = Message(seq=0, ts=0, role="user", parts=(Blob(ref="blob_1", of="text", size=9),))
    assert [item.text for item in forkable(stamped([withheld, large]), "c")] == ["[text withheld]", "[text]"]


@pytest.mark.req("S0-06")
def test_a_cut_stands_before_all_that_was_written_with_the_message() -> None:
    log = stamped(
        [
            started(),
            queued(),
            user("one"),
            said("1"),
            ended(),
            started("t2"),
            used(),
            queued(),
            user("two", "t2"),
        ]
    )
    assert cut_before(log, 0) == 0
    assert cut_before(log, 2) == 5


@pytest.mark.req("S0-06")
def test_a_cut_at_a_steer_keeps_its_turn_so_far() -> None:
    log = stamped([started(), user("go"), called("a"), answered("a"), queued(), user("also", origin="steer")])
    assert cut_before(log, 3) == 4
    other = stamped([started("t1"), queued(), user("late", "t9")])
    assert cut_before(other, 0) == 1, "the turn_start of another turn is not this message's"


@pytest.mark.req("S0-20")
@pytest.mark.parametrize("index", [-1, 1, 3, 4, 99, True, False, None, "0", 0.0, 10**30])
def test_an_index_that_names_no_user_message_is_refused_by_value(index: Any) -> None:
    log = stamped([user("go"), said("well"), user("two"), called("a"), answered("a")])
    with pytest.raises(InvalidForkEntryIndex) as caught:
        cut_before(log, index)
    assert caught.value.index is index


@pytest.mark.req("S0-06", "S0-20")
@given(conversations())
@settings(max_examples=60)
def test_every_listed_index_can_be_cut_and_leaves_exactly_what_stood_before(log: list[Any]) -> None:
    for item in forkable(log, "c"):
        kept = [record for record in log if record.seq <= cut_before(log, item.entry_index)]
        assert sum(record.is_entry for record in kept) == item.entry_index
        assert item.seq not in {record.seq for record in kept}


@given(NONSENSE, st.integers(-2, 12))
@settings(max_examples=60)
def test_no_log_breaks_them(log: list[Any], index: int) -> None:
    complete_prefix(log)
    listed = {item.entry_index for item in forkable(log, "c")}
    if index in listed:
        cut_before(log, index)
    else:
        with pytest.raises(InvalidForkEntryIndex):
            cut_before(log, index)


def test_a_message_without_an_index_is_not_listed() -> None:
    assert forkable([replace(user("draft"), seq=1)], "c") == ()
