"""The order of tools, and what becomes of two with one name."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tertulia import Tool, tool
from tertulia.records.errors import ToolConflict
from tertulia.tools.base import as_tool
from tertulia.tools.toolbox import Toolbox, combined, toolbox


def made(name: str, server: str | None = None, *arguments: str) -> Tool:
    parameters = {"type": "object", "properties": {each: {"type": "string"} for each in arguments or ("q",)}}
    source: Any = "mcp" if server else "native"
    return as_tool(Tool(name=name, fn=lambda **_: None, parameters=parameters, source=source, server=server))


def names(box: Toolbox) -> list[tuple[str, str | None]]:
    return [(each.name, each.server) for each in box.tools]


@pytest.mark.req("S2-05c", "S2-05a")
def test_registered_tools_come_in_their_order_before_those_of_servers() -> None:
    box = toolbox([made("zeta"), made("alpha")]).with_tool(made("mid"))
    found = [(made("b", "one"), False), (made("c", "one"), False), (made("a", "two"), False)]
    all_tools, conflicts = combined(box, found)
    assert names(all_tools) == [
        ("zeta", None), ("alpha", None), ("mid", None), ("b", "one"), ("c", "one"), ("a", "two"),
    ]  # fmt: skip
    assert not conflicts
    assert combined(box, found)[0] == all_tools


@pytest.mark.req("S2-05b")
def test_equal_tools_are_one_and_the_first_is_kept() -> None:
    found = [(made("x", "a"), False), (made("x", "b"), False), (made("y", "b"), False)]
    box, conflicts = combined(toolbox([made("y")]), found)
    assert (names(box), conflicts) == ([("y", None), ("x", "a")], ())
    assert names(combined(Toolbox(), found, qualify=True)[0]) == [("x", "a"), ("y", "b")]


@pytest.mark.req("S2-05b")
def test_of_different_tools_the_first_is_kept_and_the_other_named() -> None:
    found = [(made("x", "a"), False), (made("x", "b", "other"), False), (made("n", "b", "other"), False)]
    box, conflicts = combined(toolbox([made("n")]), found)
    assert names(box) == [("n", None), ("x", "a")]
    assert sorted(conflicts) == [
        "the tool n of the MCP server b differs from that of this program, which is kept",
        "the tool x of the MCP server b differs from that of the MCP server a, which is kept",
    ]


@pytest.mark.req("S2-05b")
def test_one_that_came_late_does_not_drive_out_one_that_was_there() -> None:
    found = [(made("x", "a", "new"), True), (made("x", "b"), False)]
    box, conflicts = combined(Toolbox(), found)
    assert (names(box), len(conflicts)) == ([("x", "b")], 1)


@pytest.mark.req("S2-05b")
def test_qualified_both_stay() -> None:
    found = [(made("x", "a.b"), False), (made("x", "b", "other"), False), (made("n", "b", "other"), False)]
    box, conflicts = combined(toolbox([made("n")]), found, qualify=True)
    assert names(box) == [("n", None), ("a_b__x", "a.b"), ("b__x", "b"), ("b__n", "b")]
    assert conflicts == ()


@pytest.mark.req("S2-05b")
def test_a_name_made_to_look_qualified_gains_nothing() -> None:
    found = [(made("b__x", "a", "forged"), False), (made("x", "a"), False), (made("x", "b", "other"), False)]
    box, conflicts = combined(Toolbox(), found, qualify=True)
    assert len({name for name, _ in names(box)}) == len(names(box))
    assert len(conflicts) == 1


@pytest.mark.req("S2-05b")
def test_registering_a_different_tool_of_one_name_is_a_conflict() -> None:
    @tool
    def x(q: str) -> str:
        return q

    with pytest.raises(ToolConflict) as conflict:
        toolbox([made("x", None, "other"), x])
    assert conflict.value.details == {"name": "x"}


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.sampled_from(["a", "b"]), st.sampled_from("pq"), st.booleans())
    )
)
@settings(max_examples=100)
def test_names_are_unique_and_the_order_is_kept(given: list[tuple[str, str, str, bool]]) -> None:
    found = [(made(name, server, argument), late) for name, server, argument, late in given]
    for qualify in (False, True):
        box, conflicts = combined(toolbox([made("x")]), found, qualify=qualify)
        shown = [each.name for each in box.tools]
        assert len(set(shown)) == len(shown)
        assert shown[0] == "x"
        again = combined(toolbox([made("x")]), found, qualify=qualify)
        assert (names(again[0]), again[1]) == (names(box), conflicts)
