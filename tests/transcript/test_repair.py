"""What a crash left is made valid, and what is given to resume() is checked."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tertulia.records.errors import InvalidSnapshot
from tertulia.records.record import Interruption, Message, ToolCall, ToolResult, TurnEnd, Usage
from tertulia.transcript.repair import check_snapshot, repair, unanswered
from tests.transcript.build import (
    answered,
    asked,
    called,
    decided,
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


def repaired(log: list[Any], own_after: int = 0) -> list[Any]:
    return [*log, *stamped(repair(log, own_after), start=len(log))]


def kinds(drafts: tuple[Any, ...]) -> list[str]:
    return [draft.type for draft in drafts]


def test_a_crash_in_mid_call_gives_results_a_note_and_an_end() -> None:
    log = stamped([started(), user("go"), called("a"), called("b"), used(0.5), answered("b")])
    result, note, end = repair(log)
    assert isinstance(result, ToolResult)
    assert (result.call_id, result.status, result.synthetic, result.turn) == ("a", "cancelled", True, "t1")
    assert result.text == "interrupted before it finished"
    assert isinstance(note, Interruption)
    assert note.reason == "crash"
    assert isinstance(end, TurnEnd)
    assert (end.status, end.code, end.turn) == ("failed", "interrupted", "t1")
    assert (end.usage, end.cost) == (Usage(10, 2), 0.5)
    assert {(draft.seq, draft.ts) for draft in (result, note, end)} == {(0, 0)}


def test_a_turn_without_calls_is_closed() -> None:
    assert kinds(repair(stamped([started(), user("go")]))) == ["interruption", "turn_end"]


def test_a_whole_log_needs_nothing() -> None:
    assert repair([]) == ()
    log = stamped([started(), user("go"), called("a"), answered("a"), said("so"), ended(), queued("queued")])
    assert repair(log) == ()


def test_only_what_stands_after_the_last_end_is_looked_at() -> None:
    log = stamped([started(), user("go"), called("lost"), ended(), started("t2"), user("two", "t2")])
    assert kinds(repair(log)) == ["interruption", "turn_end"]
    assert repair(log)[0].turn == "t2"


def test_a_call_that_waits_for_its_approval_is_parked() -> None:
    log = stamped([started(), user("go"), called("a"), called("b"), asked("a")])
    drafts = repair(log)
    assert [(draft.type, draft.call_id) for draft in drafts if isinstance(draft, ToolResult)] == [
        ("tool_result", "b")
    ]
    assert len(drafts) == 1, "the turn stays open"


def test_a_call_whose_approval_was_decided_had_started() -> None:
    log = stamped([started(), user("go"), called("a"), asked("a"), decided("a")])
    assert kinds(repair(log)) == ["tool_result", "interruption", "turn_end"]
    again = stamped([started(), called("a"), asked("a"), answered("a"), called("a", "m2")])
    assert kinds(repair(again)) == ["tool_result", "interruption", "turn_end"], "another call of the same id"


def test_an_inherited_turn_gets_results_and_no_end() -> None:
    log = stamped([started(), user("go"), called("a"), called("b"), asked("b")])
    assert kinds(repair(log, own_after=5)) == ["tool_result", "tool_result"], (
        "nobody here can answer what was asked"
    )
    assert repair(stamped([started(), user("go")]), own_after=2) == ()
    own = [*log[:2], *stamped([started("t2"), user("two", "t2")], start=2)]
    assert [draft.turn for draft in repair(own, own_after=2)] == ["t2", "t2"]


def test_a_repeated_call_id_gets_as_many_results_as_it_lacks() -> None:
    log = stamped([started(), called("a"), called("a"), answered("a")])
    assert kinds(repair(log)) == ["tool_result", "interruption", "turn_end"]


def test_calls_that_share_an_id_are_parked_together() -> None:
    log = stamped([started(), called("a"), called("a"), asked("a")])
    assert repair(log) == (), "a result for one of them would be taken for the other's"


@given(LOGS, st.integers(0, 14))
@settings(max_examples=100)
def test_repairing_twice_changes_nothing_more(log: list[Any], own_after: int) -> None:
    after = repaired(log, own_after)
    assert repair(after, own_after) == ()


@given(LOGS)
@settings(max_examples=60)
def test_after_a_repair_only_parked_calls_are_open(log: list[Any]) -> None:
    rest = repaired(log)
    while any(isinstance(record, TurnEnd) for record in rest):
        rest = rest[1:]
    waiting = {record.call_id for record in rest if record.type == "approval" and record.phase == "asked"}
    assert {call.call_id for call in unanswered(rest)} <= waiting


@given(NONSENSE, st.integers(0, 99))
@settings(max_examples=60)
def test_no_log_breaks_it(log: list[Any], own_after: int) -> None:
    repair(log, own_after)


def test_every_crash_point_of_a_turn_is_made_valid() -> None:
    turn = [
        started(),
        queued(),
        user("go"),
        thought("x"),
        said("hm"),
        called("a"),
        called("b"),
        answered("b"),
    ]
    whole = stamped([*turn, answered("a"), said("so", "m2"), ended()])
    for cut in range(len(whole) + 1):
        after = repaired(whole[:cut])
        assert not unanswered(after)
        starts = sum(record.type == "turn_start" for record in after)
        assert starts == sum(record.type == "turn_end" for record in after)


@pytest.mark.req("S0-03b")
@given(conversations())
@settings(max_examples=50)
def test_a_transcript_comes_back_as_drafts_with_the_same_content(log: list[Any]) -> None:
    transcript = [record for record in log if record.is_entry]
    drafts = check_snapshot(transcript)
    assert len(drafts) == len(transcript)
    for draft, entry in zip(drafts, transcript, strict=True):
        assert (draft.seq, draft.ts, draft.turn, draft.index, draft.first) == (0, 0, None, None, False)
        assert draft.msg == entry.msg
        for name in ("type", "role", "text", "call_id", "name", "args", "status", "origin"):
            assert getattr(draft, name) == getattr(entry, name)


def test_the_copy_shares_nothing_that_can_change() -> None:
    call = called("a")
    (draft, _) = check_snapshot([call, answered("a")])
    call.args["path"] = "elsewhere"
    assert isinstance(draft, ToolCall)
    assert draft.args == {"path": "a"}


@pytest.mark.req("S0-03")
@pytest.mark.parametrize(
    ("entries", "index"),
    [
        ([user("go"), called("a")], 1),
        ([user("go"), answered("a")], 1),
        ([called("a"), answered("a"), answered("a")], 2),
        ([answered("a"), called("a")], 0),
        ([user("go"), user(" ")], 1),
        ([said("")], 0),
        ([started()], 0),
        ([user("go"), {"type": "message"}], 1),
        ([None], 0),
        ("text", 0),
        ([replace(user("go"), role="tool")], 0),
        ([replace(user("go"), parts=("words",))], 0),
        ([replace(user("go"), parts=None)], 0),
        ([replace(called("a"), call_id=7), answered("a")], 0),
        ([replace(called("a"), args={"x": object()}), answered("a")], 0),
        ([replace(called("a"), args={"x": "\ud800"}), answered("a")], 0),
        ([called("a"), replace(answered("a"), status="fine")], 1),
        ([Message(seq=0, ts=0, role="user", parts=())], 0),
    ],
)
def test_entries_that_are_no_transcript_are_refused_by_index(entries: Any, index: int) -> None:
    with pytest.raises(InvalidSnapshot) as caught:
        check_snapshot(entries)
    assert caught.value.details["index"] == index
    assert f"entry {index} " in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("entries", [None, 7, object()])
def test_what_is_no_sequence_is_refused(entries: Any) -> None:
    with pytest.raises(InvalidSnapshot):
        check_snapshot(entries)


def test_an_empty_snapshot_is_an_empty_transcript() -> None:
    assert check_snapshot([]) == ()
