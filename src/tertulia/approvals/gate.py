"""The verdict on one call: by what was answered before, by rules, by the mode; else a person is to be asked."""

from typing import Literal

import msgspec

from ..records.ids import ConversationId, TurnId
from .command import Command, Part, read
from .grant import Grants, Subject
from .policy import Mode
from .question import Key
from .rules import Rules


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """As far as approvals look at it. `tool` begins every key, `root` is the folder that it works in."""

    tool: Key
    root: str
    mode: Mode
    command: str | None
    conversation: ConversationId
    turn: TurnId


By = Literal["grant", "rule", "mode", "nobody"]
"""What decided; nobody had to where a tool needs no approval."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`key` and `root` are what an answer will be about; `by` is what decided, and `why` says what denies it."""

    decision: Literal["allow", "ask", "deny"]
    key: Key
    root: str
    by: By = "mode"
    why: str = ""


def judge(call: Call, rules: Rules, grants: Grants, now: int) -> Verdict:
    """A denial beats what was granted, which beats the rules that ask, those that allow, and the mode."""
    if call.command is None:
        subject = call.root, call.tool
        granted = grants.decision([subject], call.conversation, call.turn, now)
        return _verdict(granted or call.mode, subject, "grant" if granted else "mode")
    command = read(call.command)
    rule = rules.denies(command)
    if rule is not None:
        root, key = _whole(call, command)
        return Verdict(decision="deny", key=key, root=root, by="rule", why=f"the rule `{rule}`")
    return _judge(call, command, rules, grants, now)


def _judge(call: Call, command: Command, rules: Rules, grants: Grants, now: int) -> Verdict:
    place = call.conversation, call.turn, now
    held, whole = rules.holds_back(command), _whole(call, command)
    parts = [_subjects(call, part) for part in command.parts]
    if any(grants.decision(subjects, *place) == "deny" for subjects in (*parts, [whole])):
        return _verdict("deny", whole, "grant")
    if grants.decision([whole], *place) == "allow":
        return _verdict("allow", whole, "grant")
    waiting: dict[Subject, None] = {}
    by: By = "grant"
    for part, subjects in zip(command.parts, parts, strict=True):
        exact = [] if part.fed and part.kind != "plain" else subjects[-1:] if held else subjects
        granted = command.simple and grants.decision(exact, *place) == "allow"
        if granted:
            continue
        if held or not command.simple or not rules.allows(part):
            waiting[exact[0] if exact and command.simple else whole] = None
        else:
            by = "rule"
    if command.parts and not waiting:
        return _verdict("allow", whole, by)
    decision = "ask" if call.mode == "allow" and held else call.mode
    return _verdict(decision, next(iter(waiting)) if len(waiting) == 1 else whole, "mode")


def _subjects(call: Call, part: Part) -> list[Subject]:
    """What a grant for this part may be filed under, the widest first; nothing where its words do not say it all."""
    words = part.known
    if not part.plain or words is None or part.at is None:
        return []
    root = f"{call.root.rstrip('/')}/{part.at}" if part.at else call.root
    exact: Key = (*call.tool, "exact", *words)
    path = part.path
    return [(root, (*call.tool, "path", *path)), (root, exact)] if path is not None else [(root, exact)]


def _whole(call: Call, command: Command) -> Subject:
    """What a grant for all of it is filed under: the words of its only part, else its text."""
    if command.simple and len(command.parts) == 1:
        subjects = _subjects(call, command.parts[0])
        if subjects:
            return subjects[-1]
    return call.root, (*call.tool, "text", command.text)


def _verdict(decision: Literal["allow", "ask", "deny"], subject: Subject, by: By) -> Verdict:
    root, key = subject
    denied = decision == "deny" and by == "grant"
    return Verdict(decision=decision, key=key, root=root, by=by, why="an earlier answer" if denied else "")
