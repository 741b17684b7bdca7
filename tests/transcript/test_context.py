"""What a model request carries."""

import gc
import time
import tracemalloc
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tertulia.records.parts import Text, Withheld
from tertulia.records.record import Label, Message
from tertulia.transcript.context import NO_RESULT, Context, ModelMessage, View
from tests.transcript.build import (
    answered,
    called,
    compacted,
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
from tests.transcript.strategies import LOGS, NONSENSE, conversations


def context(records: Iterable[Any]) -> Context:
    folded = Context()
    for record in records:
        folded.add(record)
    return folded


def view(records: Iterable[Any]) -> View:
    return context(records).view()


def told(messages: Iterable[ModelMessage]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


def check_valid(messages: Iterable[ModelMessage]) -> None:
    """Every provider's rule: calls are followed at once by one message with their results, in order, and only there."""
    waiting: tuple[str, ...] = ()
    for message in messages:
        got = tuple(result.call_id for result in message.results)
        assert got == waiting
        assert (message.role == "tool") == bool(got)
        assert not message.calls or message.role == "assistant"
        assert message.parts or message.calls or message.results
        waiting = tuple(call.call_id for call in message.calls)
    assert not waiting


@pytest.mark.req("S2-04c")
def test_a_conversation_reads_as_it_was_held() -> None:
    first = [started(), queued(), user("one"), said("1"), used(), ended()]
    second = [started("t2"), queued(), user("two", "t2"), said("2", "m2", "t2"), ended("t2")]
    assert told(view(stamped([*first, *second]))) == [
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
        ("assistant", "2"),
    ]


@pytest.mark.req("S2-04c", "S4-01b")
def test_parallel_calls_are_one_message_and_their_results_one_in_call_order_before_a_steer() -> None:
    log = [
        user("go"),
        thought("sealed"),
        said("looking"),
        called("a"),
        called("b"),
        answered("b", "B"),
        user("also", origin="steer"),
        answered("a", "A"),
    ]
    messages = view(stamped(log))
    assert told(messages) == [("user", "go"), ("assistant", "looking"), ("tool", "A\nB"), ("user", "also")]
    assert [call.call_id for call in messages[1].calls] == ["a", "b"]
    assert [result.call_id for result in messages[2].results] == ["a", "b"]
    assert [item.blob for item in messages[1].reasoning] == ["sealed"]
    assert [message.until for message in messages] == [1, 8, 8, 7]
    assert messages[3].origin == "steer"


def test_one_message_is_regrouped_whatever_stands_between_its_records() -> None:
    log = stamped(
        [
            user("go"),
            said("one"),
            Label(seq=0, ts=0, target=1, text="x"),
            called("a"),
            said("two"),
            answered("a"),
        ]
    )
    assert told(view(log)) == [("user", "go"), ("assistant", "one\ntwo"), ("tool", "done")]


def test_calls_without_a_message_id_that_follow_each_other_are_one_message() -> None:
    log = stamped(
        [user("go"), said("x", None), called("a", None), called("b", None), answered("a"), answered("b")]
    )
    assert [message.role for message in view(log)] == ["user", "assistant", "tool"]
    log = stamped([called("a", None), answered("a"), called("b", None), answered("b")])
    assert [message.role for message in view(log)] == ["assistant", "tool", "assistant", "tool"]


def test_an_aborted_message_is_left_out_with_its_unanswered_calls() -> None:
    log = stamped([user("go"), thought("x"), said("half a", status="aborted"), called("a"), user("again")])
    assert told(view(log)) == [("user", "go"), ("user", "again")]


def test_an_answered_call_of_an_aborted_message_stays_with_its_result() -> None:
    log = stamped([user("go"), said("half a", status="aborted"), called("a"), called("b"), answered("a")])
    messages = view(log)
    assert told(messages) == [("user", "go"), ("assistant", ""), ("tool", "done")]
    assert [call.call_id for call in messages[1].calls] == ["a"]


def test_an_interruption_is_one_short_note_however_often_it_came() -> None:
    log = [
        user("go"),
        interrupted(),
        ended(),
        said("gone", status="aborted"),
        interrupted(),
        ended(),
        user("again"),
    ]
    messages = view(stamped(log))
    assert told(messages) == [
        ("user", "go"),
        ("user", "[The previous turn was interrupted by the user.]"),
        ("user", "again"),
    ]
    assert messages[1].origin == "interruption"
    crashed = view(stamped([user("go"), interrupted("crash")]))
    assert crashed[1].text == "[The previous turn was interrupted before it was finished.]"


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_is_dropped() -> None:
    log = stamped([user("go"), called("a"), answered("zz"), ended(), answered("a", "too late"), user("next")])
    messages = view(log)
    assert told(messages) == [("user", "go"), ("assistant", ""), ("tool", NO_RESULT), ("user", "next")]
    assert messages[2].results[0].synthetic
    assert messages[2].results[0].status == "error"


def test_a_view_of_open_calls_is_valid_and_the_real_result_takes_its_place_later() -> None:
    folded = context(stamped([user("go"), called("a")]))
    early = folded.view()
    assert told(early)[2] == ("tool", NO_RESULT)
    folded.add(replace(answered("a", "real"), seq=3))
    assert told(folded.view())[2] == ("tool", "real")
    assert told(early)[2] == ("tool", NO_RESULT)


def test_a_repeated_call_id_is_answered_from_the_latest_open_call() -> None:
    log = stamped([called("a"), answered("a", "first"), called("a", "m2"), answered("a", "second")])
    assert [message.text for message in view(log) if message.role == "tool"] == ["first", "second"]
    log = stamped([called("a"), called("a"), answered("a", "first"), answered("a", "second")])
    assert view(log)[1].text == "second\nfirst"
    log = stamped([called("a"), called("a", "m2"), answered("a", "only")])
    assert [message.text for message in view(log) if message.role == "tool"] == [NO_RESULT, "only"]


def test_what_says_nothing_is_left_out() -> None:
    empty = Message(seq=0, ts=0, msg="m1", role="assistant", parts=())
    log = stamped([user("go"), thought("x"), empty, said("  ", "m2"), user(" "), user("next")])
    assert told(view(log)) == [("user", "go"), ("user", "next")]


@pytest.mark.req("S2-12a")
def test_what_was_withheld_shows_as_its_placeholder() -> None:
    parts = (Withheld(of="text"), Text(text="kept"), Withheld(of="image"))
    log = stamped(
        [
            Message(seq=0, ts=0, role="system", parts=parts),
            Message(seq=0, ts=0, msg="m1", role="assistant", parts=parts[:1]),
            called("a"),
            replace(answered("a"), parts=parts[:1]),
            compacted(0, ""),
        ]
    )
    assert told(view(log)) == [
        ("user", "[summary withheld]"),
        ("system", "[text withheld]\nkept\n[image withheld]"),
        ("assistant", "[text withheld]"),
        ("tool", "[text withheld]"),
    ]


def test_a_compaction_stands_for_what_is_before_it_and_summaries_do_not_stack() -> None:
    first = stamped([user("one"), said("1"), user("two"), said("2", "m2"), compacted(2, "S1"), user("three")])
    assert told(view(first)) == [("user", "S1"), ("user", "two"), ("assistant", "2"), ("user", "three")]
    assert view(first)[0].origin == "compaction"
    second = [*first, *stamped([compacted(4, "S2"), said("3", "m3")], start=6)]
    assert told(view(second)) == [("user", "S2"), ("user", "three"), ("assistant", "3")]
    shorter = [*first, *stamped([compacted(1, "S3")], start=6)]
    assert told(view(shorter))[:2] == [("user", "S3"), ("user", "two")]


def test_only_the_summary_itself_is_replaced_by_the_next() -> None:
    """A record may say that it came from a compaction or an interruption: it is content all the same."""
    copied = user("an old summary", origin="compaction")
    log = stamped([copied, replace(called("a"), origin="interruption"), answered("a"), compacted(0, "S1")])
    assert [message.role for message in view(log)] == ["user", "user", "assistant", "tool"]
    twice = [replace(said("same", msg), origin="interruption") for msg in ("m1", "m2")]
    assert len(view(stamped(twice))) == 2


def test_a_compaction_never_parts_a_call_from_its_result() -> None:
    log = stamped([user("go"), called("a"), user("also"), answered("a", "A"), user("next")])
    for through in range(6):
        check_valid(view([*log, replace(compacted(through), seq=6)]))
    open_call = context([*log[:2], replace(compacted(2), seq=3)])
    open_call.add(replace(answered("a", "A"), seq=4))
    assert told(open_call.view()) == [("user", "what was"), ("assistant", ""), ("tool", "A")]


@pytest.mark.req("S2-04b")
def test_what_a_compaction_replaced_is_freed_once_no_view_holds_it() -> None:
    class Probe(str):
        __slots__ = ("__weakref__",)

    probe = Probe("long ago")
    folded = context(stamped([user(probe), said("1")]))
    dead = weakref.ref(probe)
    held = folded.view()
    folded.add(replace(compacted(2), seq=3))
    del probe
    gc.collect()
    assert held[0].text == "long ago"
    del held
    gc.collect()
    assert dead() is None


@pytest.mark.req("S2-04b")
def test_a_view_never_changes_by_what_is_added_later() -> None:
    folded = Context()
    seen: list[tuple[View, list[tuple[str, str]]]] = []
    log = [
        user("one"),
        said("1"),
        called("a"),
        user("x"),
        answered("a"),
        ended(),
        compacted(2),
        user("two"),
        said("2", "m2"),
    ]
    for record in stamped(log):
        folded.add(record)
        seen.append((folded.view(), told(folded.view())))
    assert all(told(taken) == content for taken, content in seen)


@pytest.mark.req("S2-04b")
def test_a_view_over_ten_thousand_records_copies_nothing() -> None:
    folded = context(
        stamped(record for n in range(5_000) for record in (user(f"ask {n}"), said(f"answer {n}", f"m{n}")))
    )
    view_now = folded.view()
    tracemalloc.start()
    before = time.perf_counter()
    taken = folded.view()
    half = taken[5_000:]
    spent = time.perf_counter() - before
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(taken), len(half)) == (10_000, 5_000)
    assert peak < 20_000
    assert spent < 0.1, "the goal is 1 ms; this bound only catches a copy of the history"
    assert taken[0] is view_now[0]
    assert half[0] is taken[5_000]


def test_a_view_is_a_sequence() -> None:
    messages = view(stamped([user("a"), user("b"), user("c"), said("d"), called("x")]))
    assert len(messages) == 5
    assert isinstance(messages[1:], View)
    assert told(messages[1:])[0] == ("user", "b")
    assert told(messages[-2:]) == [("assistant", "d"), ("tool", NO_RESULT)]
    assert told(messages[::-2]) == [("tool", NO_RESULT), ("user", "c"), ("user", "a")]
    assert messages[-1] is messages[4]
    assert list(reversed(messages)) == list(messages)[::-1]
    assert messages[2] in messages
    with pytest.raises(IndexError):
        messages[5]


def test_a_long_tool_loop_keeps_the_tail_small() -> None:
    """Within one turn too, a view costs what is still open, not what the turn has said so far."""
    log = [user("go")]
    for n in range(300):
        log += [called(f"a{n}", f"m{n}"), answered(f"a{n}")]
    folded = context(stamped(log))
    one, other = folded.view(), folded.view()
    shared = sum(mine is theirs for mine, theirs in zip(one, other, strict=True))
    assert shared >= len(one) - 2


@given(LOGS)
@settings(max_examples=100)
def test_whatever_the_log_a_request_is_valid_at_every_moment(log: list[Any]) -> None:
    folded = Context()
    for record in log:
        folded.add(record)
        check_valid(folded.view())


@given(NONSENSE)
@settings(max_examples=60)
def test_whatever_the_seqs_a_request_is_valid(log: list[Any]) -> None:
    check_valid(view(log))


@given(conversations())
@settings(max_examples=60)
def test_nothing_that_was_said_is_lost(log: list[Any]) -> None:
    messages = view(log)
    check_valid(messages)
    spoken = [
        message.text for message in messages if message.role != "tool" and message.origin != "interruption"
    ]
    texts = [record.text for record in log if record.type == "message"]
    assert sorted(text for text in spoken if text) == sorted(texts)
    calls = [record.call_id for record in log if record.type == "tool_call"]
    assert [call.call_id for message in messages for call in message.calls] == calls
    assert not any(result.text == NO_RESULT for message in messages for result in message.results)
