"""Hypothesis strategies for records: each type, nonsense logs, and logs as a conversation writes them.

Ids come from small sets, so that they collide. `free` is what stands in every field that holds content.
"""

import base64
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from tertulia.records.parts import Blob, Data, File, Image, Text, Withheld
from tertulia.records.record import (
    AnyRecord,
    Approval,
    Branched,
    Compaction,
    Custom,
    Hit,
    Info,
    Interruption,
    Label,
    Message,
    ModelUsage,
    Queue,
    Reasoning,
    Record,
    Retrieval,
    Settings,
    Tombstone,
    ToolCall,
    ToolResult,
    Totals,
    TurnEnd,
    TurnStart,
    Unknown,
    Usage,
)
from tests.transcript.build import (
    answered,
    called,
    ended,
    interrupted,
    queued,
    said,
    stamped,
    started,
    thought,
    used,
    user,
)

TEXT = st.text(max_size=12)
SMALL = st.integers(0, 9)
CALL_IDS = st.sampled_from(("c1", "c2", "c3"))
TURNS = st.sampled_from((None, "t1", "t2"))
MSGS = st.sampled_from((None, "m1", "m2", "m3"))
ORIGINS = st.sampled_from((None, "steer", "follow_up", "compaction", "interruption", "hook"))
NAMES = st.sampled_from(("read", "shell"))
COSTS = st.none() | st.integers(0, 8).map(lambda n: n / 4)
USAGES = st.builds(Usage, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL)
TOTALS = st.builds(Totals, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, USAGES, COSTS)


def values(free: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[Any]:
    """What JSON can carry."""
    leaves = st.none() | st.booleans() | st.integers(-5, 5) | free
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(free, inner, max_size=2),
        max_leaves=4,
    )


def parts(free: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[tuple[Any, ...]]:
    one = st.one_of(
        st.builds(Text, text=free),
        st.builds(
            Image, media=st.just("image/png"), data=free.map(lambda text: base64.b64decode(_base64(text)))
        ),
        st.builds(File, media=st.just("text/plain"), url=free, name=free),
        st.builds(Data, name=st.just("chart_data") | free, value=values(free)),
        st.builds(
            Blob, ref=free, of=st.sampled_from(("text", "data")), size=SMALL, head=free, name=st.none() | free
        ),
        st.builds(Withheld, of=st.sampled_from(("text", "image"))),
    )
    return st.lists(one, max_size=3).map(tuple)


def _base64(text: str) -> bytes:
    """The text itself where base64 can say it, so that a marker in it stands in the encoded bytes."""
    body = "".join(char for char in text if char.isascii() and char.isalnum())
    return (body + "A" * (-len(body) % 4)).encode()


def _hits(free: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Hit, ...]]:
    hit = st.builds(
        Hit,
        id=free,
        source=free,
        title=free,
        snippet=free,
        score=st.just(0.5),
        scores=st.dictionaries(free, st.just(1.0)),
    )
    return st.lists(hit, max_size=2).map(tuple)


def _unknown(seq: int, ts: int, body: str) -> Unknown:
    raw = msgspec.json.encode({"type": "novelty", "seq": seq, "ts": ts, "body": body})
    return Unknown(seq=seq, ts=ts, name="novelty", raw=raw)


