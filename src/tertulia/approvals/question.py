"""What a person is asked, and what they can say."""

from typing import Any, Literal

import msgspec

from ..records.errors import InvalidInput
from ..records.ids import CallId, ConversationId, TurnId
from .words import looks_alike, shown

Scope = Literal["once", "turn", "conversation", "session", "always"]
SCOPES: tuple[Scope, ...] = ("once", "turn", "conversation", "session", "always")

Key = tuple[str, ...]
"""What an answer is about: the tool, behind its server where it has one. A command adds `path` and the program with its
subcommand, `exact` and all words, or `text` and the whole command line."""

MAX_SUMMARY = 500
MAX_ARGS = 40


class Option(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    decision: Literal["allow", "deny"]
    scope: Scope
    label: str


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person. `deadline`: when that means no, in microseconds since the epoch."""

    id: str
    conversation_id: ConversationId
    turn_id: TurnId
    call_id: CallId
    tool: str
    args: dict[str, Any]
    summary: str
    key: Key
    options: tuple[Option, ...]
    deadline: int | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a person, or a function in their place, says. Without a scope it holds for the session.

    `ttl`: for how many seconds. `feedback`: what the model reads after a no.
    """

    decision: Literal["allow", "deny"]
    scope: Scope | None = None
    ttl: float | None = None
    feedback: str | None = None


def options(key: Key, root: str) -> tuple[Option, ...]:
    """What can be answered, in the words of what it would hold for."""
    return (
        Option(id="allow_once", decision="allow", scope="once", label="Allow this call"),
        Option(
            id="allow_session",
            decision="allow",
            scope="session",
            label=f"Allow {covered(key)} in {root} for the session",
        ),
        Option(id="deny", decision="deny", scope="once", label="Do not allow it"),
    )


def covered(key: Key) -> str:
    """What a grant of this key is for, to be read."""
    if len(key) < 3:
        return " of ".join(reversed(key))
    _, kind, *words = key
    text = shown(" ".join(words))
    return f"`{text} …`" if kind == "path" else f"exactly `{text}`"


def summary(tool: str, args: dict[str, Any], command: str | None) -> str:
    """What the call would do, in a line or a few. What cannot be seen is written out, what is long is shortened.

    Of a command the beginning and the end are shown; of other arguments each name, and how its value begins.
    """
    note = " [letters of several alphabets]" if command is not None and looks_alike(command) else ""
    if command is not None:
        return _shortened(shown(command), MAX_SUMMARY, ends=True) + note
    text = shown(f"{tool} {msgspec.json.encode(args).decode()}")
    return text if len(text) <= MAX_SUMMARY else f"{shown(tool)} {_named(args)}"


def _named(args: dict[str, Any]) -> str:
    given = list(args.items())[:MAX_ARGS]
    values = [shown(msgspec.json.encode(value).decode()) for _, value in given]
    room = MAX_SUMMARY - sum(len(name) for name, _ in given)
    texts = []
    for (name, _), (value, most) in zip(given, _fitted(values, room), strict=True):
        texts.append(
            f"{_shortened(shown(msgspec.json.encode(name).decode()), 100)}:{_shortened(value, most)}"
        )
    left = len(args) - len(given)
    return "{" + ",".join(texts) + (f" … and {left} more" if left else "") + "}"


def _fitted(values: list[str], room: int) -> list[tuple[str, int]]:
    """Each value with how much of it may show: the short ones whole, what they leave to the others."""
    shares = dict.fromkeys(range(len(values)), 0)
    waiting = sorted(shares, key=lambda n: len(values[n]))
    for done, n in enumerate(waiting):
        shares[n] = max(20, room // (len(waiting) - done))
        room -= min(shares[n], len(values[n]))
    return [(value, shares[n]) for n, value in enumerate(values)]


def _shortened(text: str, most: int, ends: bool = False) -> str:
    if len(text) <= most:
        return text
    if not ends:
        return text[: most - 1] + "…"
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"


def choose(given: tuple[Option, ...], option: Any, answer: Answer | None) -> Answer:
    """The answer that an option's id, or an Answer, stands for; InvalidInput when it is none."""
    if option is not None:
        found = next((each for each in given if each.id == option), None)
        if found is None:
            raise InvalidInput(f"there is no option {option!r}", hint=", ".join(each.id for each in given))
        scope = answer.scope if answer is not None else None
        answer = msgspec.structs.replace(answer or Answer(decision="allow"), decision=found.decision)
        answer = msgspec.structs.replace(answer, scope=scope or found.scope)
    return checked(answer)


def checked(answer: Any) -> Answer:
    if not isinstance(answer, Answer) or answer.decision not in ("allow", "deny"):
        raise InvalidInput("an answer needs an option or a decision", hint="decision='allow' or 'deny'")
    if answer.scope is not None and answer.scope not in SCOPES:
        raise InvalidInput(f"there is no scope {answer.scope!r}", hint=", ".join(SCOPES))
    seconds: object = answer.ttl
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (number and 0 < float(str(seconds)) < 1e12):
        raise InvalidInput(f"ttl is {answer.ttl!r}", hint="seconds, or None for no end")
    if answer.feedback is not None and not isinstance(answer.feedback, str):
        raise InvalidInput(f"feedback is {answer.feedback!r}", hint="text for the model to read")
    return answer
