"""What memory holds of one conversation: its rows, and the entries of its active path once somebody wanted them.

Only the journal changes it, after a commit; everyone else reads.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ..records.event import AnyEvent
from ..records.ids import ConversationId
from ..records.record import AnyEntry, AnyRecord, Entry, Totals, TurnEnd, TurnStart
from ..store.base import ConversationRow, Opened, Store
from ..transcript.context import Context
from ..transcript.path import BranchRow, Segment, segments


class Live:
    """The message that is being streamed now, for those who join in the middle of it."""

    __slots__ = ("message_id", "texts", "turn_id")

    def __init__(self, turn_id: str, message_id: str) -> None:
        self.turn_id = turn_id
        self.message_id = message_id
        self.texts: list[str] = []


class Withheld(NamedTuple):
    """What memory has and the store was not given: where it stands, and whether the store has a part of it."""

    branch: tuple[ConversationId, int]
    record: AnyRecord
    kept: bool


class Cut(NamedTuple):
    """Where a path is cut, and the totals of what stands before: in memory, and in the store."""

    at: int
    totals: Totals
    kept: Totals


class Log:
    """`tail` (what stands from the last turn_end on), `entries` and `context` are empty until loaded.

    The other records of the past are read from the store when somebody asks for them: a turn holds two or three
    entries, and as many records that nobody looks at twice. `last` counts over all branches of the conversation.

    Where a retention kept entries out of the store, memory counts them and the store does not: a record's index and
    the totals of a branch are smaller there. `kept` has the totals of such branches as the store has them.
    """

    def __init__(self, opened: Opened, store: Store) -> None:
        self.store = store
        self.row: ConversationRow = opened.conversation
        self.branches: dict[tuple[ConversationId, int], BranchRow] = {}
        self.last = 0
        self.ts = 0
        self.tail: list[AnyRecord] | None = None
        self.entries: list[AnyEntry] = []
        self.context = Context()
        self.withheld: dict[int, Withheld] = {}  # by seq
        self.kept: dict[tuple[ConversationId, int], Totals] = {}
        self.live: Live | None = None
        self.token_factor = 1.0  # what a provider counts, to what we estimate
        self.notice: AnyEvent | None = None  # what nobody was there to be told: the next one who follows is
        self.open_turn = False  # whether a turn's start stands in the log and its end does not yet
        self.adopt(opened)

    @property
    def id(self) -> ConversationId:
        return self.row.id

    @property
    def loaded(self) -> bool:
        return self.tail is not None

    @property
    def branch(self) -> BranchRow:
        return self.branches[self.id, self.row.active]

    @property
    def context_tokens(self) -> int:
        """About how many tokens the next request carries, corrected by what was reported of earlier ones."""
        return round(self.context.tokens * self.token_factor)

    def learn(self, reported: int) -> None:
        """A provider counted this for a request of what stands here now. A short one says more of its tools."""
        if reported >= 50 and (estimated := self.context.tokens) >= 200:
            seen = min(4.0, max(0.25, reported / estimated))
            self.token_factor = (self.token_factor + seen) / 2

    @property
    def totals(self) -> Totals:
        return self.branch.totals

    @property
    def kept_totals(self) -> Totals:
        return self.kept.get((self.id, self.row.active), self.totals)

    def withheld_on(self, path: Sequence[Segment], until: int | None = None) -> dict[int, Withheld]:
        """What the store was not given of a path, up to a seq."""
        spans = {(part.conversation, part.branch): part for part in path}
        return {
            seq: held
            for seq, held in sorted(self.withheld.items())
            if (part := spans.get(held.branch)) is not None
            and part.after < seq <= part.until
            and (until is None or seq <= until)
        }

    def hidden(self, path: Sequence[Segment]) -> list[AnyRecord]:
        """The records of a path that the store has nothing of."""
        return [held.record for held in self.withheld_on(path).values() if not held.kept]

    def adopt(self, opened: Opened) -> None:
        """Rows as the store has them now; what was loaded is forgotten when it may be out of date.

        Where memory counted what the store has nothing of, the store's count is what is left.
        """
        if hidden := any(not held.kept for held in self.withheld.values()):
            self.kept, self.withheld = {}, {}
        changed = opened.last != self.last or opened.conversation.active != self.row.active
        self.row = opened.conversation
        self.branches = {(row.conversation, row.n): row for row in opened.branches}
        self.last = opened.last
        self.ts = max(self.ts, self.branch.totals.updated, self.row.updated)
        if changed or hidden:
            self.forget()

    def forget(self) -> None:
        self.tail, self.entries, self.context = None, [], Context()

    def load(self, records: Iterable[AnyRecord]) -> None:
        self.tail, self.entries, self.context = [], [], Context()
        for record in records:
            self._take(record)

    def path(self) -> tuple[Segment, ...]:
        """The active path."""
        return segments(self.branches.values(), self.id, self.row.active)

    def everything(self) -> tuple[Segment, ...]:
        """The inherited path, then every branch of the conversation itself."""
        root = self.branches[self.id, 0]
        inherited = segments(self.branches.values(), *root.parent, until=root.at) if root.parent else ()
        own = [row for row in self.branches.values() if row.conversation == self.id and row.last > row.at]
        return (*inherited, *(Segment(self.id, row.n, row.at, row.last) for row in own))

    def apply(
        self, records: Sequence[AnyRecord], branch: BranchRow, updated: int, kept: Totals | None
    ) -> None:
        """What one commit appended to the active branch."""
        self.branches[self.id, branch.n] = branch
        if kept is not None:
            self.kept[self.id, branch.n] = kept
        self.last = branch.last
        self.ts = records[-1].ts
        for record in records:
            if isinstance(record, TurnStart | TurnEnd):
                self.open_turn = isinstance(record, TurnStart)
            if self.live is not None and (record.msg == self.live.message_id or isinstance(record, TurnEnd)):
                self.live = None  # it stands in the log now: who joins reads it there
        self.row = msgspec.structs.replace(self.row, updated=updated)
        if self.tail is not None:
            for record in records:
                self._take(record)

    def _take(self, record: AnyRecord) -> None:
        assert self.tail is not None
        if isinstance(record, TurnEnd):
            self.tail = []
        self.tail.append(record)
        if isinstance(record, Entry):
            self.entries.append(record)
        self.context.add(record)
