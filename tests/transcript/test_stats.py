"""The running totals."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertulia.records.parts import Image
from tertulia.records.record import Message, Totals, Usage
from tertulia.transcript.stats import count, totals
from tests.transcript.build import answered, called, ended, said, stamped, started, used, user
from tests.transcript.strategies import LOGS, NONSENSE


@pytest.mark.req("S0-10")
def test_one_prompt_with_one_call_counts_four_entries() -> None:
    log = stamped(
        [started(), user("go"), called("a"), used(0.5), answered("a"), said("so", "m2"), used(), ended()]
    )
    assert totals(log) == Totals(4, 1, 1, 1, 1, 60, Usage(20, 4), 0.5)


@pytest.mark.req("S0-10")
def test_an_assistant_message_without_content_is_an_entry_only() -> None:
    empty = Message(seq=0, ts=0, role="assistant", parts=())
    image = Message(seq=0, ts=0, role="assistant", parts=(Image(media="image/png", url="x"),))
    result = totals(stamped([empty, said(" "), image]))
    assert (result.entries, result.assistant_messages) == (3, 1)


def test_nothing_counts_nothing() -> None:
    assert totals([]) == Totals()
    assert totals(stamped([started(), ended()])) == Totals()


@pytest.mark.parametrize(
    ("costs", "expected"),
    [((None, None), None), ((None, 0.5), 0.5), ((0.5, None, 0.25), 0.75), ((0.0,), 0.0)],
)
def test_the_cost_is_the_sum_of_what_is_known(
    costs: tuple[float | None, ...], expected: float | None
) -> None:
    assert totals(stamped(used(cost) for cost in costs)).cost == expected


def test_updated_never_steps_back() -> None:
    early, late = stamped([user("a"), user("b")])
    assert totals([late, early]).updated == late.ts


@pytest.mark.req("S0-10", "S0-10b")
@given(LOGS)
@settings(max_examples=60)
def test_they_agree_with_the_transcript(log: list[Any]) -> None:
    transcript = [record for record in log if record.is_entry]
    result = totals(log)
    assert result.entries == len(transcript)
    assert result.user_messages == sum(entry.role == "user" for entry in transcript)
    assert result.assistant_messages <= sum(entry.role == "assistant" for entry in transcript)
    assert result.tool_calls == sum(entry.type == "tool_call" for entry in transcript)
    assert result.tool_results == sum(entry.type == "tool_result" for entry in transcript)
    assert result.updated == (transcript[-1].ts if transcript else 0)


@given(NONSENSE, st.integers(0, 14))
@settings(max_examples=60)
def test_counting_on_from_anywhere_gives_the_same(log: list[Any], cut: int) -> None:
    result = totals(log[:cut])
    for record in log[cut:]:
        result = count(result, record)
    assert result == totals(log)
