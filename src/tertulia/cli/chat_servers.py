"""What MCP servers ask a person in a chat: put one at a time, answered by `/answer`."""

import asyncio
import math
import shlex
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ..records.errors import InvalidInput
from ..tools.mcp.asking import Elicitation

YES, NO = ("true", "yes", "y", "1", "on"), ("false", "no", "n", "0", "off")

LONGEST, LONGEST_URL = 500, 2000
"""Characters that are shown of what a server says; an address that is cut leads nowhere."""


class Questions:
    """The elicitation handler of a chat. `show` puts a line on the screen."""

    def __init__(self) -> None:
        self.show: Callable[[str], None] = lambda text: None
        self._waiting: list[tuple[Elicitation, asyncio.Future[dict[str, Any] | None]]] = []

    async def __call__(self, asked: Elicitation) -> dict[str, Any] | None:
        answer: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        entry = (asked, answer)
        self._waiting.append(entry)
        if len(self._waiting) == 1:
            self._put()
        try:
            return await answer
        finally:  # also when its call has ended meanwhile
            first = self._waiting[0] is entry
            self._waiting.remove(entry)
            if first and self._waiting:
                self._put()

    @property
    def put(self) -> object:
        """The question that is on the screen."""
        return self._waiting[0] if self._waiting else None

    def answer(self, text: str, put: object) -> None:
        """To the question that was there. Raises, and goes on waiting, when that is no answer to it."""
        asked, future = self._first(put)
        future.set_result({} if asked.url is not None else read_answer(asked.schema, text))

    def decline(self, put: object) -> None:
        self._first(put)[1].set_result(None)

    def _first(self, put: object) -> tuple[Elicitation, "asyncio.Future[dict[str, Any] | None]"]:
        if not self._waiting or self._waiting[0][1].done():
            raise InvalidInput("no MCP server asks anything")
        if self._waiting[0] is not put:
            raise InvalidInput("that was typed before the question was asked", hint="type it again")
        return self._waiting[0]

    def _put(self) -> None:
        asked, _ = self._waiting[0]
        self.show(f"? the MCP server {asked.server} asks: {one_line(asked.message)}")
        if asked.url is not None:
            self.show(f"  open {one_line(asked.url, LONGEST_URL)} if you trust it, then /answer; or /decline")
            return
        fields = _fields(asked.schema)
        for name, field in fields.items():
            self.show(f"  {one_line(name)}: {_described(field)}")
        how = "NAME=VALUE …" if len(fields) > 1 else "TEXT" if fields else ""
        self.show(f"  /answer {how}".rstrip() + ", or /decline")


def read_answer(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """What was typed as the object that the schema asks for; one field may stand without its name."""
    fields, found = _fields(schema), {}
    if len(fields) == 1 and not text.startswith(f"{next(iter(fields))}="):
        found = {next(iter(fields)): text} if text else {}
    elif text:
        try:
            pairs = [word.partition("=") for word in shlex.split(text)]
        except ValueError as error:
            raise InvalidInput(f"{error} in the answer", hint="name='two words'") from error
        for name, sign, value in pairs:
            if not sign or name not in fields:
                raise InvalidInput(f"{name!r} is no field", hint=_listed(f"{each}=…" for each in fields))
            found[name] = value
    answer = {name: _value(name, fields[name], given) for name, given in found.items()}
    for name, field in fields.items():
        if name not in answer and "default" in field:
            answer[name] = field["default"]
    required = schema.get("required")
    needed = map(str, required) if isinstance(required, list) else ()
    missing = [name for name in needed if name not in answer]
    if missing:
        raise InvalidInput("the answer needs " + _listed(missing), hint="/decline gives none")
    return answer


def one_line(text: str, most: int = LONGEST) -> str:
    """Of a server's text what cannot be taken for lines of ours: its own are marked, and blanks push none down."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    line = " ⏎ ".join(line for line in lines if line)
    return line if len(line) <= most else line[: most - 1] + "…"


def _listed(names: Iterable[Any], between: str = ", ") -> str:
    return one_line(between.join(one_line(str(name)) for name in names))


def _fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a server sent may be of any shape; what is no field of a form is none."""
    given = schema.get("properties")
    fields = given.items() if isinstance(given, dict) else ()
    return {str(name): field if isinstance(field, dict) else {} for name, field in fields}


def _choices(field: dict[str, Any]) -> list[Any]:
    found = field.get("enum")
    if isinstance(found, list):
        return found
    each = field.get("oneOf")
    return (
        [one["const"] for one in each if isinstance(one, dict) and "const" in one]
        if isinstance(each, list)
        else []
    )


def _described(field: dict[str, Any]) -> str:
    words = [one_line(str(field.get(name))) for name in ("title", "description") if field.get(name)]
    choices = _choices(field)
    kind = _listed(choices, " or ") if choices else one_line(str(field.get("type", "text")))
    return " ".join([*words, f"({kind})"])


def _value(name: str, field: dict[str, Any], text: str) -> Any:
    choices, kind = _choices(field), field.get("type")
    if choices:
        found = next((each for each in choices if str(each) == text), None)
        if found is None:
            raise InvalidInput(f"{one_line(name)} is one of {_listed(choices)}")
        return found
    if kind == "array":
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind == "boolean":
        if text.lower() not in (*YES, *NO):
            raise InvalidInput(f"{one_line(name)} is yes or no, not {text!r}")
        return text.lower() in YES
    if kind in ("integer", "number"):
        try:
            number = msgspec.convert(text, int if kind == "integer" else float, strict=False)
        except msgspec.ValidationError:
            number = math.nan
        if not math.isfinite(number):  # JSON has no word for it
            raise InvalidInput(f"{one_line(name)} is a number, not {text!r}")
        return number
    return text
