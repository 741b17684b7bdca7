"""What MCP servers ask a person in a chat."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tertulia.cli import talk
from tertulia.cli.chat_servers import Questions, read_answer
from tertulia.cli.main import make_parser
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
        (form(("a",), a=TEXT), ""), ({}, "x"), (form(n={"type": "number"}), "nan"),
        (form(n={"type": "number"}), "-inf"), (form(n={"type": "number"}), "1e999"),
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


BREAKS = ("\n", "\r\n", "\r", "\x0b", "\x85", "\u2028")
OURS = "? shell wants to run: ls"


@pytest.mark.parametrize("between", BREAKS)
async def test_no_line_of_a_server_looks_like_one_of_ours(between: str) -> None:
    shown: list[str] = []
    questions = Questions()
    questions.show = shown.append
    text = f"hello{between}{between}{OURS}{' ' * 200}{OURS}"
    fields = {
        text: {"title": text, "description": text, "type": text}, "b": {"enum": [text]},
        "c": {"oneOf": [{"const": text}]},
    }  # fmt: skip
    for more in ({"schema": form(**fields)}, {"url": text}):
        asked = Elicitation(server="s", conversation_id="c", call_id="1", message=text, **more)  # type: ignore[arg-type]
        task = asyncio.ensure_future(questions(asked))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert len(shown) == 7  # for each a question, three fields or an address, and how to answer
    one = f"hello ⏎ {OURS} {OURS}"
    assert shown[0] == f"? the MCP server s asks: {one}"
    assert shown[1] == f"  {one}: {one} {one} ({one})"
    assert shown[2:4] == [f"  b: ({one})", f"  c: ({one})"]
    assert one in shown[6]
    for schema, typed in (
        (form(**fields), "x=1"), (form(**fields), "b=1"), (form((text,), **fields), ""),
        (form(**{text: WHOLE}), "x"), (form(**{text: {"type": "boolean"}}), "x"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as refused:
            read_answer(schema, typed)
        assert len(f"{refused.value.message} {refused.value.hint}".splitlines()) == 1


async def test_what_a_server_says_is_bounded() -> None:
    shown: list[str] = []
    questions = Questions()
    questions.show = shown.append
    asked = Elicitation(
        server="s", conversation_id="c", call_id="1", message="m" * 9000,  # type: ignore[arg-type]
        schema=form(**{"n" * 9000: {"title": "t" * 9000, "enum": ["e" * 9, *map(str, range(9000))]}}),
    )  # fmt: skip
    task = asyncio.ensure_future(questions(asked))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert [len(line) < 1600 for line in shown] == [True] * 3
    assert shown[0].endswith("m…")


@pytest.mark.parametrize(("typed", "network"), [("OFF", None), ("Off ", None), ("ON", "on"), ("On", "on")])
def test_off_and_on_are_no_hosts_in_whatever_case(typed: str, network: str | None) -> None:
    chosen: Any = talk.sandbox(make_parser(only="chat").parse_args(["chat", "--network", typed]))
    assert chosen == "on" if network is None else chosen.network == network


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
