"""One turn with all that a turn can have, cancelled before each callback that the loop runs, in each way there is.

In memory these are the same every time. On SQLite the writer's thread comes between, so there a spread of moments.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.records.errors import ConversationClosed, ModelConnectionError, PromptCancelled
from tertulia.records.record import Message, TurnEnd
from tertulia.session.reply import Receipt, Reply
from tertulia.testing import Stream, call
from tertulia.tools.base import tool
from tests.session.kit import World, check_records, record_of, store_of, world

pytestmark = [pytest.mark.timeout(120), pytest.mark.req("S0-04", "S2-06b", "S2-14b")]

SPREAD = 14  # points on SQLite, for each way


def script() -> list[Any]:
    return [
        Stream(["Let me", ModelConnectionError("gone")]),
        Stream(["Let me ", "see.", call("look", n=1), call("look", n=2), call("ask")]),
        Stream(["Now ", "I know."]),
        "to the follow-up",
        "to the last",
    ]


class Play:
    """The script as it is acted: a prompt, a steer and a follow-up from within the first tool, an answered question."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.looked = asyncio.Event()
        self.prompt = made.start("go")
        self.others = [asyncio.create_task(each) for each in (self.steer(), self.follow_up(), self.last())]

    async def look(self, n: int) -> str:
        self.looked.set()
        for _ in range(n * 3):
            await asyncio.sleep(0)
        return f"saw {n}"

    async def steer(self) -> Receipt:
        await self.looked.wait()
        return await self.made.conv.steer("and this")

    async def follow_up(self) -> Receipt:
        await self.looked.wait()
        return await self.made.conv.follow_up("next")

    async def last(self) -> Reply:
        await self.looked.wait()
        handle = await self.made.conv.submit("last", when_busy="follow_up")
        return await handle.reply()

    async def end(self) -> tuple[Any, list[Any]]:
        """What everyone who waited was told."""
        (first,) = await asyncio.gather(self.prompt, return_exceptions=True)
        self.looked.set()
        told = await asyncio.gather(*self.others, return_exceptions=True)
        await self.made.conv.wait_idle()
        return first, told


async def allow(approval: Any) -> str:
    await asyncio.sleep(0)
    return "allow_once"


async def ask() -> str:
    return "answered"


def cast(play: list[Play]) -> dict[str, Any]:
    async def look(n: int) -> str:
        return await play[0].look(n)

    return {
        "tools": [look, tool(ask=True)(ask)],
        "approvals": allow,
        "max_retries": 1,
        "retry_base_delay": 0,
        "grace": 0,
    }


Stop = Callable[[Play], Any]


def by_method(play: Play) -> None:
    play.made.conv.cancel_active_prompt()


def by_caller(play: Play) -> None:
    play.prompt.cancel()


def by_keeping(play: Play) -> "asyncio.Task[Any]":
    """The turn only: what is queued goes on."""
    return asyncio.create_task(play.made.conv.cancel(queue="keep"))


def by_close(play: Play) -> "asyncio.Task[None]":
    return asyncio.create_task(play.made.session.aclose("cancel", 5.0))


STOPS = [by_method, by_caller, by_keeping, by_close]


class Steps:
    """Counts the callbacks that the loop runs, and calls something between two of them."""

    def __init__(self, at: int, action: Callable[[], Any]) -> None:
        self.at, self.action = at, action
        self.taken = 0
        self.result: Any = None

    def __enter__(self) -> "Steps":
        self.run = run = asyncio.Handle._run

        def counted(handle: asyncio.Handle) -> None:
            self.step()
            run(handle)

        asyncio.Handle._run = counted  # type: ignore[method-assign]
        return self

    def step(self) -> None:
        if self.taken == self.at:
            self.result = self.action()
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self.run  # type: ignore[method-assign]


async def run(kind: str, folder: Path, at: int, stop: Stop | None) -> int:
    """Act it, stop it before this callback, and see what is left; the callbacks it took until all was over."""
    play: list[Play] = []
    async with store_of(kind, folder) as store, world(store, script(), **cast(play)) as made:
        play.append(Play(made))
        with Steps(at, lambda: stop(play[0]) if stop is not None else None) as steps:
            outcomes = await asyncio.wait_for(play[0].end(), 10)
            if steps.result is not None:
                await asyncio.wait_for(steps.result, 10)
        await check(play[0], stop, *outcomes)
        made.model._script.clear()
        await made.verify()
    return steps.taken


async def check(play: Play, stop: Stop | None, first: Any, told: list[Any]) -> None:
    """Everyone who waited is told, in a type of ours, and once."""
    allowed: tuple[type[Any], ...] = (Reply, PromptCancelled, ConversationClosed)
    if stop is by_caller:
        allowed = (Reply, asyncio.CancelledError)
    assert isinstance(first, allowed if stop is not None else Reply)
    for each in told:
        assert isinstance(each, Reply | Receipt | PromptCancelled | ConversationClosed), each
    records = await play.made.conv.records()
    check_records(records)
    ends = {end.turn: end.status for end in record_of(records, TurnEnd)}
    if isinstance(first, Reply):
        assert ends[first.turn_id] == "completed"
    elif isinstance(first, PromptCancelled):
        assert [ends[m.turn] for m in record_of(records, Message) if m.text == "go"] in ([], ["cancelled"])
    assert set(ends.values()) <= {"completed", "cancelled"}


async def test_as_it_is_written(tmp_path: Path) -> None:
    play: list[Play] = []
    async with store_of("memory", tmp_path) as store, world(store, script(), **cast(play)) as made:
        play.append(Play(made))
        assert str(await play[0].prompt) == "Now I know."
        await made.conv.wait_idle()
        assert [m.text for m in await made.conv.transcript() if m.role is not None] == [
            "go", "Let me see.", "and this", "Now I know.", "next", "to the follow-up", "last", "to the last",
        ]  # fmt: skip
        assert sorted(made.results()) == [("ask", "ok"), ("look", "ok"), ("look", "ok")]
        assert made.seen.of("retry")[0].discarded
        await play[0].end()
        await made.verify()


@pytest.mark.parametrize("stop", STOPS)
async def test_stopped_at_every_moment(stop: Stop, tmp_path: Path) -> None:
    whole = await run("memory", tmp_path, 10_000, None)
    assert whole > 100
    for at in range(whole + 2):
        await stopped("memory", tmp_path, at, whole, stop)


@pytest.mark.parametrize("stop", STOPS)
async def test_stopped_at_some_moments_on_sqlite(stop: Stop, tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(SPREAD + 1)]
    for folder in folders:
        folder.mkdir()
    whole = await run("sqlite", folders.pop(), 1_000_000, None)
    for n, folder in enumerate(folders):
        await stopped("sqlite", folder, whole * n // SPREAD, whole, stop)


async def stopped(kind: str, folder: Path, at: int, whole: int, stop: Stop) -> None:
    try:
        await run(kind, folder, at, stop)
    except BaseException as error:
        error.add_note(f"stopped at {at} of {whole}")
        raise
