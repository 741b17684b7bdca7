"""The demo model: what each word makes it do, and that it says what it is."""

import asyncio

import pytest

from tertulia import Session
from tertulia.models import demo
from tertulia.models.demo import ABOUT, WORDS, DemoModel
from tertulia.records.errors import Overloaded, PromptCancelled, RequestRefused
from tertulia.records.event import ApprovalRequest, Chart
from tertulia.testing import EventRecorder
from tertulia.tools.demo import DEMO_TOOLS


async def test_it_says_that_it_is_one_and_what_can_be_said() -> None:
    async with Session.open(model="demo") as session:
        reply = await session.prompt("Hello?")
    assert ABOUT in reply.text
    assert "You said: 'Hello?'" in reply.text
    for word in WORDS:
        assert f"'{word}'" in reply.text


async def test_it_calls_tools_and_tells_what_they_answered() -> None:
    async with Session.open(model="demo", tools=DEMO_TOOLS) as session:
        one = await session.prompt("tool roll")
        two = await session.prompt("parallel")
        calls = [entry.name for entry in await session.transcript() if entry.type == "tool_call"]
    assert one.text.startswith("The tool answered: [")
    assert two.text.startswith("The tools answered: ")
    assert (one.tool_calls, two.tool_calls, calls) == (1, 2, ["roll", "now", "roll"])


async def test_a_chart_is_announced() -> None:
    async with Session.open(model="demo", tools=DEMO_TOOLS) as session, EventRecorder(session) as seen:
        await session.prompt("chart")
    [chart] = seen.of("chart")
    assert isinstance(chart, Chart)
    assert chart.chart_data["mark"] == "bar"


@pytest.mark.parametrize(
    ("option", "text"), [("allow_once", "published to nobody: Hello, world."), ("deny", "did not allow")]
)
async def test_a_call_that_asks(option: str, text: str) -> None:
    async with Session.open(model="demo", tools=DEMO_TOOLS) as session, EventRecorder(session) as seen:
        running = asyncio.create_task(session.prompt("approval"))
        asked = await seen.wait_for("approval_request")
        assert isinstance(asked, ApprovalRequest)
        await session.approvals.answer(asked.approval_id, option)
        assert text in (await running).text


@pytest.mark.parametrize("word", ["parallel", "chart", "approval"])
async def test_without_the_tools_it_says_so(word: str) -> None:
    async with Session.open(model="demo") as session:
        reply = await session.prompt(word)
    assert "was given no such tool" in reply.text
    assert reply.tool_calls == 0


async def test_a_retry_is_one_failure_and_then_an_answer() -> None:
    async with Session.open(model="demo", max_retries=1, retry_base_delay=0) as session:
        async with EventRecorder(session) as seen:
            assert (await session.prompt("retry")).text == "The first attempt failed, this one did not."
        assert [event.data["discarded"] for event in seen.of("retry")] == [True]
    async with Session.open(model=DemoModel()) as session:
        with pytest.raises(Overloaded):
            await session.prompt("retry")
        assert (await session.prompt("retry")).text.startswith("The first attempt failed")


async def test_it_reasons_slows_down_talks_long_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PAUSE", 0)
    async with Session.open(model="demo") as session, EventRecorder(session) as seen:
        await session.prompt("think")
        assert len(seen.of("thought")) == 2
        assert "slowly" in (await session.prompt("slow")).text
        assert (await session.prompt("long")).text.count("sentence") == 40
        with pytest.raises(RequestRefused):
            await session.prompt("error")


async def test_it_waits_until_it_is_cancelled() -> None:
    async with Session.open(model="demo") as session, EventRecorder(session) as seen:
        running = asyncio.create_task(session.prompt("wait"))
        await seen.wait_for("text")
        session.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await running
