"""How many tokens the next request is about, and what a tool found."""

import pytest

from tertulia import Session, ToolContext
from tertulia.models.base import Finished
from tertulia.records.parts import Data, File, Image, Text
from tertulia.records.record import Hit, Retrieval, Usage
from tertulia.testing import EventRecorder, ScriptedModel, Stream, call
from tertulia.transcript import tokens

HIT = Hit(id="1", source="notes", title="Plan", snippet="we meet on Monday", score=0.5)


def find(query: str, context: ToolContext) -> str:
    """Look something up."""
    context.retrieved(query, [HIT] if query == "plan" else [])
    return "done"


def test_an_estimate_knows_words_pictures_and_values() -> None:
    assert tokens.of_text("") == 0
    assert 90 <= tokens.of_text("word " * 80) <= 110
    assert 95 <= tokens.of_text("会话" * 50) <= 105
    assert tokens.of_part(Image(media="image/png", data=bytes(5_000_000))) == tokens.PICTURE
    assert tokens.of_part(File(media="application/pdf", data=b"x")) == tokens.FILE
    assert tokens.of_part(Data(name="n", value={"a": list(range(100))})) > 50
    assert tokens.of_part(Text(text="four")) == 1


async def test_replies_say_how_full_the_context_is() -> None:
    model = ScriptedModel(default="word " * 100)
    async with Session.open(model=model) as session:
        sizes = []
        for _ in range(4):
            sizes.append((await session.prompt("word " * 100)).context_tokens or 0)
        assert 200 <= sizes[0] <= 300
        for early, late in zip(sizes, sizes[1:], strict=False):
            assert late > early
        await session.compact()
        assert ((await session.prompt("short")).context_tokens or 0) < sizes[-1]


async def test_what_a_provider_counts_corrects_the_estimate() -> None:
    def answers(factor: float) -> ScriptedModel:
        usage = Usage(
            input_tokens=int(250 * factor), cache_read_tokens=int(250 * factor), output_tokens=1, requests=1
        )
        return ScriptedModel(default=Stream(["ok", Finished(usage=usage)]))

    async def size(factor: float) -> int:
        async with Session.open(model=answers(factor)) as session:
            for _ in range(5):
                await session.prompt([Text(text="word " * 400)], model=answers(factor))
                await session.resume(())
            return (await session.prompt([Text(text="word " * 400)])).context_tokens or 0

    low, high = await size(0.5), await size(2.0)
    assert high > 2 * low


@pytest.mark.parametrize(("query", "found"), [("plan", 1), ("nothing", 0)])
async def test_what_a_tool_found_is_an_event_and_a_record(query: str, found: int) -> None:
    model = ScriptedModel([[call("find", query=query)], "Monday"])
    async with Session.open(model=model, tools=[find]) as session, EventRecorder(session.root) as seen:
        await session.prompt("when?")
        events = seen.of("retrieval")
        records = [record for record in await session.records() if isinstance(record, Retrieval)]
        assert [len(events), len(records)] == [found, found]
        if found:
            assert (records[0].query, records[0].hits) == (query, (HIT,))
            assert seen.types().index("retrieval") < seen.types().index("tool_result")
        assert [entry.type for entry in await session.transcript()] == [
            "message",
            "tool_call",
            "tool_result",
            "message",
        ]
