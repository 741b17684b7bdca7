"""delegate: what a helper is given, what comes back, and what it may not do."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tertulia import Host, Session, ToolContext
from tertulia.records.errors import ModelError, PromptCancelled
from tertulia.testing import EventRecorder, ScriptedModel, call, hold
from tertulia.tools.builtin import default_tools
from tests.scenarios.kit import add, asked, texts

BUILT_IN = tuple(tool for tool in default_tools() if tool.name in ("read", "write", "delegate"))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "memory" else str(tmp_path / "s.db")


def opened(store: Any, root: Path, *script: Any, **options: Any) -> tuple[Any, ScriptedModel]:
    model = ScriptedModel(script)
    given = {"tools": [*BUILT_IN, add], "cwd": root, "approvals": "allow", **options}
    return Session.open(model=model, store=store, **given), model


async def results(session: Any) -> list[tuple[str, str]]:
    return [(each.status, each.text) for each in await session.transcript() if each.type == "tool_result"]


async def test_a_helper_starts_empty_with_the_same_tools_and_its_last_text_is_the_result(
    store: Any, root: Path
) -> None:
    script = [
        [call("delegate", task="Add 2 and 3.\nSay the sum.")],
        [call("add", a=2, b=3)],
        "It is 5.",
        "The helper says 5.",
    ]
    opening, model = opened(store, root, *script)
    async with opening as session, EventRecorder(session) as seen:
        assert str(await session.prompt("Secret history.")) == "The helper says 5."
        assert await results(session) == [("ok", "It is 5.")]
        assert asked(model.requests[1]) == [("user", "Add 2 and 3.\nSay the sum.")]
        assert [tool.name for tool in model.requests[1].tools] == ["read", "write", "add"]
        (progress,) = seen.of("tool_progress")
        started = progress.data["progress"]
        assert (progress.conversation_id, started["state"]) == (session.root.id, "started")
        assert started["conversation_id"] != session.root.id
        page = await session._shared.store.list()
        titles = {row.id: row.title for row in page.rows}
        assert titles == {session.root.id: None, started["conversation_id"]: "Add 2 and 3."}


async def test_a_helper_can_be_given_some_of_the_tools(store: Any, root: Path) -> None:
    script = [
        [call("delegate", task="Look.", tools=["read"])],
        [call("write", path="a", content="x")],
        "No.",
        "End.",
    ]
    opening, model = opened(store, root, *script)
    async with opening as session:
        await session.prompt("Go.")
        assert [tool.name for tool in model.requests[1].tools] == ["read"]
        assert "no tool named 'write'; available: read" in model.requests[2].messages[-1].text
        assert not (root / "a").exists()


@pytest.mark.parametrize("name", ["nothing", "delegate", "fetch"])
async def test_a_tool_that_there_is_not_is_named(store: Any, root: Path, name: str) -> None:
    opening, model = opened(store, root, [call("delegate", task="Look.", tools=["read", name])], "End.")
    async with opening as session:
        await session.prompt("Go.")
        ((status, text),) = await results(session)
        assert (status, text) == (
            "error",
            f"the helper cannot have {name!r} (there are read, write, add)",
        )
        assert len(session.conversations) == 1


async def test_a_tool_of_the_helper_that_is_denied(store: Any, root: Path) -> None:
    script = [[call("delegate", task="Write.")], [call("write", path="a", content="x")], "I may not.", "End."]
    opening, model = opened(store, root, *script, approvals="ask")
    async with opening as session, EventRecorder(session) as seen:
        running = asyncio.ensure_future(session.prompt("Go."))
        request = await seen.wait_for("approval_request")
        (waiting,) = session.approvals.pending()
        started = seen.of("tool_progress")[0].data["progress"]["conversation_id"]
        assert waiting.conversation_id == started != session.root.id
        assert request is not None
        await session.approvals.answer(waiting.id, decision="deny", scope="once", feedback="not now")
        await running
        assert "not now" in model.requests[2].messages[-1].text
        assert await results(session) == [("ok", "I may not.")]


async def test_a_helper_that_fails_is_an_error_and_the_turn_goes_on(store: Any, root: Path) -> None:
    script = [[call("delegate", task="Fail."), call("delegate", task=" ")], ModelError("it broke"), "End."]
    opening, _ = opened(store, root, *script)
    async with opening as session:
        assert str(await session.prompt("Go.")) == "End."
        found = dict((text, status) for status, text in await results(session))
        assert found["it broke"] == "error"
        assert any("empty" in text for text in found)


async def test_a_cancel_reaches_the_helper(store: Any, root: Path) -> None:
    held = hold()
    opening, _ = opened(store, root, [call("delegate", task="Wait.")], held, "Again.")
    async with opening as session:
        running = asyncio.ensure_future(session.prompt("Go."))
        await held.until_reached()
        assert len(session.tasks) == 2
        await session.cancel()
        with pytest.raises(PromptCancelled):
            await running
        assert not session.tasks
        assert await results(session) == [("cancelled", "cancelled")]
        assert [each.id for each in session.conversations] == [session.root.id]
        assert str(await session.prompt("And now?")) == "Again."


async def test_a_helper_delegates_nothing_by_whatever_way(store: Any, root: Path) -> None:
    async def ask(context: ToolContext) -> str:
        """Ask a conversation with all the tools."""
        return str(await context.prompt("inner"))

    script = [
        [call("delegate", task="One.")],
        [call("delegate", task="Two."), call("ask")],
        [call("delegate", task="Three.")],
        "inner done",
        "one done",
        "End.",
    ]
    opening, model = opened(store, root, *script, tools=[*BUILT_IN, ask])
    async with opening as session:
        assert str(await session.prompt("Go.")) == "End."
        assert "helper does not delegate" in model.requests[3].messages[-1].text
        assert "there is no tool named 'delegate'" in model.requests[4].messages[-1].text
        assert await results(session) == [("ok", "one done")]


async def test_a_renamed_delegate_is_not_passed_on_either(store: Any, root: Path) -> None:
    helper = msgspec.structs.replace(BUILT_IN[-1], name="helper")
    opening, model = opened(store, root, [call("helper", task="Look.")], "Seen.", "End.", tools=[helper])
    async with opening as session:
        await session.prompt("Go.")
        assert list(model.requests[1].tools) == []


async def test_a_helper_that_reached_its_limit_says_so(store: Any, root: Path) -> None:
    script = [[call("delegate", task="Work.")], [call("add", a=1, b=1)], [call("add", a=1, b=1)], "End."]
    opening, _ = opened(store, root, *script, turn_limit=2)
    async with opening as session:
        await session.prompt("Go.")
        assert (await results(session))[0] == ("ok", "[the helper stopped early: turn_limit]")


@pytest.mark.parametrize("how", ["session", "prompt"])
async def test_a_helper_stores_no_more_than_the_one_who_asks(tmp_path: Path, root: Path, how: str) -> None:
    script = [[call("delegate", task="A confidential task.")], "confidential answer", "End."]
    strict = {"retention": "headers_only"}
    opening, _ = opened(str(tmp_path / "s.db"), root, *script, **(strict if how == "session" else {}))
    async with opening as session:
        await session.prompt("Go.", **(strict if how == "prompt" else {}))
    kept = (tmp_path / "s.db").read_bytes()
    assert b"confidential" not in kept


async def test_the_helpers_conversation_can_be_read_later(tmp_path: Path, root: Path) -> None:
    place = str(tmp_path / "s.db")
    opening, _ = opened(place, root, [call("delegate", task="Look.")], "Seen.", "End.")
    async with opening as session:
        await session.prompt("Go.")
        root_id = session.root.id
    async with await Host.open(store=place, model="demo") as host:
        (found,) = [row for row in (await host.list()).rows if row.id != root_id]
        assert found.title == "Look."
        assert await texts(await host.load(found.id)) == [("user", "Look."), ("assistant", "Seen.")]
