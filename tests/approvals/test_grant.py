"""Grants by themselves: places, ends, and a lookup that looks at nothing else."""

from typing import Any

import pytest

from tertulia.approvals.grant import Grant, Grants
from tertulia.records.ids import ConversationId, TurnId

pytestmark = pytest.mark.req("S2-08a", "S2-08b")

HERE, THERE, TURN = ConversationId("here"), ConversationId("there"), TurnId("turn")


def grant(id: str = "g", **fields: Any) -> Grant:
    return Grant(
        **{"id": id, "key": ("write",), "root": "/r", "decision": "allow", "scope": "session", **fields}
    )


def found(
    grants: Grants, *, root: str = "/r", where: ConversationId = HERE, turn: TurnId = TURN, now: int = 0
) -> Any:
    return grants.decision([(root, ("write",))], where, turn, now)


def test_a_grant_holds_where_it_was_given() -> None:
    for limits, elsewhere in (
        ({}, "allow"), ({"conversation": HERE}, None), ({"turn": TURN}, "allow"), ({"root": "/r"}, "allow"),
    ):  # fmt: skip
        grants = Grants()
        grants.add(grant(**limits))
        assert found(grants) == "allow"
        assert found(grants, where=THERE) == elsewhere
        assert found(grants, root="/r/below") is None
    grants.add(grant(turn=TURN, key=("other",)))
    assert grants.decision([("/r", ("other",))], HERE, TurnId("next"), 0) is None


def test_deny_beats_allow_wherever_it_comes_from() -> None:
    grants = Grants()
    grants.add(grant("a"))
    grants.add(grant("d", decision="deny", conversation=HERE))
    assert (found(grants), found(grants, where=THERE)) == ("deny", "allow")
    both = [("/r", ("write",)), ("/r", ("read",))]
    grants.add(grant("x", key=("read",), decision="deny"))
    assert grants.decision(both, THERE, TURN, 0) == "deny"


def test_an_end_is_looked_at_when_it_is_used_and_is_no_part_of_the_key() -> None:
    grants = Grants()
    grants.add(grant("first", expires=10))
    assert (found(grants, now=9), found(grants, now=10)) == ("allow", None)
    grants.add(grant("second", expires=20))
    assert [each.id for each in grants.all()] == ["second"]
    assert grants.drop("first") is None
    assert found(grants, now=10) == "allow"
    grants.sweep(19)
    assert [each.id for each in grants.all()] == ["second"]
    grants.sweep(20)
    assert grants.all() == []


def test_of_many_only_those_of_the_key_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    grants = Grants()
    for n in range(1000):
        grants.add(grant(f"g{n}", key=("shell", "exact", str(n))))
    grants.add(grant("mine"))
    looked: list[str] = []
    holds = Grant.holds
    monkeypatch.setattr(Grant, "holds", lambda self, *where: looked.append(self.id) or holds(self, *where))
    assert found(grants) == "allow"
    assert looked == ["mine"]


def test_revoking_leaves_the_others() -> None:
    grants = Grants()
    grants.add(grant("a"))
    grants.add(grant("b", conversation=HERE))
    assert grants.drop("a") == grant("a")
    assert grants.drop("a") is None
    assert (found(grants), found(grants, where=THERE)) == ("allow", None)
