"""What a conversation sees of servers and may call; conflicts; what is unregistered; what servers change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tertulia.approvals.policy import Policy
from tertulia.records.errors import McpError, ToolConflict
from tertulia.testing import FakeClock, FakeMcpServer, FakeTool, call
from tests.mcp.kit import ready, results, shown, talk, until, warnings

Fake = Callable[..., FakeMcpServer]
OTHER = {"type": "object", "properties": {"other": {"type": "string"}}}


@pytest.mark.req("S2-07b")
async def test_a_conversation_sees_and_calls_only_what_its_view_allows(fake: Fake) -> None:
    server = fake("read", "write")
    script = [[call("write"), call("read")], "ok", [call("write"), call("read")], "ok"]
    async with talk({"fake": server}, *script, mcp_tools={"fake": ["read"]}) as (session, model, _):
        await ready(session)
        assert [each.name for each in session.list_all_tools()] == ["read"]
        await session.prompt("go")
        found = {name: (status, text) for name, status, text in await results(session)}
        assert found["read"] == ("ok", "ok")
        assert found["write"][0] == "error"
        assert "there is no tool named 'write'" in found["write"][1]
        assert shown(model) == ["read"]
        wide = await session.open_conversation(mcp_tools={"fake": ["write"]})
        child = await session.fork()
        assert (wide.active_tool_names(), child.active_tool_names()) == (("write",), ("read",))
        await wide.prompt("go")
        assert {name: status for name, status, _ in await results(wide)} == {"write": "ok", "read": "error"}
        none = await session.open_conversation(mcp_tools={})
        assert none.active_tool_names() == ()
    assert [event["tool"] for event in server.of("call")] == ["read", "write"]


async def test_the_servers_own_allow_list(fake: Fake) -> None:
    config = {**fake("read", "write").config, "tools": ["read", "nothing"]}
    async with talk({"fake": config}) as (session, _, _):
        await ready(session)
        assert session.active_tool_names() == ("read",)


@pytest.mark.req("S0-15", "S0-15b", "S0-08b")
@pytest.mark.parametrize("legacy", [False, True])
async def test_an_unregistered_tool_stays_away(fake: Fake, legacy: bool) -> None:
    change = FakeTool(name="change", appear={"name": "fresh"}, vanish="gone")
    server, clock = fake("gone", "kept", change, FakeTool(name="die", die=True), legacy=legacy), FakeClock()
    async with talk({"fake": server}, default="ok", clock=clock) as (session, model, _):
        await ready(session)
        await session.prompt("one")
        assert shown(model) == ["change", "die", "gone", "kept"]
        assert session.unregister("kept") is True
        assert session.unregister("kept") is False
        assert [each.name for each in session.tool_descriptors()] == ["change", "die", "gone"]
        model._script[:] = [[call("change")], "ok"]
        await session.prompt("two")
        assert shown(model, -2) == ["change", "die", "gone"]
        assert shown(model, -1) == ["change", "die", "fresh"]  # honoured at the very next request
        model._script[:] = [[call("die")], "ok"]
        await session.prompt("three")
        await until(lambda: session.mcp.servers()[0].state == "waiting")
        await clock.asleep(1)
        await clock.advance(1)
        await ready(session)
        await session.prompt("four")
        assert shown(model) == ["change", "die", "gone"]  # the new process does not know of the change
        assert "kept" not in session.active_tool_names()
        child = await session.fork()
        assert "kept" not in child.active_tool_names()
        [tool] = [each for each in session.mcp.tools() if each.name == "kept"]
        descriptor = session.register(tool)
        assert (descriptor.name, descriptor.source) == ("kept", "mcp")
        await session.prompt("five")
        assert shown(model) == ["change", "die", "gone", "kept"]


@pytest.mark.req("S0-08b")
async def test_register_widens_a_view_and_takes_tools_of_known_servers_only(fake: Fake) -> None:
    async with talk({"fake": fake("a", "b")}, mcp_tools={"fake": ["a"]}) as (session, _, _):
        await ready(session)
        b = session.mcp.tools()[1]
        session.register(b)
        assert session.active_tool_names() == ("a", "b")
        assert session.unregister("b") is True
        assert session.active_tool_names() == ("a",)
        bare = await session.open_conversation(mcp_servers={})
        with pytest.raises(McpError):
            bare.register(b)


@pytest.mark.req("S2-05a", "S2-05c")
async def test_the_order_of_all_tools(fake: Fake) -> None:
    def zulu() -> str:
        return ""

    def alpha() -> str:
        return ""

    servers = {"two": fake("m", "a", name="two"), "one": fake("z", "b", name="one")}
    async with talk(servers, default="ok", tools=[zulu]) as (session, model, _):
        session.register(alpha)
        await ready(session)
        expected = ["zulu", "alpha", "b", "z", "a", "m"]
        assert [each.name for each in session.list_all_tools()] == expected
        await session.prompt("go")
        assert shown(model) == expected
        assert [each.source for each in session.list_all_tools()] == ["native"] * 2 + ["mcp"] * 4


@pytest.mark.req("S2-05b", "S2-14b")
async def test_conflicts_are_told_once_and_harm_no_prompt(fake: Fake) -> None:
    def x(q: str) -> str:
        return "native"

    servers = {
        "a": fake(FakeTool(name="y", schema=OTHER), FakeTool(name="x", schema=OTHER), name="a"),
        "b": fake("y", FakeTool(name="q"), name="b"),
    }
    script = ["ok", [call("x", q="?"), call("y", other="o")], "ok"]
    async with talk(servers, *script, tools=[x], default="ok") as (session, model, seen):
        await ready(session)
        await session.prompt("one")
        assert shown(model) == ["x", "y", "q"]
        assert sorted(warnings(seen, "tool_conflict")) == [
            "the tool x of the MCP server a differs from that of this program, which is kept",
            "the tool y of the MCP server b differs from that of the MCP server a, which is kept",
        ]
        await session.prompt("two")
        assert len(warnings(seen, "tool_conflict")) == 2
        assert [text for _, _, text in sorted(await results(session))] == ["native", "ok"]

        def q(other: int) -> int:
            return other

        with pytest.raises(ToolConflict):
            session.register(q)
        await until(lambda: len(warnings(seen, "tool_conflict")) == 3)
        session.unregister("q")
        session.register(q)
        assert session.active_tool_names() == ("x", "q", "y")


@pytest.mark.req("S2-05b")
async def test_qualified_names_reach_both(fake: Fake) -> None:
    servers = {
        "a": fake(FakeTool(name="y", schema=OTHER, text="of a"), name="a"),
        "b": fake(FakeTool(name="y", text="of b"), name="b"),
    }
    script = [[call("a__y", other="o"), call("b__y")], "ok"]
    async with talk(servers, *script, on_conflict="qualify") as (session, model, seen):
        await ready(session)
        await session.prompt("go")
        assert shown(model) == ["a__y", "b__y"]
        assert sorted(text for _, _, text in await results(session)) == ["of a", "of b"]
        assert warnings(seen) == []


@pytest.mark.req("S2-05b")
@pytest.mark.parametrize("legacy", [False, True])
async def test_a_conflict_by_list_changed_keeps_the_earlier_tool(fake: Fake, legacy: bool) -> None:
    change = FakeTool(name="change", appear={"name": "y", "schema": OTHER})
    servers = {
        "a": fake(change, name="a", legacy=legacy),
        "b": fake(FakeTool(name="y", text="of b"), name="b"),
    }
    async with talk(servers, [call("change")], [call("y")], "ok") as (session, model, seen):
        await ready(session)
        await session.prompt("go")
        assert shown(model) == ["change", "y"]
        assert (await results(session))[-1] == ("y", "ok", "of b")
        assert warnings(seen) == [
            "the tool y of the MCP server a differs from that of the MCP server b, which is kept"
        ]


@pytest.mark.parametrize(("trust", "asked"), [(False, ["look", "write"]), (True, ["write"])])
async def test_tools_of_servers_ask_unless_a_trusted_one_says_that_it_only_reads(
    fake: Fake, trust: bool, asked: list[str]
) -> None:
    config = {**fake(FakeTool(name="look", read_only=True), "write").config, "trust": trust}
    seen: list[str] = []

    async def allow(approval: Any) -> bool:
        seen.append(approval.tool)
        return True

    async with talk({"fake": config}, [call("look"), call("write")], "ok", approvals=allow) as (
        session,
        _,
        _,
    ):
        await ready(session)
        await session.prompt("go")
        assert sorted(seen) == asked
        assert {status for _, status, _ in await results(session)} == {"ok"}


@pytest.mark.parametrize(
    ("name", "status"), [("look", "denied"), ("fake/look", "ok"), ("other/look", "denied")]
)
async def test_a_mode_for_a_tool_is_not_for_a_servers_tool_of_that_name(
    fake: Fake, name: str, status: str
) -> None:
    policy = Policy(mode="deny", tools={name: "allow"})
    async with talk({"fake": fake("look")}, [call("look")], "ok", approvals=policy) as (session, _, _):
        await ready(session)
        await session.prompt("go")
        assert [found for _, found, _ in await results(session)] == [status]


async def test_a_prompt_with_tools_of_its_own_has_no_others(fake: Fake, tmp_path: Path) -> None:
    async with talk({"fake": fake("a")}, default="ok") as (session, model, _):
        await ready(session)
        await session.prompt("go", tools=[])
        assert shown(model) == []
