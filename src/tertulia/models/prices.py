"""What requests cost, in US dollars: list prices of current models as of a date, and your own in their place."""

import re
from collections.abc import Mapping

import msgspec

from ..records.record import Usage

AS_OF = "2026-11-19"
_MILLION = 1_000_000
_DATED = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")


class Price(msgspec.Struct, frozen=True):
    """US dollars for a million tokens. A kind of input without a price of its own costs as much as input.

    A request with more than `long_from` tokens of input costs `long_input` times as much for all of them, and
    `long_output` times for its output.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    long_from: int | None = None
    long_input: float = 1.0
    long_output: float = 1.0


PRICES: dict[str, Price] = {
    "anthropic:claude-fable-5-2": Price(8.0, 40.0, 0.2, 10.0),
    "anthropic:claude-opus-5-5": Price(4.0, 20.0, 0.2, 5.0),
    "anthropic:claude-opus-5": Price(5.0, 25.0, 0.5, 6.25),
    "anthropic:claude-sonnet-5-5": Price(2.0, 10.0, 0.1, 2.5),
    "anthropic:claude-sonnet-5": Price(2.0, 10.0, 0.2, 2.5),
    "anthropic:claude-haiku-5-5": Price(0.1, 0.5, 0.01, 0.125, 100_000, 5.0, 5.0),
    "anthropic:claude-haiku-4-5": Price(1.0, 5.0, 0.1, 1.25),
    "openai:gpt-6-astra": Price(10.0, 50.0, 1.0, 12.5, 272_000, 2.0, 1.5),
    "openai:gpt-6.1-sol": Price(2.0, 10.0, 0.1, 2.5, 272_000, 2.0, 1.5),
    "openai:gpt-6.1-terra": Price(1.0, 5.0, 0.05, 1.25, 272_000, 2.0, 1.5),
    "openai:gpt-6-luna": Price(0.1, 0.5, 0.01, 0.125, 272_000, 2.0, 1.5),
    "openai:gpt-5.4": Price(2.5, 15.0, 0.25, None, 272_000, 2.0, 1.5),
    "openai:gpt-5.4-mini": Price(0.75, 4.5, 0.075),
    "google:gemini-3.1-pro-preview": Price(2.0, 12.0, 0.2, None, 200_000, 2.0, 1.5),
    "google:gemini-3.8-flash": Price(0.75, 3.75, 0.075),
    "google:gemini-3.5-flash-lite": Price(0.3, 2.5, 0.03),
    "google:gemini-2.5-pro": Price(1.25, 10.0, 0.125, None, 200_000, 2.0, 1.5),
    "google:gemini-2.5-flash": Price(0.3, 2.5, 0.03),
}


def cost(model_name: str, usage: Usage, overrides: Mapping[str, Price] | None = None) -> float | None:
    """None where no price is known. `overrides` by the same names, `provider:model`."""
    name = model_name.replace("openai-chat:", "openai:", 1)
    found = (overrides or {}).get(model_name) or PRICES.get(name) or PRICES.get(_DATED.sub("", name))
    return None if found is None else _of(found, usage)


def _of(price: Price, usage: Usage) -> float:
    read = price.input if price.cache_read is None else price.cache_read
    write = price.input if price.cache_write is None else price.cache_write
    taken = (
        usage.input_tokens * price.input + usage.cache_read_tokens * read + usage.cache_write_tokens * write
    )
    given = usage.output_tokens * price.output  # reasoning is among it
    whole = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    if price.long_from is not None and whole > price.long_from:
        taken, given = taken * price.long_input, given * price.long_output
    return (taken + given) / _MILLION
