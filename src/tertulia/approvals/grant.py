"""Remembered answers, found by their key."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from ..records.ids import ConversationId, TurnId
from .question import Key, Scope


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that holds for more than its call: for what `key` names, in the folder `root`.

    `conversation` and `turn` limit it to one of them. `expires` is looked at when it is used; it is no part of the key,
    so a new grant of the same key replaces it.
    """

    id: str
    key: Key
    root: str
    decision: Literal["allow", "deny"]
    scope: Scope
    conversation: ConversationId | None = None
    turn: TurnId | None = None
    expires: int | None = None

    def ended(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now

    def holds(self, conversation: ConversationId, turn: TurnId, now: int) -> bool:
        return self.conversation in (None, conversation) and self.turn in (None, turn) and not self.ended(now)


Subject = tuple[str, Key]
"""A root and a key: what grants are found by."""

_Place = tuple[str, Scope, ConversationId | None, TurnId | None]


class Grants:
    """By key, so that looking one up costs the same however many there are."""

    def __init__(self) -> None:
        self._by_key: dict[Subject, dict[_Place, Grant]] = {}
        self._subjects: dict[str, Subject] = {}  # of each id

    def all(self) -> list[Grant]:
        return [grant for found in self._by_key.values() for grant in found.values()]

    def add(self, grant: Grant) -> None:
        """Remember it, in place of one for the same."""
        subject = grant.root, grant.key
        places = self._by_key.setdefault(subject, {})
        old = places.pop(_place(grant), None)
        places[_place(grant)] = grant
        if old is not None:
            self._subjects.pop(old.id, None)
        self._subjects[grant.id] = subject

    def drop(self, id: str) -> Grant | None:
        subject = self._subjects.pop(id, None)
        if subject is None:
            return None
        places = self._by_key[subject]
        grant = next(each for each in places.values() if each.id == id)
        del places[_place(grant)]
        if not places:
            del self._by_key[subject]
        return grant

    def decision(
        self, subjects: Iterable[Subject], conversation: ConversationId, turn: TurnId, now: int
    ) -> Literal["allow", "deny"] | None:
        """What was answered about one of these. Deny beats allow."""
        found = {
            grant.decision
            for subject in subjects
            for grant in self._by_key.get(subject, {}).values()
            if grant.holds(conversation, turn, now)
        }
        return "deny" if "deny" in found else "allow" if found else None

    def sweep(self, now: int) -> None:
        """Forget those that have ended."""
        for grant in self.all():
            if grant.ended(now):
                self.drop(grant.id)


def _place(grant: Grant) -> _Place:
    return grant.decision, grant.scope, grant.conversation, grant.turn
