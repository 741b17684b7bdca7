"""Who stops listening frees the connection, whatever the answer is doing; so does the end of the loop."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tertulia.models.base import Request, Said
from tertulia.models.hosted import HostedModel
from tertulia.testing import call, hold
from tertulia.testing.model import Hold
from tertulia.testing.providers import FakeProvider, Reply, Seen, Think
from tests.models.hosted_kit import ADD, KEY, MODELS, asked, closed, reached, user

PHASES: dict[str, Callable[[Hold], Any]] = {
    "before the first byte": lambda held: held,
    "before the first piece": lambda held: Reply(held),
    "in the text": lambda held: Reply("So ", "far", held),
    "in the thinking": lambda held: Reply(Think("Hm"), held),
    "in a call": lambda held: Reply("I add.", call("add", a=1, b=2), held),
}


async def hung_up(seen: Seen) -> None:
    await closed(seen)
    assert not seen.done.is_set()


@pytest.mark.parametrize("phase", PHASES)
async def test_a_cancelled_request_closes_its_connection(provider: str, phase: str) -> None:
    held = hold()
    async with asked(provider, [PHASES[phase](held), "Again."]) as it:
        asking = asyncio.create_task(it.ask(tools=(ADD,)))
        await reached(held)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await hung_up(it.fake.requests[0])
        assert (await it.ask()).said == ["Again."]  # the model goes on to work
    assert len(it.fake.requests) == 2


async def test_a_reader_that_goes_away_closes_the_connection(provider: str) -> None:
    async with asked(provider, [Reply("So ", "far", hold())]) as it:
        async with contextlib.aclosing(it.model.stream(Request(messages=(user("Hi."),)))) as events:  # type: ignore[type-var]
            async for event in events:
                assert event == Said("So ")
                break
        await hung_up(it.fake.requests[0])


async def test_a_cancel_closes_its_own_request_only(provider: str) -> None:
    first, second = hold(), hold()
    async with asked(provider, [Reply("One", first), Reply("Two", second, ".")]) as it:
        one = asyncio.create_task(it.ask())
        await reached(first)
        two = asyncio.create_task(it.ask())
        await reached(second)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        await hung_up(it.fake.requests[0])
        assert not it.fake.requests[1].closed.is_set()
        second.release()
        assert (await two).said == ["Two", "."]


async def test_closing_the_model_closes_what_idles(provider: str) -> None:
    async with asked(provider, default="Hello.") as it:
        await it.ask()
        (seen,) = it.fake.requests
        assert not seen.closed.is_set()
        await it.model.aclose()
        await closed(seen)
        await it.model.aclose()  # once more is harmless
        assert (await it.ask()).said == ["Hello."]


def test_one_model_in_one_loop_after_the_other(provider: str) -> None:
    """Nobody closes it: the end of each loop does, and no warning tells of an open socket."""
    made: list[HostedModel] = []

    async def ask() -> list[Any]:
        async with FakeProvider(["Hello."]) as fake:
            if not made:
                made.append(HostedModel(provider, MODELS[provider], base_url=fake.url, api_key=KEY))
            made[0]._spec = type(made[0]._spec)(**{**_fields(made[0]), "base_url": fake.url})
            return [event async for event in made[0].stream(Request(messages=(user("Hi."),)))]

    for _ in range(2):
        assert Said("Hello.") in asyncio.run(ask())


def _fields(model: HostedModel) -> dict[str, Any]:
    return {name: getattr(model._spec, name) for name in model._spec.__struct_fields__}


async def test_a_model_that_nobody_holds_closes_its_connections(provider: str) -> None:
    async with FakeProvider(["Hello."]) as fake, asyncio.timeout(10):
        model = HostedModel(provider, MODELS[provider], base_url=fake.url, api_key=KEY)
        assert [event async for event in model.stream(Request(messages=(user("Hi."),)))]
        del model
        await closed(fake.requests[0])
