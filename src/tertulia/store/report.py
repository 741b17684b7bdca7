"""What `tertulia store check` finds and `repair` did."""

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """`where` names the place in the store, `what` is wrong, `action` is what a repair does about it."""

    where: str
    what: str
    action: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`kept` and `lost` count records; a store without problems is left as it is."""

    kind: str
    path: str
    conversations: int = 0
    kept: int = 0
    lost: int = 0
    problems: tuple[Problem, ...] = ()
    written: str | None = None  # where the repaired copy stands

    @property
    def ok(self) -> bool:
        return not self.problems
