"""A record's events: the same live and in replay."""

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tertulia.records.codec import decode, encode
from tertulia.records.event import AnyEvent, Done, Event, IterationStart, TextDelta
from tertulia.records.parts import Data, Text
from tertulia.records.record import AnyRecord, Custom, Message, Queue, Record, ToolResult, Unknown
from tertulia.transcript.replay import MAKERS, Envelope, events, joined, transcript_events
from tests.transcript.build import (
    answered,
    asked,
    called,
    decided,
    ended,
    interrupted,
    said,
    stamped,
    started,
    thought,
    used,
    user,
)
from tests.transcript.strategies import LOGS, RECORDS, TYPES, conversations, of_type

HERE = Envelope("sess_1", "conv_1")
DECODER = msgspec.json.Decoder(AnyEvent)


def made(record: Any) -> tuple[Any, ...]:
    return events(record, HERE)


def kinds(records: list[Any]) -> list[str]:
    return [event.type for record in records for event in made(record)]


def test_every_record_type_there_is_makes_events() -> None:
    assert set(MAKERS) == set(typing.get_args(AnyRecord)) == set(TYPES)


@given(RECORDS)
@settings(max_examples=100)
def test_a_record_makes_one_durable_event_and_companions_before_it(record: Any) -> None:
    *companions, durable = made(record)
    assert durable.seq == record.seq
    assert all(event.seq is None for event in companions)
    for event in (*companions, durable):
        assert (event.session_id, event.conversation_id, event.ts) == ("sess_1", "conv_1", record.ts)
        assert event.turn_id == (None if isinstance(record, Queue) else record.turn)


@pytest.mark.req("S0-09")
@given(RECORDS)
@settings(max_examples=100)
def test_all_events_of_an_entry_have_its_index_and_others_have_none(record: Any) -> None:
    for event in made(record):
        assert event.source == ("transcript" if record.is_entry else "session")
        assert event.entry_index == (record.index if record.is_entry else None)


@pytest.mark.req("S0-09b")
@given(LOGS)
@settings(max_examples=50)
def test_an_event_s_index_leads_to_its_entry(log: list[Any]) -> None:
    transcript = [record for record in log if record.is_entry]
    found = transcript_events(log, HERE)
    for event in found:
        assert event.entry_index is not None
        entry = transcript[event.entry_index]
        assert event.seq in (None, entry.seq)
    assert [event.type for event in found if event.seq] == [entry.type for entry in transcript]


def test_a_turn_reads_in_order() -> None:
    log = [
        started(),
        user("go"),
        thought("x"),
        said("look"),
        called("a"),
        used(),
        answered("a"),
        said("so", "m2"),
        ended(),
    ]
    assert kinds(stamped(log)) == [
        "turn_start",
        "message",
        "iteration_start",
        "reasoning",
        "text",
        "message",
        "tool_call",
        "usage",
        "tool_result",
        "iteration_start",
        "text",
        "message",
        "done",
    ]


def test_an_iteration_starts_with_whatever_the_message_begins_with() -> None:
    for record in (thought("x"), said("x"), called("a")):
        begin = made(replace(record, seq=1, first=True))[0]
        assert isinstance(begin, IterationStart)
        assert begin.message_id == "m1"
        assert not isinstance(made(replace(record, seq=1, first=False))[0], IterationStart)
    assert kinds([replace(user("go"), first=True, msg="m0")]) == ["message"]
    assert kinds([replace(answered("a"), first=True)]) == ["tool_result"]


def test_a_message_that_says_nothing_has_no_text_event() -> None:
    empty = Message(seq=1, ts=1, role="assistant", parts=())
    assert kinds([empty, replace(user("hi"), role="system")]) == ["message", "message"]


@pytest.mark.req("S4-01c")
def test_an_error_comes_before_a_failed_end_and_only_there() -> None:
    error, done = made(ended(status="failed", code="overloaded", error="too much"))
    assert (error.type, error.code, error.message) == ("error", "overloaded", "too much")
    assert isinstance(done, Done)
    assert (done.status, done.code) == ("failed", "overloaded")
    for status in ("completed", "cancelled", "timed_out"):
        assert kinds([ended(status=status)]) == ["done"]
    assert made(ended(status="failed"))[0].code == "failed"


