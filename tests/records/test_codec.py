"""Records to bytes and back, over all versions and whatever the bytes."""

import json
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertulia.records.codec import decode, decode_lenient, encode
from tertulia.records.errors import InvalidInput, RecordCorrupt, VersionTooNew
from tertulia.records.parts import AnyPart
from tertulia.records.record import (
    AnyRecord,
    Custom,
    Hit,
    Info,
    Message,
    ToolCall,
    ToolResult,
    Totals,
    Unknown,
    Usage,
)
from tests.transcript.strategies import RECORDS

GOLDEN = Path(__file__).parent / "golden"
V1 = (GOLDEN / "v1.jsonl").read_bytes().splitlines()
V0 = (GOLDEN / "v0.jsonl").read_bytes().splitlines()


def upcast(fields: dict[str, Any]) -> dict[str, Any]:
    """From the version 0 that never was: text was one field, and arguments were JSON in a string."""
    fields = dict(fields)
    if fields["type"] == "message":
        fields["parts"] = [{"type": "text", "text": fields.pop("text")}]
    if fields["type"] == "tool_call":
        fields["args"] = json.loads(fields.pop("arguments"))
    return fields


@pytest.mark.parametrize("line", V1, ids=lambda line: json.loads(line)["type"])
def test_a_record_of_version_1_is_read_and_written_as_it_is(line: bytes) -> None:
    record = decode(line)
    fields = json.loads(line)
    assert (record.seq, record.ts, record.v) == (fields["seq"], fields["ts"], 1)
    assert isinstance(record, Unknown) == (fields["type"] == "novelty")
    assert encode(record) == line


def test_the_fixture_holds_every_type_and_every_field() -> None:
    """So that no field is renamed, retyped or dropped unnoticed."""
    records = [decode(line) for line in V1]
    assert {type(record) for record in records} == set(typing.get_args(AnyRecord))
    parts = [part for record in records if isinstance(record, Message) for part in record.parts]
    assert {type(part) for part in parts} == set(typing.get_args(AnyPart))
    stands = {(type(item), name) for item in (*records, *parts) for name in set_fields(item)}
    common = {"seq", "ts", "v", "turn", "msg", "first", "index", "origin", "refs", "withheld"}
    for kind in (*typing.get_args(AnyRecord), *typing.get_args(AnyPart)):
        missing = {name for name in kind.__struct_fields__ if (kind, name) not in stands} - common
        if kind is not Unknown:
            assert missing <= {"ref", "url", "data", "name", "parts"}, f"{kind.__name__} misses {missing}"


def test_what_the_bytes_leave_out_means_what_it_always_meant() -> None:
    """A default is part of the format: another one would change every record that was written without it."""
    kinds = (*typing.get_args(AnyRecord), *typing.get_args(AnyPart), Hit, Usage, Totals)
    now = {kind.__name__: defaults(kind) for kind in kinds}
    assert json.loads(msgspec.json.encode(now)) == json.loads((GOLDEN / "v1.defaults.json").read_bytes())


def defaults(kind: Any) -> dict[str, Any]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    return {
        name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for name, field in fields.items()
        if not field.required
    }


def set_fields(item: Any) -> set[str]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(item)}
    return {name for name, default in defaults.items() if getattr(item, name) != default}


@pytest.mark.req("S4-05a")
def test_a_stored_tool_result_has_tool_name_status_and_call_id() -> None:
    results = [json.loads(line) for line in V1 if b'"tool_result"' in line]
    assert [(row["tool_name"], row["status"], row["tool_call_id"]) for row in results] == [
        ("read", "ok", "call_1"),
        ("shell", "denied", "call_2"),
    ]
    again = decode(V1[10])
    assert isinstance(again, ToolResult)
    assert (again.tool_name, again.status, again.tool_call_id) == ("read", "ok", "call_1")


def test_an_older_version_goes_through_its_upcasters() -> None:
    message, call, other = [decode(line, upcasters={0: upcast}) for line in V0]
    assert isinstance(message, Message)
    assert (message.v, message.text, message.index) == (1, "look it up", 0)
    assert isinstance(call, ToolCall)
    assert call.args == {"path": "a.txt"}
    assert isinstance(other, Unknown)
    assert (other.seq, other.name, encode(other)) == (3, "novelty", V0[2])


def test_versions_are_upcast_one_at_a_time() -> None:
    seen: list[int] = []

    def step(fields: dict[str, Any]) -> dict[str, Any]:
        seen.append(fields["v"])
        return upcast(fields) if fields["v"] == 0 else fields

    record = decode(V0[0], major=3, upcasters={0: step, 1: step, 2: step})
    assert (record.v, seen) == (3, [0, 1, 2])
    no_version = decode(V1[-2], major=2, upcasters={1: lambda fields: {**fields, "origin": "moved"}})
    assert (no_version.v, no_version.origin) == (2, "moved"), "what says no version is of version 1, for ever"


