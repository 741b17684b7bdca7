"""How many calls run at a time, measured at the server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tertulia.records.errors import ConfigError
from tertulia.testing import FakeClock, FakeMcpServer, FakeTool, call
from tertulia.tools.mcp.limits import Slots
from tests.mcp.kit import ready, talk, until

Fake = Callable[..., FakeMcpServer]


@pytest.mark.req("S2-07a", "S2-07c")
async def test_a_hundred_conversations_share_a_server_within_the_ceiling(fake: Fake) -> None:
    server = fake(FakeTool(name="work", sleep=0.01))

    def answer(request: Any) -> Any:
        return "ok" if request.messages[-1].role == "tool" else [call("work", n=n) for n in range(4)]

    limits = {"concurrent": 2, "ceiling": 7}
    async with talk({"fake": server}, default=answer, mcp_limits=limits, max_running=100) as (
        session,
        model,
        _,
    ):
        model._default = answer
        await ready(session)
        many = [await session.open_conversation() for _ in range(100)]
        await asyncio.gather(*(each.prompt("go") for each in many))
    assert len(server.of("end")) == 400
    assert server.most_at_once() == 7
    assert len(server.of("start")) == 1


@pytest.mark.req("S2-07c")
async def test_one_conversation_does_not_take_all(fake: Fake) -> None:
    server, go = fake(), None
    go = server.folder / "go"
    server = fake(FakeTool(name="work", wait=str(go)), "quick")
    limits = {"concurrent": 2, "ceiling": 10}
    calls = [[call("work") for _ in range(6)], [call("quick")], "ok", "ok"]
    async with talk({"fake": server}, *calls, mcp_limits=limits, max_running=2) as (session, _, _):
        await ready(session)
        other = await session.open_conversation()
        busy = asyncio.create_task(session.prompt("go"))
        await until(lambda: len(server.of("call")) == 2)
        await other.prompt("go")  # the others of the first wait, this one need not
        assert [event["tool"] for event in server.of("call")] == ["work", "work", "quick"]
        go.touch()
        await busy
    assert server.most_at_once() <= 3


@pytest.mark.req("S2-07c")
async def test_the_rate_of_a_conversation(fake: Fake) -> None:
    server, clock = fake("work"), FakeClock()
    script = [[call("work") for _ in range(5)], "ok"]
    async with talk({"fake": server}, *script, mcp_limits={"per_minute": 2}, clock=clock) as (session, _, _):
        await ready(session)
        running = asyncio.create_task(session.prompt("go"))
        await until(lambda: len(server.of("end")) == 2)
        for minute in (1, 2):
            await clock.asleep(2)  # the idle timer is the other one
            await clock.advance(59)
            assert len(server.of("call")) == 2 * minute
            await clock.advance(1)
            await until(lambda: len(server.of("end")) == min(5, 2 * minute + 2))  # noqa: B023 - awaited right here
        await running


@pytest.mark.req("S2-07c")
async def test_a_cancelled_call_gives_its_place_up(fake: Fake) -> None:
    server = fake(FakeTool(name="work", wait="/no/such/file"), "quick")
    calls = [[call("work"), call("work"), call("work")], [call("quick")], "ok"]
    async with talk({"fake": server}, *calls, mcp_limits={"ceiling": 2, "concurrent": 2}) as (session, _, _):
        await ready(session)
        running = asyncio.create_task(session.prompt("go"))
        await until(lambda: len(server.of("call")) == 2)
        assert session.cancel_active_prompt().active
        await asyncio.wait([running])
        assert running.exception() is not None
        await session.prompt("again")
        await until(lambda: len(server.of("cancelled")) == 2)  # the server is told
        assert [event["tool"] for event in server.of("call")] == ["work", "work", "quick"]


async def test_slots_go_round_and_none_is_lost() -> None:
    slots, order = Slots(2, 1), []

    async def work(key: str) -> None:
        await slots.enter(key)
        order.append(key)
        await asyncio.sleep(0)
        slots.leave(key)

    tasks = [asyncio.create_task(work(key)) for key in "aaabbc"]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert sorted(order) == ["a", "a", "b", "b", "c"]
    assert order[:2] == ["a", "b"]
    async with asyncio.timeout(5):
        await slots.enter("a")
        await slots.enter("b")


async def test_the_total_holds_for_who_comes_first_of_its_key() -> None:
    slots = Slots(1, 5)
    await slots.enter("a")
    waiting = asyncio.create_task(slots.enter("b"))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.leave("a")
    await waiting


async def test_who_is_cancelled_with_its_slot_just_given_gives_it_back() -> None:
    slots = Slots(1, 1)
    await slots.enter("a")
    waiting = asyncio.create_task(slots.enter("b"))
    await asyncio.sleep(0)
    slots.leave("a")  # now it is b's, which does not know it yet
    waiting.cancel()
    await asyncio.wait([waiting])
    async with asyncio.timeout(5):
        await slots.enter("c")


@pytest.mark.parametrize("given", [{"ceiling": 0}, {"unknown": 1}, {"concurrent": "x"}, 5])
async def test_limits_that_make_no_sense(given: Any) -> None:
    from tertulia import Session

    with pytest.raises(ConfigError):
        await Session.open(model="demo", mcp_limits=given)
