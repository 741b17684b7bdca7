"""What an answer cost is counted whatever becomes of it; what watchers are told when another model is asked."""

import asyncio

import pytest

from tertulia import Session, tool
from tertulia.models.base import Finished
from tertulia.records.errors import (
    ContextFull,
    EmptyReply,
    OutputInvalid,
    Overloaded,
    PromptCancelled,
    StoreFull,
)
from tertulia.records.record import ModelUsage, Usage
from tertulia.session.engine import Ending, Turn
from tertulia.session.speech import answer, begin, said
from tertulia.testing import EventRecorder, ScriptedModel, Stream, call, hold
from tests.session.kit import World, check_usage, reached, record_of, world
from tests.session.stores import GatedStore

pytestmark = pytest.mark.timeout(60)

USED = Usage(input_tokens=1000, output_tokens=10, requests=1)
SPENT = 0.5


@tool
def look() -> str:
    """Look."""
    return "seen"


def paid(*pieces: object) -> Stream:
    return Stream([*pieces, Finished(usage=USED, cost=SPENT)])


async def counted(made: World, requests: int) -> None:
    """Each request has its record, and the totals of log and turn know of it."""
    stats = await made.conv.stats()
    assert (stats.usage.requests, stats.usage.input_tokens) == (requests, requests * USED.input_tokens)
    assert stats.cost == requests * SPENT
    records = await made.conv.records()
    assert [record.usage for record in record_of(records, ModelUsage)] == [USED] * requests
    check_usage(records)


async def test_an_empty_answer_is_paid_for(store: GatedStore) -> None:
    async with world(store, [paid()]) as made:
        with pytest.raises(EmptyReply):
            await made.conv.prompt("go")
        await counted(made, 1)
        await made.verify()


async def test_an_empty_answer_that_is_tried_again_is_paid_for_twice(store: GatedStore) -> None:
    async with world(store, [paid(), paid("well")], max_retries=1, retry_base_delay=0) as made:
        reply = await made.conv.prompt("go")
        assert (reply.usage.requests, reply.cost) == (2, 2 * SPENT)
        await counted(made, 2)
        await made.verify()


async def test_an_empty_answer_before_another_model_is_asked_names_its_own(store: GatedStore) -> None:
    first, second = ScriptedModel([paid()]), ScriptedModel([paid("well")], default="ok")
    first.name, second.name = "first", "second"
    async with world(store, model=first, fallback_models=[second]) as made:
        assert str(await made.conv.prompt("go")) == "well"
        await counted(made, 2)
        named = [record.model for record in record_of(await made.conv.records(), ModelUsage)]
        assert named == ["first", "second"]


async def test_an_answer_of_the_wrong_type_is_paid_for_each_time(store: GatedStore) -> None:
    async with world(store, [paid("no"), paid("nor this")]) as made:
        with pytest.raises(OutputInvalid):
            await made.conv.prompt("go", output=dict[str, int])
        await counted(made, 2)
        await made.verify()


async def test_an_answer_of_the_wrong_type_at_the_limit_is_paid_for(store: GatedStore) -> None:
    async with world(store, [paid("no")], turn_limit=1) as made:
        with pytest.raises(OutputInvalid):
            await made.conv.prompt("go", output=dict[str, int])
        await counted(made, 1)
        await made.verify()


async def test_an_answer_that_a_cancel_takes_back_is_paid_for_once(store: GatedStore) -> None:
    held = hold()
    async with world(store, [paid(held, "well")]) as made:
        prompt = made.start("go")
        await reached(held)
        await made.conv.flush()
        store.hold()
        rename = asyncio.create_task(made.conv.rename("the end has to wait behind this"))
        await store.waiting()
        held.release()
        for _ in range(100):  # nothing of what it does now leaves this loop
            await asyncio.sleep(0)
        turn = made.conv._runner.turn
        assert turn is not None
        assert turn.ended is not None
        made.conv.cancel_active_prompt()
        store.let_go()
        with pytest.raises(PromptCancelled):
            await prompt
        await rename
        await counted(made, 1)
        await made.verify()


async def test_an_answer_that_could_not_be_stored_is_paid_for_once(store: GatedStore) -> None:
    calls = Stream([Finished(usage=USED, cost=SPENT, calls=(call("look"),))])
    async with world(store, [calls], tools=[look]) as made:
        store.fail(StoreFull("the disk is full"), after=1)
        with pytest.raises(StoreFull):
            await made.conv.prompt("go")
        await made.conv.flush()
        await counted(made, 1)
        await made.verify()


async def test_a_failure_before_the_end_of_an_answer_costs_nothing(store: GatedStore) -> None:
    full = [Stream(["half", Overloaded("cut")]), ContextFull("long")]
    async with world(store, [*full, ContextFull("still")], max_retries=1, retry_base_delay=0) as made:
        with pytest.raises(ContextFull):
            await made.conv.prompt("go")
        assert record_of(await made.conv.records(), ModelUsage) == []


class Repeating:
    """An engine whose answers all end with the same object."""

    name = "repeating"
    capabilities: frozenset[str] = frozenset()
    end = Finished(usage=USED, cost=SPENT)

    async def run(self, turn: Turn) -> Ending:
        for _ in range(2):
            begin(turn)
            await said(turn, "one")
            await answer(turn, self.end)
        begin(turn)
        await said(turn, "two")
        return Ending(last=self.end)

    async def steer(self, item: object) -> bool:
        return False

    async def interrupt(self) -> None: ...

    async def close(self) -> None: ...

    def output(self) -> None:
        return None


async def test_each_answer_of_an_engine_counts(store: GatedStore) -> None:
    async with world(store, model=None, engine=Repeating) as made:
        reply = await made.conv.prompt("go")
        assert (reply.usage.requests, reply.cost) == (3, 3 * SPENT)
        await counted(made, 3)


# ── states ──


async def test_asking_another_model_is_running_again() -> None:
    held = hold("fine")
    first = ScriptedModel([Overloaded("busy")])
    async with (
        Session.open(model=first, fallback_models=[ScriptedModel([held])]) as session,
        EventRecorder(session.root) as seen,
    ):
        prompt = asyncio.create_task(session.prompt("x"))
        await reached(held)
        await seen.wait_for(lambda event: getattr(event, "state", "") == "running", count=2)
        states = [event.state for event in seen.of("state")]  # type: ignore[union-attr]
        assert states == ["queued", "running", "retrying", "running"]
        held.release()
        await prompt


# ── what cannot be stored ──


async def test_arguments_with_half_characters_are_told_to_the_model(store: GatedStore) -> None:
    """Their words are not ours to mend: what the model asked for does not run."""
    ran = []

    @tool
    def note(text: str) -> str:
        """Note a text."""
        ran.append(text)
        return "noted"

    bad = [
        call("note", text="a \ud800 b"),
        call("note", **{"\udfff": 1}),
        call("no\ud800te"),
        call("note", text="c"),
    ]
    async with world(store, [bad, "I see"], tools=[note]) as made:
        assert str(await made.conv.prompt("go")) == "I see"
        assert sorted(status for _, status in made.results()) == ["error", "error", "error", "ok"]
        assert ran == ["c"]
        await made.verify()