def test_a_version_that_never_was_is_corrupt_and_so_is_what_an_upcaster_cannot_read() -> None:
    with pytest.raises(RecordCorrupt, match="version 0"):
        decode(V0[0])
    with pytest.raises(RecordCorrupt):
        decode(b'{"v":0,"type":"message","seq":1,"ts":1}', upcasters={0: upcast})
    with pytest.raises(RecordCorrupt):
        decode(b'{"v":0,"type":"info","seq":1,"ts":1,"title":"\xff"}', upcasters={0: upcast})


def test_a_newer_major_version_is_refused_by_name() -> None:
    for read in (decode, lambda data: decode_lenient(data, 1)):
        with pytest.raises(VersionTooNew) as caught:
            read(b'{"type":"message","seq":1,"ts":1,"v":7,"shape":"new"}')
        assert (caught.value.found, caught.value.supported) == (7, 1)
        assert "version 7" in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"novelty","seq":4,"ts":5, "what" : [1, 2.50, "\\u00e9"]}',
        b'{"type":"message","seq":4,"ts":5,"role":"narrator","parts":[]}',
        b'{"type":"message","seq":4,"ts":5,"role":"user","parts":[{"type":"hologram","depth":3}]}',
        b'{"type":"unknown","seq":4,"ts":5,"name":"forged","raw":"aGVsbG8="}',
    ],
)
def test_what_this_version_does_not_know_is_kept_byte_for_byte(raw: bytes) -> None:
    record = decode(raw)
    assert isinstance(record, Unknown)
    assert (record.seq, record.ts, record.name) == (4, 5, json.loads(raw)["type"])
    assert encode(record) == raw


def test_a_field_of_a_newer_minor_version_hides_nothing() -> None:
    record = decode(b'{"type":"info","seq":1,"ts":1,"title":"x","colour":"red"}')
    assert record == Info(seq=1, ts=1, title="x")


def test_what_is_written_is_of_this_version_whatever_it_was_read_as() -> None:
    assert decode(encode(Info(seq=1, ts=1, v=9, title="x"))) == Info(seq=1, ts=1, title="x")


def test_unreadable_bytes_become_an_unknown_where_the_rest_must_be_read() -> None:
    record = decode_lenient(b'{"type":"mess', 9)
    assert record == Unknown(seq=9, ts=0, name="corrupt", raw=b'{"type":"mess')
    assert decode_lenient(V1[0], 1) == decode(V1[0])


@pytest.mark.parametrize("value", [object(), {1, "a"}.__iter__(), "\ud800", {(1, 2): 3}, 1j])
def test_what_json_cannot_carry_is_refused_before_anything_is_written(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        encode(Custom(seq=1, ts=1, kind="note", data=value))
    assert "custom" in caught.value.message
    assert caught.value.hint


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidInput):
        encode(Custom(seq=1, ts=1, kind="note", data=loop))


@given(RECORDS)
@settings(max_examples=200)
def test_what_is_written_is_read_again(record: Any) -> None:
    data = encode(record)
    again = decode(data)
    assert type(again) is type(record)
    assert encode(again) == data
    assert again == record or isinstance(record, Unknown)


def check_total(data: bytes) -> None:
    try:
        record = decode(data)
    except RecordCorrupt:
        assert decode_lenient(data, 1) == Unknown(seq=1, ts=0, name="corrupt", raw=data)
    except VersionTooNew:
        with pytest.raises(VersionTooNew):
            decode_lenient(data, 1)
    else:
        assert encode(decode_lenient(data, 1)) == encode(record)


@given(st.binary(max_size=60))
@settings(max_examples=150)
def test_no_bytes_crash_it(data: bytes) -> None:
    check_total(data)


@given(st.sampled_from(V1), st.data())
@settings(max_examples=200)
def test_no_damage_to_a_record_crashes_it(line: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, min(len(line), start + 8)))
    check_total(line[:start] + data.draw(st.binary(max_size=4)) + line[end:])


WRONG = st.sampled_from([None, True, -1, 10**30, 1.5, "", "x", [], {}, [[]], {"type": "text"}])


@given(st.sampled_from(V1), st.data())
@settings(max_examples=200)
def test_no_wrong_value_crashes_it(line: bytes, data: st.DataObject) -> None:
    fields = json.loads(line)
    fields[data.draw(st.sampled_from([*fields, "v"]))] = data.draw(WRONG)
    check_total(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"type":"custom","seq":1,"ts":1,"kind":"a","data":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"type":"custom","seq":1,"ts":1,"kind":"a","data":1e999}',
        b'{"type":"custom","seq":1,"ts":1,"kind":"\xff"}',
        b'{"type":"x","seq":1,"ts":1,"v":' + b"9" * 5_000 + b"}",
        b'{"type":"\\ud800","seq":1,"ts":1}',
        b'{"type":"info","seq":1,"ts":1}{"type":"info","seq":2,"ts":2}',
        b"\x00" * 4096,
    ],
    ids=range(11),
)
def test_no_bytes_of_known_malice_crash_it(data: bytes) -> None:
    check_total(data)