@pytest.mark.req("S4-01b")
def test_a_result_names_its_call_and_announces_charts() -> None:
    parts = (Text(text="see"), Data(name="chart_data", value={"x": [1]}), Data(name="rows", value=2))
    chart, result = made(replace(answered("a"), parts=parts, index=4))
    assert (chart.type, chart.chart_data, chart.tool_call_id) == ("chart", {"x": [1]}, "a")
    assert (chart.source, chart.entry_index) == ("transcript", 4)
    assert (result.tool_call_id, result.name, result.status, result.text) == ("a", "read", "ok", "see")
    assert made(called("a"))[0].tool_call_id == "a"


def test_approvals_are_asked_and_resolved() -> None:
    request, resolved = made(asked("a"))[0], made(decided("a", "deny"))[0]
    assert (request.type, request.approval_id, request.tool_call_id) == ("approval_request", "a-a", "a")
    assert (resolved.type, resolved.decision) == ("approval_resolved", "deny")


def test_an_interruption_is_a_warning() -> None:
    (event,) = made(interrupted())
    assert (event.type, event.code, event.message) == (
        "warning",
        "interrupted",
        "the turn was interrupted: cancelled",
    )


def test_what_changes_the_conversation_is_a_conversation_event_with_its_fields() -> None:
    (event,) = made(Custom(seq=3, ts=3, kind="late_result", data={"a": 1}))
    assert (event.type, event.kind, event.detail) == (
        "conversation",
        "custom",
        {"kind": "late_result", "data": {"a": 1}},
    )
    (event,) = made(Unknown(seq=3, ts=3, name="novelty", raw=b"{}"))
    assert (event.kind, event.detail) == ("unknown", {"name": "novelty"})


@given(RECORDS)
@settings(max_examples=100)
def test_every_event_can_go_over_a_wire(record: Any) -> None:
    for event in made(record):
        wire = msgspec.json.encode(event)
        assert msgspec.json.encode(DECODER.decode(wire)) == wire


@pytest.mark.req("S2-14c")
@given(st.sampled_from([kind for kind in TYPES if kind is not Unknown]).flatmap(of_type))
@settings(max_examples=100)
def test_replay_from_bytes_gives_the_live_events(record: Any) -> None:
    assert msgspec.json.encode(made(decode(encode(record)))) == msgspec.json.encode(made(record))


@pytest.mark.req("S2-14c")
@given(conversations(), st.data())
@settings(max_examples=50)
def test_joined_deltas_are_the_replay(log: list[Any], data: st.DataObject) -> None:
    replayed = [event for record in log for event in made(record)]
    live: list[Any] = []
    for event in replayed:
        if isinstance(event, TextDelta):
            cut = data.draw(st.integers(1, len(event.text)))
            live += [replace(event, text=text) for text in (event.text[:cut], event.text[cut:]) if text]
        else:
            live.append(event)
    assert joined(live) == replayed == joined(replayed)


def test_texts_of_two_messages_or_with_something_between_stay_apart() -> None:
    def text(words: str, msg: str = "m1") -> Event:
        return TextDelta(text=words, message_id=msg)

    pause = IterationStart(message_id="m1")
    stream: list[Any] = [text("a"), text("b"), text("c", "m2"), text("d", "m2"), pause, text("e", "m2")]
    assert joined(stream) == [text("ab"), text("cd", "m2"), pause, text("e", "m2")]
    assert joined([]) == []
    assert joined([text("a"), text("b")]) == [text("ab")]


def test_a_subclass_of_no_known_type_is_a_defect_that_shows() -> None:
    class Alien(Record, tag="alien", frozen=True, kw_only=True):
        pass

    with pytest.raises(KeyError):
        made(Alien(seq=1, ts=1))
    assert ToolResult in MAKERS
