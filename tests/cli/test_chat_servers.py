"""What MCP servers ask a person in a chat."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertulia.cli.chat_servers import Questions, read_answer
from tertulia.records.errors import InvalidInput
from tertulia.tools.mcp.asking import Elicitation


def form(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required)}


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "typed", "answer"),
    [
        (form(name=TEXT), "Ada Lovelace", {"name": "Ada Lovelace"}),
        (form(name=TEXT), "name=Ada", {"name": "Ada"}),
        (form(("a", "b"), a=TEXT, b=WHOLE), "a='two words' b=3", {"a": "two words", "b": 3}),
        (form(ok={"type": "boolean"}), "yes", {"ok": True}),
        (form(ok={"type": "boolean"}), "NO", {"ok": False}),
        (form(n={"type": "number"}), "2.5", {"n": 2.5}),
        (form(c={"enum": ["red", "blue"]}), "blue", {"c": "blue"}),
        (form(c={"oneOf": [{"const": 1}, {"const": 2}]}), "2", {"c": 2}),
        (form(l={"type": "array"}), "a, b", {"l": ["a", "b"]}),
        (form(a=TEXT, b={**WHOLE, "default": 7}), "a=x", {"a": "x", "b": 7}),
        (form(a=TEXT, b=TEXT), "", {}),
        ({}, "", {}),
    ],
)
def test_what_is_typed_is_the_object_that_was_asked_for(
    schema: dict[str, Any], typed: str, answer: dict[str, Any]
) -> None:
    assert read_answer(schema, typed) == answer


@pytest.mark.parametrize(
    ("schema", "typed"),
    [
        (form(n=WHOLE), "many"), (form(ok={"type": "boolean"}), "perhaps"), (form(c={"enum": ["red"]}), "blue"),
        (form(("a",), a=TEXT, b=TEXT), "b=1"), (form(a=TEXT, b=TEXT), "c=1"), (form(a=TEXT, b=TEXT), "a='x"),
        (form(("a",), a=TEXT), ""), ({}, "x"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(schema: dict[str, Any], typed: str) -> None:
    with pytest.raises(InvalidInput):
        read_answer(schema, typed)


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    schema=st.fixed_dictionaries(
        {}, optional={"properties": st.dictionaries(st.text(max_size=5), SHAPES) | SHAPES, "required": SHAPES}
    ),
    typed=st.text(max_size=20),
)
def test_no_form_of_a_server_crashes_it(schema: dict[str, Any], typed: str) -> None:
    try:
        assert isinstance(read_answer(schema, typed), dict)
    except InvalidInput:
        return


async def test_questions_are_put_one_after_the_other() -> None:
    shown: list[str] = []
    questions = Questions()
    questions.show = shown.append

    def ask(message: str, **more: Any) -> "asyncio.Task[dict[str, Any] | None]":
        asked = Elicitation(server="s", conversation_id="c", call_id="1", message=message, **more)  # type: ignore[arg-type]
        return asyncio.ensure_future(questions(asked))

    async with asyncio.timeout(10):
        first, second, third = (
            ask("one?", schema=form(a=WHOLE)),
            ask("two?"),
            ask("three?", url="https://a.example"),
        )
        await asyncio.sleep(0)
        assert [line for line in shown if "asks" in line] == ["? the MCP server s asks: one?"]
        with pytest.raises(InvalidInput):
            questions.answer("x", questions.put)
        with pytest.raises(InvalidInput, match="typed before"):
            questions.answer("4", None)
        questions.answer("4", questions.put)
        assert await first == {"a": 4}
        assert "two?" in shown[-2]
        second.cancel()  # its call has ended
        await asyncio.wait([second])
        assert "https://a.example" in shown[-1]
        questions.decline(questions.put)
        assert await third is None
        with pytest.raises(InvalidInput):
            questions.decline(None)
