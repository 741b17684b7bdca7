"""What may be stored of a record."""

import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tertulia.records.codec import decode, encode
from tertulia.records.errors import ConfigError
from tertulia.records.parts import Text, Withheld
from tertulia.records.record import (
    AnyRecord,
    Compaction,
    Message,
    Record,
    ToolCall,
    ToolResult,
    Totals,
    TurnEnd,
    TurnStart,
    Unknown,
)
from tertulia.transcript.retention import Retention, format, parse, project, stricter
from tertulia.transcript.stats import totals
from tests.transcript.build import answered, called, ended, queued, said, stamped, started, thought, user
from tests.transcript.strategies import LOGS, RECORDS, TYPES, of_type

SECOND = 1_000_000
MARK = "MARKERab"  # eight letters that base64 leaves as they are
MARKED = st.just(MARK) | st.text(max_size=3).map(lambda text: MARK + text)
RETENTIONS = st.sampled_from(
    [parse(text) for text in ("full", "headers_only", "none", "ttl:5", "ttl:5:delete")]
)
HEADERS, NONE = parse("headers_only"), parse("none")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("full", Retention()),
        ("headers_only", Retention("headers_only")),
        ("none", Retention("none")),
        ("ttl:3600", Retention("ttl", 3600)),
        ("ttl:90s", Retention("ttl", 90)),
        ("ttl:15m", Retention("ttl", 900)),
        ("ttl:12h:headers_only", Retention("ttl", 43_200)),
        ("ttl:30d:delete", Retention("ttl", 2_592_000, "delete")),
    ],
)
def test_a_retention_is_read_and_written(text: str, expected: Retention) -> None:
    assert parse(text) == parse(expected) == parse(format(expected)) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "FULL",
        "ttl",
        "ttl:",
        "ttl:0",
        "ttl:-1",
        "ttl:1w",
        "ttl:1:drop",
        "ttl:1.5",
        "ttl:" + "9" * 10,
        " full",
    ]
    + [None, 7, b"full", ["full"], Retention("some"), Retention("ttl"), Retention("ttl", 5, "burn")],  # type: ignore[arg-type]  # wrong on purpose
)
def test_anything_else_is_refused_with_what_to_give(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(value)
    assert "ttl:" in str(caught.value.hint)


def test_every_record_type_is_in_the_strategies() -> None:
    assert set(TYPES) == set(typing.get_args(AnyRecord))


@pytest.mark.req("S2-12b")
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("retention", [HEADERS, NONE], ids=format)
def test_no_text_of_a_body_is_in_the_bytes(kind: type[Record], retention: Retention) -> None:
    @given(of_type(kind, MARKED))
    @settings(max_examples=25)
    def check(record: Any) -> None:
        stored = project(record, retention, now=0)
        assert stored is None or MARK.encode() not in encode(stored)

    check()


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_the_marker_can_be_found_where_nothing_is_withheld(kind: type[Record]) -> None:
    """Else the test above would prove nothing."""
    seen: list[bool] = []

    @given(of_type(kind, MARKED))
    @settings(max_examples=40, derandomize=True, database=None)
    def check(record: Any) -> None:
        seen.append(MARK.encode() in encode(record))

    check()
    assert any(seen), "no field of this type holds content, not even refs"


@given(RECORDS, RETENTIONS, st.integers(0, 10).map(lambda n: n * SECOND))
@settings(max_examples=100)
def test_projecting_twice_is_projecting_once_and_keeps_seq_type_and_ts(
    record: Any, retention: Retention, now: int
) -> None:
    once = project(record, retention, now)
    if once is not None:
        assert project(once, retention, now) == once
        assert (once.seq, once.ts, once.type) == (record.seq, record.ts, record.type)
        assert decode(encode(once)).seq == record.seq or isinstance(record, Unknown)


@pytest.mark.req("S2-12b")
@given(RECORDS)
@settings(max_examples=100)
def test_headers_keep_all_that_is_no_body(record: Any) -> None:
    stored = project(record, HEADERS, 0)
    assert stored is not None
    for name in (
        "turn",
        "msg",
        "first",
        "index",
        "origin",
        "call_id",
        "name",
        "status",
        "role",
        "id",
        "through",
    ):
        assert getattr(stored, name, None) == getattr(record, name, None)
    assert stored.refs == ()
    assert stored.withheld or stored == record


@pytest.mark.req("S2-12b", "S4-05a")
def test_headers_of_a_tool_run() -> None:
    call, result = stamped([called("a"), answered("a", "secret")])
    assert project(call, HEADERS, 0) == replace(call, args={}, withheld=True)
    stored = project(result, HEADERS, 0)
    assert stored == replace(result, parts=(Withheld(of="text"),), withheld=True)
    assert isinstance(stored, ToolResult)
    assert (stored.tool_name, stored.status, stored.tool_call_id) == ("read", "ok", "a")
    assert stored.text == "[text withheld]"
    summary = project(Compaction(seq=1, ts=1, id="k9", summary="secret", through=3, entries=2), HEADERS, 0)
    assert summary == Compaction(seq=1, ts=1, id="k9", summary="", through=3, entries=2, withheld=True)


@pytest.mark.req("S2-12b")
@given(LOGS)
@settings(max_examples=100)
def test_headers_count_as_the_bodies_did(log: list[Any]) -> None:
    assert totals(project(record, HEADERS, 0) for record in log) == totals(log)


def test_blank_text_stays_blank() -> None:
    stored = project(said(" "), HEADERS, 0)
    assert isinstance(stored, Message)
    assert stored.parts == (Text(text=""),)


@pytest.mark.req("S2-12b")
def test_none_keeps_that_a_turn_began_and_ended_and_how() -> None:
    log = stamped(
        [started(), user("go"), called("a"), answered("a"), ended(status="failed", code="refused", error="…")]
    )
    start, *between, end = [project(record, NONE, 0) for record in log]
    assert between == [None, None, None]
    assert isinstance(start, TurnStart)
    assert isinstance(end, TurnEnd)
    assert (end.status, end.code, end.error, end.withheld) == ("failed", "refused", None, True)
    counted = TurnStart(seq=1, ts=1, turn="t1", totals=Totals(9, 9), refs=("blob_1",))
    assert project(counted, NONE, 0) == replace(counted, refs=())  # the journal counts what is stored


def test_full_is_the_record_itself_and_so_is_a_header_without_body() -> None:
    record = said("words")
    assert project(record, parse("full"), 10**18) is record
    for record in (started(), ended(), thought(""), queued()):
        assert project(record, HEADERS, 0) is record


def test_ttl_is_full_until_the_record_is_that_old() -> None:
    record = replace(called("a"), ts=10 * SECOND)
    degrade, delete = parse("ttl:5"), parse("ttl:5:delete")
    for retention in (degrade, delete):
        assert project(record, retention, 15 * SECOND) is record
        assert project(record, retention, 0) is record, "a clock that stepped back expires nothing"
    late = project(record, degrade, 15 * SECOND + 1)
    assert isinstance(late, ToolCall)
    assert (late.args, late.withheld) == ({}, True)
    assert project(record, delete, 15 * SECOND + 1) is None


def test_an_unknown_record_keeps_its_header_only() -> None:
    raw = b'{"type":"novelty","seq":4,"ts":5,"body":"secret"}'
    stored = project(decode(raw), HEADERS, 0)
    assert stored is not None
    again = decode(encode(stored))
    assert isinstance(again, Unknown)
    assert (again.seq, again.ts, again.name) == (4, 5, "novelty")
    assert b"secret" not in again.raw


@given(RETENTIONS, RETENTIONS, RETENTIONS)
def test_the_stricter_of_two_is_an_order(one: Retention, other: Retention, third: Retention) -> None:
    assert stricter(one, one) == one
    assert stricter(one, other) == stricter(other, one)
    assert stricter(stricter(one, other), third) == stricter(one, stricter(other, third))


def test_the_stricter_of_two() -> None:
    assert stricter(parse("full"), HEADERS) == HEADERS
    assert stricter(NONE, HEADERS) == NONE
    assert stricter(parse("ttl:1:delete"), HEADERS) == HEADERS
    assert stricter(parse("ttl:10:delete"), parse("ttl:5")) == parse("ttl:5:delete")
