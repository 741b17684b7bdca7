"""Pictures and files in an input, and another model in mid-conversation."""

from pathlib import Path
from typing import Any

import pytest

from tertulia import Session, attach
from tertulia.records.errors import BlobMissing, ConfigError, InvalidInput
from tertulia.records.parts import File, Image, Text
from tertulia.store.memory import MemoryStore
from tertulia.testing import ScriptedModel, texts

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.mark.parametrize(
    ("data", "media", "kind"),
    [
        (PNG, "image/png", Image),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg", Image),
        (b"GIF89a", "image/gif", Image),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp", Image),
        (b"%PDF-1.7", "application/pdf", File),
        (b"anything else", "application/octet-stream", File),
    ],
)
def test_bytes_say_what_they_are(data: bytes, media: str, kind: type[Any]) -> None:
    part = attach(data)
    assert (type(part), part.media, part.data) == (kind, media, data)


def test_a_path_gives_its_name_and_an_address_is_left_to_the_provider(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    part = attach(path)
    assert (part.name, part.media, part.data) == ("cat.png", "image/png", PNG)
    there = attach("https://example.org/cat.jpeg?size=2")
    assert (there.media, there.url, there.data) == ("image/jpeg", "https://example.org/cat.jpeg?size=2", None)
    with pytest.raises(InvalidInput, match="what kind of file"):
        attach("https://example.org/cat")
    with pytest.raises(InvalidInput, match="cannot be read"):
        attach(tmp_path / "nothing.png")
    with pytest.raises(InvalidInput, match="cannot be read"):
        attach("a\0b")


async def test_a_picture_reaches_the_model_and_the_transcript() -> None:
    model = ScriptedModel(default="a cat")
    async with Session.open(model=model) as session:
        await session.prompt(["what is this?", attach(PNG)])
        sent = model.requests[0].messages[0].parts
        assert sent == (Text(text="what is this?"), Image(media="image/png", data=PNG))
        assert (await session.transcript())[0].parts == sent  # type: ignore[union-attr]
        await session.prompt([attach(PNG)])
        assert [each.text for each in await session.forkable_user_messages()] == ["what is this?", "[image]"]


async def test_what_stands_in_the_store_is_named_by_its_ref() -> None:
    store = MemoryStore()
    ref = await store.put_blob(PNG)
    model = ScriptedModel(default="a cat")
    async with Session.open(model=model, store=store) as session:
        await session.prompt(["what?", Image(media="image/png", ref=ref)])
        assert model.requests[0].messages[0].parts[1] == Image(media="image/png", data=PNG)
        with pytest.raises(BlobMissing):
            await session.prompt([Image(media="image/png", ref="blob_" + "0" * 64)])
        assert len(await session.transcript()) == 2
    await store.aclose()


async def test_the_model_can_be_changed_for_good_and_for_one_turn() -> None:
    first, second = ScriptedModel(default="first"), ScriptedModel(default="second")
    async with Session.open(model=first) as session:
        assert str(await session.prompt("one")) == "first"
        assert str(await session.prompt("two", model=second)) == "second"
        assert str(await session.prompt("three")) == "first"
        session.use_model(second)
        assert str(await session.prompt("four")) == "second"
        assert texts(second.requests[-1]) == [
            ("user", "one"), ("assistant", "first"), ("user", "two"), ("assistant", "second"),
            ("user", "three"), ("assistant", "first"), ("user", "four"),
        ]  # fmt: skip
        with pytest.raises(ConfigError):
            session.use_model("no-such-model")
        assert str(await session.prompt("five")) == "second"
