"""What goes out to each provider."""

import base64
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tertulia.models.base import ToolSpec
from tertulia.models.hosted_messages import CONVERSATIONS, Converter, wire_id
from tertulia.records.ids import CallId
from tertulia.records.parts import AnyPart, Blob, Data, File, Image
from tertulia.records.record import Reasoning, ToolCall
from tertulia.testing import call
from tertulia.testing.providers import Reply, Think
from tertulia.transcript.context import ModelMessage
from tests.models.hosted_kit import (
    ADD,
    KEY,
    MODELS,
    Answer,
    Asked,
    asked,
    results,
    said,
    tool_call,
    tool_result,
    user,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
WHERE = {"anthropic": "messages", "openai": "input", "google": "contents"}


def spoken(provider: str, body: Any) -> list[Any]:
    """The conversation of a body; marks of the prompt cache are no part of it, as the providers see it too."""
    return [_unmarked(message) for message in body[WHERE.get(provider, "messages")]]


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    return [_unmarked(inner) for inner in value] if isinstance(value, list) else value


def found(value: Any, key: str) -> list[Any]:
    """All that stands under a key, anywhere."""
    if isinstance(value, dict):
        return [value[key] for _ in (1,) if key in value] + [x for v in value.values() for x in found(v, key)]
    return [x for v in value for x in found(v, key)] if isinstance(value, list) else []


def called(provider: str, body: Any) -> list[tuple[str, Any]]:
    """(id, arguments) of all calls of a body."""
    if provider == "anthropic":
        blocks = [b for m in body["messages"] for b in m["content"] if b["type"] == "tool_use"]
        return [(b["id"], b["input"]) for b in blocks]
    if provider == "openai":
        items = [i for i in body["input"] if i.get("type") == "function_call"]
        return [(i["call_id"], json.loads(i["arguments"])) for i in items]
    if provider == "google":
        return [(each.get("id"), each["args"]) for each in found(body["contents"], "functionCall")]
    made = [c for m in body["messages"] for c in m.get("tool_calls") or ()]
    return [(c["id"], json.loads(c["function"]["arguments"])) for c in made]


def answered(provider: str, body: Any) -> list[tuple[str, str]]:
    """(id, content as JSON) of all results of a body."""
    if provider == "anthropic":
        blocks = [b for m in body["messages"] for b in m["content"] if b["type"] == "tool_result"]
        return [(b["tool_use_id"], json.dumps(b["content"])) for b in blocks]
    if provider == "openai":
        items = [i for i in body["input"] if i.get("type") == "function_call_output"]
        return [(i["call_id"], json.dumps(i["output"])) for i in items]
    if provider == "google":
        given = found(body["contents"], "functionResponse")
        return [(each.get("id"), json.dumps(each["response"])) for each in given]
    return [(m["tool_call_id"], json.dumps(m["content"])) for m in body["messages"] if m["role"] == "tool"]


TWO_CALLS = (
    user("Add."),
    said("I add.", tool_call("call_1", a=1, b=2), tool_call("call_2", a=3, b=4)),
    results(tool_result("call_1", "three"), tool_result("call_2", "seven")),
)


@pytest.mark.req("S1-003c")
async def test_the_system_prompt_and_the_tools_go_with_it(provider: str) -> None:
    async with asked(provider, ["Hello."]) as it:
        await it.ask(system="Be brief.", tools=(ADD,))
    sent = json.dumps(it.body)
    assert sent.count("Be brief.") == 1
    assert sent.count("Add two numbers.") == 1


async def test_each_call_has_one_result(provider: str) -> None:
    async with asked(provider, ["Done."]) as it:
        await it.ask(*TWO_CALLS, tools=(ADD,))
    assert called(provider, it.body) == [("call_1", {"a": 1, "b": 2}), ("call_2", {"a": 3, "b": 4})]
    (first, three), (second, seven) = answered(provider, it.body)
    assert (first, second) == ("call_1", "call_2")
    assert "three" in three
    assert "seven" in seven


async def test_parallel_calls_stand_in_one_message() -> None:
    async with asked("anthropic", ["Done."]) as it:
        await it.ask(*TWO_CALLS, tools=(ADD,))
    kinds = [(m["role"], [b["type"] for b in m["content"]]) for m in it.body["messages"]]
    assert kinds == [
        ("user", ["text"]),
        ("assistant", ["text", "tool_use", "tool_use"]),
        ("user", ["tool_result", "tool_result"]),
    ]


@pytest.mark.req("S2-04b")
async def test_what_was_sent_is_repeated_to_the_byte(provider: str) -> None:
    """A prefix that changes is not read from the provider's cache."""
    think, first = Think("Hm."), call("add", a=1, b=2, call_id="call_1")
    async with asked(provider, [Reply(think, "I add.", first), *["Yes."] * 3]) as it:
        history = [user("Add.", Image(media="image/png", data=PNG))]
        answer = await it.ask(*history, tools=(ADD,), system="Be brief.")
        (kept,) = answer.end.reasoning
        reasoning = (Reasoning(seq=2, ts=2, provider=kept.provider, blob=kept.blob, text=kept.text),)
        history += [said("I add.", tool_call("call_1", a=1, b=2), reasoning=reasoning)]
        history += [results(tool_result("call_1", "three"))]
        for turn in range(3):
            await it.ask(*history, tools=(ADD,), system="Be brief.")
            history += [said("Yes."), user(f"And {turn}?")]
    bodies = [seen.json for seen in it.fake.requests]
    for before, after in zip(bodies, bodies[1:], strict=False):
        old, new = spoken(provider, before), spoken(provider, after)
        assert json.dumps(new[: len(old)]) == json.dumps(old)
        assert len(new) > len(old)
        for key in ("system", "tools", "systemInstruction", "model"):
            assert json.dumps(before.get(key)) == json.dumps(after.get(key))


async def test_a_message_is_converted_once() -> None:
    async with asked("anthropic", default="Yes.") as it:
        history = [user("One."), said("Yes."), user("Two.")]
        await it.ask(*history)
        converter = (await it.model._layer())._converter
        before = converter.messages(history)
        after = converter.messages([*history, said("Yes."), user("Three.")])
        changed = converter.messages([history[0], said("No."), history[2]])
    assert all(one is other for one, other in zip(before, after, strict=False))
    assert [one is other for one, other in zip(before, changed, strict=True)] == [True, False, False]


async def test_conversations_are_forgotten_in_turn() -> None:
    async with asked("anthropic", default="Yes.") as it:
        await it.ask()
        converter = (await it.model._layer())._converter
        many = [user(f"{n}") for n in range(CONVERSATIONS * 2)]
        for message in many:
            converter.messages([message])
        assert len(converter._known) == CONVERSATIONS
        (one,), (other,) = converter.messages([many[0]]), converter.messages([many[0]])
        assert one is other
        assert converter.messages([]) == []


async def test_the_prompt_cache_is_asked_for() -> None:
    async with asked("anthropic", ["Done."]) as it:
        await it.ask(*TWO_CALLS, tools=(ADD,), system="Be brief.")
    body = it.body
    marked = [bool(found(part, "cache_control")) for part in (body["system"], body["tools"])]
    assert marked == [True, True]
    blocks = [block for message in body["messages"] for block in message["content"]]
    assert ["cache_control" in block for block in blocks] == [False] * 4 + [False, True]


async def test_openai_keeps_nothing_and_gives_its_reasoning_back() -> None:
    async with asked("openai", ["Done."]) as it:
        await it.ask()
    assert it.body["store"] is False
    assert it.body["include"] == ["reasoning.encrypted_content"]


# ── reasoning ──


def as_message(answer: Answer, **changes: Any) -> ModelMessage:
    """An answer as the log gives it back."""
    reasoning = tuple(
        Reasoning(seq=1, ts=1, **{**msgspec.structs.asdict(part), **changes}) for part in answer.end.reasoning
    )
    calls = tuple(tool_call(each.id or "", **each.args) for each in answer.end.calls)
    return said("".join(answer.said), *calls, reasoning=reasoning)


def after(message: ModelMessage) -> tuple[ModelMessage, ...]:
    given = (
        (results(*(tool_result(each.call_id, "three") for each in message.calls)),) if message.calls else ()
    )
    return (user("Hi."), message, *given, user("Go on."))


SIGNATURES = {"anthropic": "signature", "openai": "encrypted_content", "google": "thoughtSignature"}
UNSIGNED = base64.b64encode(
    b"skip_thought_signature_validator"
).decode()  # what Gemini wants with foreign calls
THOUGHTFUL = Reply(Think("Hm.", "c2lnbmVk"), "I add.", call("add", a=1, b=2, call_id="call_1"))


@pytest.mark.parametrize("signing", SIGNATURES)
async def test_signed_reasoning_goes_back_as_it_was(signing: str) -> None:
    async with asked(signing, [THOUGHTFUL, "Done."]) as it:
        await it.ask(*after(as_message(await it.ask(tools=(ADD,)))), tools=(ADD,))
    sent = json.dumps(it.body)
    assert len(found(it.body, SIGNATURES[signing])) == 1
    assert sent.count("c2lnbmVk") == 1 or signing == "google"  # there it is encoded once more
    assert sent.count("Hm.") == 1
    assert sent.count("I add.") == 1
    assert [args for _, args in called(signing, it.body)] == [{"a": 1, "b": 2}]


async def test_reasoning_stays_where_it_stood_between_text_and_calls() -> None:
    pieces = (Think("One.", "s1"), "First. ", Think("Two.", "s2"), "Then.", Think("", "s3"))
    async with asked("anthropic", [Reply(*pieces, call("add", a=1, b=2)), "Done."]) as it:
        await it.ask(*after(as_message(await it.ask(tools=(ADD,)))), tools=(ADD,))
    blocks = it.body["messages"][1]["content"]
    assert [(b["type"], b.get("thinking", b.get("text")), b.get("signature")) for b in blocks] == [
        ("thinking", "One.", "s1"),
        ("text", "First. ", None),
        ("thinking", "Two.", "s2"),
        ("text", "Then.", None),
        ("thinking", "", "s3"),
        ("tool_use", None, None),
    ]


@pytest.mark.parametrize(
    "changes", [{"text": "H…"}, {"blob": "[]"}, {"blob": "no JSON"}, {"blob": '[{"kind":"x"}]'}]
)
async def test_reasoning_that_was_changed_is_not_sent(changes: dict[str, str]) -> None:
    """A signature over another text would have the request refused."""
    async with asked("anthropic", [THOUGHTFUL, "Done."]) as it:
        await it.ask(*after(as_message(await it.ask(tools=(ADD,)), **changes)), tools=(ADD,))
    assert [b["type"] for b in it.body["messages"][1]["content"]] == ["text", "tool_use"]


async def test_reasoning_of_an_answer_that_lost_a_call_is_not_sent() -> None:
    """What a cancel cut short keeps the calls that were answered."""
    async with asked("anthropic", [Reply(Think("Hm."), call("add"), call("add")), "Done."]) as it:
        whole = as_message(await it.ask(tools=(ADD,)))
        await it.ask(*after(msgspec.structs.replace(whole, calls=whole.calls[:1])), tools=(ADD,))
    assert [b["type"] for b in it.body["messages"][1]["content"]] == ["tool_use"]


async def test_a_signed_call_goes_back_without_any_thinking() -> None:
    async with asked("google", [Reply(Think("", "c2lnbmVk"), call("add", a=1, b=2)), "Done."]) as it:
        answer = await it.ask(tools=(ADD,))
        await it.ask(*after(as_message(answer)), tools=(ADD,))
    assert [part.text for part in answer.end.reasoning] == [""]
    assert found(it.body, "thoughtSignature") == [base64.b64encode(b"c2lnbmVk").decode()]


async def test_reasoning_of_an_answer_that_lost_its_text_is_not_sent() -> None:
    async with asked("anthropic", [THOUGHTFUL, "Done."]) as it:
        whole = as_message(await it.ask(tools=(ADD,)))
        await it.ask(*after(msgspec.structs.replace(whole, parts=())), tools=(ADD,))
    assert [b["type"] for b in it.body["messages"][1]["content"]] == ["tool_use"]


@pytest.mark.parametrize("other", MODELS)
async def test_another_provider_gets_calls_and_text_and_no_reasoning(provider: str, other: str) -> None:
    async with asked(provider, [THOUGHTFUL, "Done."]) as it:
        message = as_message(await it.ask(tools=(ADD,)))
        switched = Asked(other, it.fake)
        if other != provider:
            await switched.ask(*after(message), tools=(ADD,))
            sent = json.dumps(it.body)
            assert "Hm." not in sent
            signed = found(it.body, SIGNATURES.get(other, "reasoning_content"))
            assert signed in ([], [UNSIGNED])
            assert sent.count("I add.") == 1
            assert [args for _, args in called(other, it.body)] == [{"a": 1, "b": 2}]
            assert len(answered(other, it.body)) == 1
        await switched.model.aclose()


# ── parts ──


async def test_an_image_goes_out_once(provider: str) -> None:
    async with asked(provider, default="Seen.") as it:
        history = [user("Look.", Image(media="image/png", data=PNG)), said("Seen."), user("Again?")]
        await it.ask(*history)
    sent = json.dumps(it.body)
    encoded = [base64.b64encode(PNG).decode(), base64.urlsafe_b64encode(PNG).decode()]
    assert sum(sent.count(each) for each in set(encoded)) == 1
    assert sent.count("Look.") == 1


async def test_an_image_of_a_tool_goes_with_its_result(provider: str) -> None:
    async with asked(provider, ["Seen."]) as it:
        given = tool_result("call_1", "The plot:", Image(media="image/png", data=PNG))
        await it.ask(user("Plot."), said("", tool_call("call_1", a=1, b=2)), results(given), tools=(ADD,))
    sent = json.dumps(it.body)
    assert len(answered(provider, it.body)) == 1
    assert (
        sent.count(base64.b64encode(PNG).decode()) + sent.count(base64.urlsafe_b64encode(PNG).decode()) == 1
    )


@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-chat", "ollama"])  # Gemini wants bytes
async def test_an_image_by_its_address(provider: str) -> None:
    async with asked(provider, ["Seen."]) as it:
        await it.ask(user("Look.", Image(media="image/png", url="https://example.org/a.png")))
    assert "https://example.org/a.png" in json.dumps(it.body)


async def test_a_document_goes_where_documents_are_taken() -> None:
    async with asked("anthropic", ["Read."]) as it:
        await it.ask(user("Read.", File(media="application/pdf", data=b"%PDF-1.4", name="a.pdf")))
    assert [b["type"] for b in it.body["messages"][0]["content"]] == ["text", "document"]


SHOWN: list[tuple[AnyPart, str]] = [
    (File(media="text/csv", data="a,ü\n1,2".encode(), name="a.csv"), "a.csv:\na,ü\n1,2"),
    (File(media="video/mp4", data=b"...", name="a.mp4"), "[file a.mp4: not shown to this model]"),
    (Image(media="image/tiff", data=b"..."), "[image image/tiff: not shown to this model]"),
    (Image(media="image/png", ref="blob-1"), "[image image/png: not shown to this model]"),
    (Data(name="chart_data", value={"x": [1]}), 'chart_data: {"x":[1]}'),
    (
        Blob(ref="b", of="text", size=1_000_000, head="It began"),
        "It began\n[… the rest of 1,000,000 bytes is left out …]",
    ),
    (Blob(ref="b", of="data", size=10), "[blob]"),
]


@pytest.mark.parametrize(("part", "text"), SHOWN, ids=[text[:12] for _, text in SHOWN])
async def test_what_a_model_cannot_take_is_named_in_its_place(part: AnyPart, text: str) -> None:
    async with asked("anthropic", ["Seen."]) as it:
        await it.ask(user(part))
    assert [b["text"] for b in it.body["messages"][0]["content"]] == [text]


def test_a_model_that_takes_no_images_is_sent_none() -> None:
    blind = Converter("openai-chat", SimpleNamespace(system="x", profile={"supports_image_input": False}))
    (wire,) = blind.messages([user("Look.", Image(media="image/png", data=PNG, name="a.png"))])
    assert wire.parts[0].content == "Look.\n[image a.png: not shown to this model]"


async def test_how_a_tool_ended_is_told() -> None:
    pairs = [
        ("call_1", "ok"),
        ("call_2", "error"),
        ("call_3", "denied"),
        ("call_4", "timeout"),
        ("call_5", "cancelled"),
    ]
    async with asked("anthropic", ["Done."]) as it:
        calls = said("", *(tool_call(id, a=1, b=1) for id, _ in pairs))
        await it.ask(
            user("Go."),
            calls,
            results(*(tool_result(id, "x", status=how) for id, how in pairs)),
            tools=(ADD,),
        )
    blocks = it.body["messages"][2]["content"]
    assert [block["is_error"] for block in blocks] == [False, True, True, True, True]


async def test_a_result_without_content_is_one(provider: str) -> None:
    async with asked(provider, ["Done."]) as it:
        await it.ask(
            user("Go."), said("", tool_call("call_1", a=1, b=1)), results(tool_result("call_1")), tools=(ADD,)
        )
    assert len(answered(provider, it.body)) == 1


async def test_a_system_note_stays_at_its_place(provider: str) -> None:
    note = ModelMessage("system", user("The file has changed.").parts)
    async with asked(provider, ["Done."]) as it:
        await it.ask(user("One."), said("Yes."), note, user("Two."), system="Be brief.")
    sent = json.dumps(spoken(provider, it.body))
    assert sent.index("One.") < sent.index("The file has changed.") < sent.index("Two.")


async def test_ids_of_calls_are_made_fit(provider: str) -> None:
    odd = "call:1/ü " + "x" * 60
    async with asked(provider, ["Done."]) as it:
        history = (user("Go."), said("", tool_call(odd, a=1, b=1)), results(tool_result(odd, "ok")))
        await it.ask(*history, tools=(ADD,))
    ((sent, _),) = called(provider, it.body)
    ((back, _),) = answered(provider, it.body)
    assert sent == back == wire_id(odd)
    assert len(sent) <= 40
    assert wire_id("toolu_01A-b") == "toolu_01A-b"


async def test_arguments_that_were_no_object_go_back_as_they_were(provider: str) -> None:
    broken = ToolCall(seq=1, ts=1, call_id=CallId("call_1"), name="add", args={}, invalid='{"a": 1')
    async with asked(provider, ["Done."]) as it:
        await it.ask(
            user("Go."),
            said("", broken),
            results(tool_result("call_1", "no JSON", status="error")),
            tools=(ADD,),
        )
    assert called(provider, it.body) == [("call_1", {"INVALID_JSON": '{"a": 1'})]


async def test_settings_headers_and_key_reach_the_provider(provider: str) -> None:
    options = {"settings": {"max_tokens": 77}, "headers": {"x-team": "blue"}}
    async with asked(provider, ["Done."], **options) as it:
        await it.ask()
    (seen,) = it.fake.requests
    assert 77 in [v for key in ("max_tokens", "max_output_tokens", "max_completion_tokens", "maxOutputTokens")
                  for v in found(seen.json, key)]  # fmt: skip
    assert seen.headers["x-team"] == "blue"
    assert any(KEY in value for value in seen.headers.values())
    assert KEY not in seen.path
    assert KEY.encode() not in seen.raw


async def test_tools_with_nested_schemas_go_out(provider: str) -> None:
    schema = {
        "type": "object",
        "properties": {"point": {"$ref": "#/$defs/Point"}},
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number"}}}},
    }
    async with asked(provider, ["Done."]) as it:
        await it.ask(tools=(ToolSpec("move", "Move it.", schema),))
    assert "number" in json.dumps(it.body)
