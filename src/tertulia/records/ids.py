"""Identifiers: strings that sort by time, with a prefix that says what they name."""

import os
import time
from typing import NewType

from .errors import InvalidId

SessionId = NewType("SessionId", str)
ConversationId = NewType("ConversationId", str)
TurnId = NewType("TurnId", str)
ItemId = NewType("ItemId", str)
CallId = NewType("CallId", str)

MAX_ID_LENGTH = 128

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i, l, o, u to misread

_PAIRS = tuple(one + two for one in _ALPHABET for two in _ALPHABET)


def _ten_digits(number: int) -> str:
    """The last 50 bits, most significant first."""
    pairs = _PAIRS
    return (
        pairs[number >> 40 & 1023]
        + pairs[number >> 30 & 1023]
        + pairs[number >> 20 & 1023]
        + pairs[number >> 10 & 1023]
        + pairs[number & 1023]
    )


def _new(prefix: str) -> str:
    """Nine digits of the time, in milliseconds, and ten at random."""
    random = int.from_bytes(os.urandom(7), "big")
    return f"{prefix}_{_ten_digits(time.time_ns() // 1_000_000)[1:]}{_ten_digits(random)}"


def new_session_id() -> SessionId:
    return SessionId(_new("sess"))


def new_conversation_id() -> ConversationId:
    return ConversationId(_new("conv"))


def new_turn_id() -> TurnId:
    return TurnId(_new("turn"))


def new_item_id() -> ItemId:
    return ItemId(_new("item"))


def new_call_id() -> CallId:
    return CallId(_new("call"))


def check_id(value: object, what: str = "id") -> str:
    """The id as given, or InvalidId. Stores accept whatever passes here, `..` and emoji included."""
    if not isinstance(value, str):
        raise InvalidId(f"{what} must be a string, not {type(value).__name__}", value=repr(value)[:80])
    if not value or value.isspace():
        raise InvalidId(f"{what} is empty", value=value)
    if len(value) > MAX_ID_LENGTH:
        raise InvalidId(
            f"{what} has {len(value)} characters; at most {MAX_ID_LENGTH} are allowed", value=value[:80]
        )
    for char in value:
        if ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF:
            raise InvalidId(f"{what} holds the character U+{ord(char):04X}, which no id may", value=value)
    return value
