"""Pictures and files that go along with an input: made from a path, bytes or an address."""

import mimetypes
import os

import msgspec

from ..records.errors import InvalidInput
from ..records.parts import AnyPart, File, Image, Media
from ..store.base import Store

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def attach(
    source: "str | os.PathLike[str] | bytes", media: str | None = None, name: str | None = None
) -> Image | File:
    """A part for `prompt([...])`: of a file's path, of bytes, or of an http(s) address that the provider fetches.

    `media` is its type, such as image/png; it is told from the name or the bytes where it is not given.
    """
    if isinstance(source, bytes):
        return _part(media or _told_by(source), name, data=source)
    text = os.fspath(source)
    if isinstance(source, str) and text.startswith(("http://", "https://")):
        guessed = mimetypes.guess_type(text.partition("?")[0])[0]
        if media is None and guessed is None:
            raise InvalidInput(f"what kind of file is {text[:100]}?", hint="say it: media='image/png'")
        return _part(media or str(guessed), name, url=text)
    try:
        with open(text, "rb") as file:
            data = file.read()
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{text[:200]!r} cannot be read: {error}", hint="give the path of a file"
        ) from error
    told = media or mimetypes.guess_type(text)[0] or _told_by(data)
    return _part(told, name or os.path.basename(text), data=data)


def _part(media: str, name: str | None, *, data: bytes | None = None, url: str | None = None) -> Image | File:
    kind = Image if media.startswith("image/") else File
    return kind(media=media, name=name, data=data, url=url)


def _told_by(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media for start, media in _MAGIC if data.startswith(start)), "application/octet-stream")


async def with_content(parts: tuple[AnyPart, ...], store: Store) -> tuple[AnyPart, ...]:
    """The same parts, with what a ref names in its place: from here on the log holds it."""
    found: list[AnyPart] = []
    for part in parts:
        if isinstance(part, Media) and part.ref is not None:
            data = await store.get_blob(part.ref)
            found.append(msgspec.structs.replace(part, ref=None, data=data))
        else:
            found.append(part)
    return tuple(found)