FIELDS: dict[type[Record], Callable[[st.SearchStrategy[str]], dict[str, st.SearchStrategy[Any]]]] = {
    Message: lambda free: {
        "role": st.sampled_from(("user", "assistant", "system")),
        "parts": parts(free),
        "status": st.sampled_from(("ok", "ok", "aborted")),
    },
    ToolCall: lambda free: {
        "call_id": CALL_IDS,
        "name": NAMES,
        "args": st.dictionaries(free, values(free), max_size=2),
        "invalid": st.none() | free,
        "reported": st.booleans(),
    },
    ToolResult: lambda free: {
        "call_id": CALL_IDS,
        "name": NAMES,
        "status": st.sampled_from(("ok", "error", "cancelled", "denied", "timeout")),
        "parts": parts(free),
        "synthetic": st.booleans(),
    },
    TurnStart: lambda free: {"item": st.none() | st.just("i1"), "model": st.just("m"), "totals": TOTALS},
    TurnEnd: lambda free: {
        "status": st.sampled_from(("completed", "cancelled", "timed_out", "failed")),
        "code": st.none() | st.just("overloaded"),
        "error": st.none() | free,
        "stop_reason": st.none() | st.just("end"),
        "usage": USAGES,
        "cost": COSTS,
        "elapsed": st.just(0.25),
    },
    Reasoning: lambda free: {"provider": st.just("p"), "blob": free, "text": free},
    Interruption: lambda free: {"reason": st.sampled_from(("cancelled", "crash"))},
    Compaction: lambda free: {"id": st.just("k1"), "summary": free, "through": SMALL, "entries": SMALL},
    Retrieval: lambda free: {"query": free, "hits": _hits(free)},
    Approval: lambda free: {
        "approval": st.sampled_from(("a1", "a2")),
        "phase": st.sampled_from(("asked", "decided")),
        "call_id": CALL_IDS,
        "tool": NAMES,
        "summary": free,
        "key": st.lists(free, max_size=2).map(tuple),
        "decision": st.none() | st.sampled_from(("allow", "deny", "cancelled")),
        "feedback": st.none() | free,
    },
    Queue: lambda free: {
        "item": st.sampled_from(("i1", "i2")),
        "state": st.sampled_from(("queued", "held", "delivered", "dropped", "failed")),
        "source": st.sampled_from(("prompt", "prompt_follow_up", "steer", "follow_up", "send_message")),
        "delivered": st.none() | SMALL,
    },
    Branched: lambda free: {
        "branch": SMALL,
        "parent": SMALL,
        "at": SMALL,
        "conversation": st.none() | st.just("x"),
    },
    Label: lambda free: {"target": SMALL, "text": free},
    Info: lambda free: {"title": st.none() | free, "archived": st.none() | st.booleans()},
    Settings: lambda free: {"values": st.dictionaries(free, values(free), max_size=2)},
    ModelUsage: lambda free: {"model": st.just("m"), "usage": USAGES, "cost": COSTS},
    Custom: lambda free: {"kind": st.just("note"), "data": values(free)},
    Tombstone: lambda free: {"through": SMALL},
}


def of_type(kind: type[Record], free: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[Any]:
    """Records of one type, at any seq."""
    if kind is Unknown:
        return st.builds(_unknown, st.integers(0, 99), st.integers(0, 99), free)
    return st.builds(
        kind,
        seq=st.integers(0, 99),
        ts=st.integers(0, 99),
        turn=TURNS,
        msg=MSGS,
        first=st.booleans(),
        index=st.none() | SMALL,
        origin=ORIGINS,
        refs=st.lists(free, max_size=1).map(tuple),
        **FIELDS[kind](free),
    )


TYPES: tuple[type[Record], ...] = (*FIELDS, Unknown)
RECORDS: st.SearchStrategy[Any] = st.sampled_from(TYPES).flatmap(of_type)
TALK: tuple[type[Record], ...] = (Message, ToolCall, ToolResult, Reasoning, Approval, TurnStart, TurnEnd)

NONSENSE = st.lists(st.sampled_from(TYPES + TALK * 3).flatmap(of_type), max_size=10)
"""Records of any type in any order, whatever their seqs."""

LOGS = NONSENSE.map(stamped)
"""The same with the stamps that a journal gives: the nonsense is only in what they say."""


@st.composite
def conversations(draw: st.DrawFn) -> list[AnyRecord]:
    """Logs as a conversation writes them: turns of messages, calls each with its result, and what rides along."""
    records: list[Any] = []
    for number in range(draw(st.integers(0, 3))):
        turn = f"t{number}"
        records += (started(turn), queued(), user(f"ask {number}", turn))
        for step in range(draw(st.integers(0, 3))):
            records += draw(_iteration(turn, f"{turn}m{step}"))
        if draw(st.booleans()):
            records.append(interrupted())
        records.append(ended(turn))
    return stamped(records)


@st.composite
def _iteration(draw: st.DrawFn, turn: str, msg: str) -> list[Any]:
    records: list[Any] = []
    if draw(st.booleans()):
        records.append(thought("b", msg))
    if draw(st.booleans()):
        records.append(said(f"answer {msg}", msg, turn))
    names = [f"{msg}c{n}" for n in range(draw(st.integers(0, 3)))]
    records += [called(name, msg, turn) for name in names]
    for name in draw(st.permutations(names)):
        records.append(answered(name, f"result of {name}", turn))
        if draw(st.integers(0, 4)) == 0:
            records.append(user(f"steer {name}", turn, "steer"))
    records.append(used(draw(COSTS), turn))
    return records
