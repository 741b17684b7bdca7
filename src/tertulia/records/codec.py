"""Records to bytes and back: one JSON object each, versioned.

Reading never loses anything: a type from a newer minor version becomes `Unknown` with its bytes as they were;
a newer major version is refused by name; an older one goes through the pure functions of `UPCASTERS`, one version
at a time.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from .errors import InvalidInput, RecordCorrupt, VersionTooNew
from .record import MAJOR, AnyRecord, Unknown

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: Mapping[int, Upcaster] = {}
"""From version n to n + 1. None yet: the format is at its first version."""


class _Header(msgspec.Struct):
    seq: int
    ts: int
    type: str
    v: int = 1


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
_header = msgspec.json.Decoder(_Header)
_BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode(record: AnyRecord) -> bytes:
    """The bytes that go to disk and to every subscriber. An unknown record gives back what was read."""
    if isinstance(record, Unknown):
        return record.raw
    if record.v != MAJOR:
        record = msgspec.structs.replace(record, v=MAJOR)
    try:
        return _encoder.encode(record)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(
            f"a {record.type} record holds a value that JSON cannot carry: {error}",
            hint="give strings, numbers, booleans, None, lists and dicts with string keys",
        ) from error


def decode(data: bytes, *, major: int = MAJOR, upcasters: Mapping[int, Upcaster] = UPCASTERS) -> AnyRecord:
    """The record in these bytes. Raises RecordCorrupt or VersionTooNew, nothing else, whatever the bytes."""
    try:
        record = _decoder.decode(data)
    except _BAD_JSON:
        return _decode_foreign(data, major, upcasters)
    if record.v == major and not isinstance(record, Unknown):
        return record
    return _decode_foreign(data, major, upcasters)


def decode_lenient(data: bytes, seq: int) -> AnyRecord:
    """As decode, but unreadable bytes become an Unknown named `corrupt`: one never hides the rest."""
    try:
        return decode(data)
    except RecordCorrupt:
        return Unknown(seq=seq, ts=0, name="corrupt", raw=data)


def _decode_foreign(data: bytes, major: int, upcasters: Mapping[int, Upcaster]) -> AnyRecord:
    try:
        header = _header.decode(data)
    except _BAD_JSON as error:
        raise RecordCorrupt(f"bytes that are no record: {error}") from error
    if header.v > major:
        raise VersionTooNew("record format", header.v, major)
    if header.v < major:
        return _upcast(data, header, major, upcasters)
    return Unknown(seq=header.seq, ts=header.ts, name=header.type, raw=bytes(data))


def _upcast(data: bytes, header: _Header, major: int, upcasters: Mapping[int, Upcaster]) -> AnyRecord:
    try:
        fields: dict[str, Any] = msgspec.json.decode(data)
        for version in range(header.v, major):
            if version not in upcasters:
                raise RecordCorrupt(f"record {header.seq} claims version {version}, which never existed")
            fields = {**upcasters[version](fields), "v": version + 1}
    except (*_BAD_JSON, LookupError, TypeError, ValueError, AttributeError) as error:
        raise RecordCorrupt(f"record {header.seq} is no record of version {header.v}: {error}") from error
    try:
        record: AnyRecord = msgspec.convert(fields, AnyRecord)
        return record
    except msgspec.ValidationError:
        return Unknown(seq=header.seq, ts=header.ts, v=major, name=header.type, raw=bytes(data))
