"""What a server asks back while it works on a call."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tertulia import Session
from tertulia.records.errors import InvalidInput
from tertulia.testing import FakeClock, FakeMcpServer, FakeTool, call
from tertulia.tools.mcp.asking import Elicitation, McpCall
from tests.mcp.kit import ready, results, talk, until, warnings

Fake = Callable[..., FakeMcpServer]
both = pytest.mark.parametrize("legacy", [False, True])


class Desk:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Elicitation] = []
        self.answer: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.dismissed = 0

    async def __call__(self, asked: Elicitation) -> Mapping[str, Any] | None:
        self.asked.append(asked)
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.dismissed += 1
            raise


@both
async def test_an_answer_reaches_the_call_whose_time_stands_still_meanwhile(fake: Fake, legacy: bool) -> None:
    server, clock, desk = fake(FakeTool(name="ask", ask="who\x07?"), legacy=legacy), FakeClock(), Desk()
    config = {**server.config, "timeout": 30}
    async with talk(
        {"fake": config}, [call("ask", call_id="c1")], "ok", clock=clock, elicitation=desk
    ) as held:
        session, _, _ = held
        await ready(session)
        running = asyncio.create_task(session.prompt("go"))
        await until(lambda: desk.asked)
        [asked] = desk.asked
        assert (asked.server, asked.message, asked.call_id) == ("fake", "who?", "c1")
        assert asked.conversation_id == session.root.id
        assert asked.schema["properties"] == {"answer": {"type": "string"}}
        await clock.advance(500)
        assert not running.done()
        desk.answer.set_result({"answer": "me"})
        await running
        [(_, status, text)] = await results(session)
        assert (status, "me" in text) == ("ok", True)


@both
async def test_without_a_handler_it_is_declined_with_a_warning(fake: Fake, legacy: bool) -> None:
    server = fake(FakeTool(name="ask", ask="your password?"), legacy=legacy)
    async with talk({"fake": server}, [call("ask")], "ok") as (session, _, seen):
        await ready(session)
        await session.prompt("go")
        assert "decline" in (await results(session))[0][2]
        assert "your password?" in warnings(seen, "mcp_elicitation")[0]


@both
async def test_a_handler_may_decline_or_fail(fake: Fake, legacy: bool) -> None:
    answers = [None, ValueError("no terminal")]

    async def desk(asked: Elicitation) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    server = fake(FakeTool(name="ask", ask="who?"), legacy=legacy)
    async with talk({"fake": server}, [call("ask")], [call("ask")], "ok", elicitation=desk) as (
        session,
        _,
        seen,
    ):
        await ready(session)
        await session.prompt("go")
        [first, second] = await results(session)
        assert ("decline" in first[2], "cancel" in second[2]) == (True, True)
        assert "no terminal" in warnings(seen, "mcp_elicitation")[0]


@both
async def test_cancelling_the_turn_dismisses_the_question(fake: Fake, legacy: bool) -> None:
    desk = Desk()
    server = fake(FakeTool(name="ask", ask="who?"), legacy=legacy)
    async with talk({"fake": server}, [call("ask")], "ok", elicitation=desk) as (session, _, _):
        await ready(session)
        running = asyncio.create_task(session.prompt("go"))
        await until(lambda: desk.asked)
        session.cancel_active_prompt()
        await asyncio.wait([running])
        assert running.exception() is not None
        await until(lambda: desk.dismissed == 1)
        await session.prompt("again")


async def test_an_older_server_does_not_say_whose_question_it_is(fake: Fake) -> None:
    """So it is declined while calls of two conversations run; from then on its calls come one by one."""
    go = fake().folder / "go"
    desk = Desk()
    desk.answer.set_result({"answer": "me"})
    server = fake(FakeTool(name="ask", ask="who?"), FakeTool(name="work", wait=str(go)), legacy=True)
    script = [[call("work")], [call("ask")], "ok", "ok", [call("ask")], [call("ask")], "ok", "ok"]
    async with talk({"fake": server}, *script, elicitation=desk, max_running=2) as (session, _, seen):
        await ready(session)
        other = await session.open_conversation()
        busy = asyncio.create_task(session.prompt("go"))
        await until(lambda: len(server.of("call")) == 1)
        await other.prompt("go")
        assert "decline" in (await results(other))[0][2]
        assert "does not say during which call" in warnings(seen, "mcp_elicitation")[0]
        assert desk.asked == []
        go.touch()
        await busy
        await asyncio.gather(session.prompt("a"), other.prompt("b"))
        assert {asked.conversation_id for asked in desk.asked} == {session.root.id, other.id}
        assert "me" in (await results(other))[-1][2]
    after = server.events()[-4:]
    assert [event["what"] for event in after] == ["call", "end", "call", "end"]


async def test_a_modern_server_asks_for_each_call_of_its_own(fake: Fake) -> None:
    desk = Desk()
    server = fake(FakeTool(name="ask", ask="who?"))
    script = [[call("ask")], [call("ask")], "ok", "ok"]
    async with talk({"fake": server}, *script, elicitation=desk, max_running=2) as (session, _, _):
        await ready(session)
        other = await session.open_conversation()
        running = asyncio.gather(session.prompt("a"), other.prompt("b"))
        await until(lambda: len(desk.asked) == 2)
        assert {asked.conversation_id for asked in desk.asked} == {session.root.id, other.id}
        desk.answer.set_result({"answer": "me"})
        await running


@both
async def test_sampling_is_off_and_not_advertised(fake: Fake, legacy: bool) -> None:
    server = fake(FakeTool(name="sample", sample="Say hello."), legacy=legacy)
    async with talk({"fake": server}, [call("sample")], "ok") as (session, model, _):
        await ready(session)
        await session.prompt("go")
        assert (await results(session))[0][1] == "error"
        assert len(model.requests) == 2


@both
async def test_sampling_where_it_is_switched_on_is_asked_for_and_counted(fake: Fake, legacy: bool) -> None:
    server = fake(FakeTool(name="sample", sample="Say hello."), legacy=legacy)
    shown: list[Any] = []

    async def decide(approval: Any) -> bool:
        shown.append((approval.tool, approval.args.get("asks the model")))
        return len(shown) < 4

    script = ["first", [call("sample")], "hello" * 5000, "ok", [call("sample")], "ok"]
    config = {"fake": {**server.config, "sampling": True}}
    async with talk(config, *script, approvals=decide) as (session, model, seen):
        await ready(session)
        await session.prompt("a secret")
        reply = await session.prompt("go")
        [(_, status, text)] = await results(session)
        assert (status, text.count("hello"), "maxTokens" in text) == ("ok", 1600, True)
        assert [(m.role, m.text) for m in model.requests[2].messages] == [("user", "Say hello.")]
        assert (model.requests[2].tools, reply.usage.requests) == ((), 3)
        await session.prompt("again")
        assert "did not allow" in (await results(session))[-1][2]
        assert shown[:2] == [("sample", None), ("fake: sampling", "Say hello.")]
        assert "in vain" in warnings(seen, "mcp_elicitation")[0]


@both
@pytest.mark.parametrize("trust", [False, True])
async def test_a_call_that_waits_for_a_model_is_not_made_again(
    fake: Fake, legacy: bool, trust: bool, tmp_path: Path
) -> None:
    """It may have paid already: after a close it has ended, whatever it had asked for."""
    server = fake(FakeTool(name="pay", sample="Say hello.", read_only=True), legacy=legacy)
    config, store = {"fake": {**server.config, "sampling": True, "trust": trust}}, tmp_path / "s.db"
    async with talk(config, [call("pay")], store=store, approvals="ask") as (session, _, seen):
        await ready(session)
        running = await session.submit("go")
        if not trust:
            await seen.wait_for("approval_request", 1)
            await session.approvals.answer(session.approvals.pending()[0].id, "allow_once")
        await seen.wait_for("approval_request", 1 if trust else 2)
        assert [each.tool for each in session.approvals.pending()] == ["fake: sampling"]
        await session.aclose("cancel")
        assert running.status == "failed"
    assert len(server.of("call")) == 1
    async with talk(config, "on it goes", id=session.id, store=store, approvals="ask") as (again, _, _):
        assert again.approvals.pending() == []
        assert str(await again.prompt("and now?")) == "on it goes"
        assert [status for _, status, _ in await results(again)] == ["cancelled"]
    assert len(server.of("call")) == 1


async def test_the_end_of_a_call_dismisses_what_was_asked_whatever_the_server_does() -> None:
    class Context:
        conversation_id, call_id = "c", "1"

    desk = Desk()
    held = McpCall(Context(), FakeClock(), 5.0)  # type: ignore[arg-type]
    asked = Elicitation(server="s", conversation_id="c", call_id="1", message="?")  # type: ignore[arg-type]
    waiting = asyncio.create_task(held.answered(desk(asked)))
    await until(lambda: desk.asked)
    held.over()
    await asyncio.wait([waiting])
    assert (waiting.cancelled(), desk.dismissed) == (True, 1)


async def test_what_is_no_handler_is_refused() -> None:
    with pytest.raises(InvalidInput):
        await Session.open(model="demo", elicitation=5)  # type: ignore[arg-type]
