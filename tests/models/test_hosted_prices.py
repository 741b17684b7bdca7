"""What a request costs."""

import datetime

import pytest

from tertulia.models.prices import AS_OF, PRICES, Price, cost
from tertulia.records.record import Usage

MILLION = 1_000_000


def test_each_kind_of_token_has_its_price() -> None:
    own = {"x:y": Price(1.0, 2.0, 3.0, 4.0)}
    assert cost("x:y", Usage(MILLION), own) == 1.0
    assert cost("x:y", Usage(output_tokens=MILLION, reasoning_tokens=MILLION // 2), own) == 2.0
    assert cost("x:y", Usage(cache_read_tokens=MILLION), own) == 3.0
    assert cost("x:y", Usage(cache_write_tokens=MILLION), own) == 4.0
    assert cost("x:y", Usage(MILLION, MILLION, MILLION, MILLION), own) == 10.0


def test_a_kind_without_a_price_costs_as_much_as_input() -> None:
    assert cost("x:y", Usage(0, 0, MILLION, MILLION), {"x:y": Price(1.0, 2.0)}) == 2.0
    assert cost("x:y", Usage(0, 0, MILLION), {"x:y": Price(1.0, 2.0, 0.0)}) == 0.0


def test_a_long_request_costs_more_as_a_whole() -> None:
    own = {"x:y": Price(1.0, 1.0, 1.0, 1.0, 1_000, 2.0, 3.0)}
    assert cost("x:y", Usage(400, 100, 300, 300), own) == pytest.approx(1_100 / MILLION)
    assert cost("x:y", Usage(401, 100, 300, 300), own) == pytest.approx((1_001 * 2 + 100 * 3) / MILLION)


def test_what_is_not_known_has_no_price() -> None:
    assert cost("openai:gpt-unheard-of", Usage(1)) is None
    assert cost("gpt-5.4", Usage(1)) is None


def test_own_prices_come_first() -> None:
    name = "anthropic:claude-sonnet-5-5"
    assert cost(name, Usage(MILLION)) == PRICES[name].input
    assert cost(name, Usage(MILLION), {name: Price(0.0, 0.0)}) == 0.0


@pytest.mark.parametrize(
    "name",
    ["openai:gpt-5.4-2026-03-05", "openai-chat:gpt-5.4", "openai-chat:gpt-5.4-2026-03-05", "openai:gpt-5.4"],
)
def test_other_names_of_the_same_model(name: str) -> None:
    assert cost(name, Usage(10)) == cost("openai:gpt-5.4", Usage(10)) is not None


def test_a_longer_name_is_another_model() -> None:
    assert cost("openai:gpt-5.4-pro", Usage(10)) is None


def test_the_list_is_sane() -> None:
    datetime.date.fromisoformat(AS_OF)
    for name, price in PRICES.items():
        assert name.split(":")[0] in ("anthropic", "openai", "google")
        assert 0 < (price.cache_read or price.input) <= price.input < price.output
        assert (price.long_from is None) == (price.long_input == price.long_output == 1.0)
