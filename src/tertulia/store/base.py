"""The Store protocol.

`commit` is the only way to write. One batch is all or nothing, whatever it carries and however many
conversations it touches. The same protocol serves one process, several processes on one file, and many nodes
on one database; so nothing here says file or lock.

Three rules every store keeps (the conformance suite in `tertulia.testing` checks them):

- **Fence.** `claim` raises the Session's epoch. A batch that writes anything but inbox rows carries the fence
  of that claim, and is refused with StaleFence once a later claim exists, or when it writes what belongs to
  another Session. An epoch is never given twice: the claim, and the count, outlive the Session's rows.
- **Sequence.** `Append.first` is the conversation's last seq + 1, over all its branches; else
  SequenceConflict.
- **Durable before done.** The future of `commit` resolves when the batch is as durable as the store promises,
  and raises when nothing of it was applied. Cancelling the waiter never undoes or repeats a commit.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from ..records.ids import ConversationId, ItemId, SessionId, TurnId
from ..records.record import ItemSource, Totals
from ..transcript.path import BranchRow, Segment


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class Row(msgspec.Struct, frozen=True, gc=False):
    """One record as it is stored: its seq, and the bytes that `records.codec` made of it."""

    seq: int
    data: bytes


class ConversationRow(_Value, frozen=True, kw_only=True):
    id: ConversationId
    session: SessionId
    active: int = 0
    title: str | None = None
    archived: bool = False
    parent: tuple[ConversationId, int] | None = None
    created: int = 0
    updated: int = 0
    settings: dict[str, Any] = {}


class InboxRow(_Value, frozen=True, kw_only=True):
    """An input that waits. The store gives `n` in order of arrival, `rank` orders the queue (None: `n`).

    `body` is wiped on delivery. `state` `queued` is set by whoever put it; the owner changes it.
    """

    conversation: ConversationId
    item: ItemId
    source: ItemSource
    body: bytes | None
    n: int = 0
    rank: float | None = None
    state: Literal["queued", "held"] = "queued"
    client_id: str | None = None
    ts: int = 0


class ClientIdRow(_Value, frozen=True, kw_only=True):
    """A client id that was used, and what became of it. `digest` is of the body that came with it."""

    conversation: ConversationId
    client_id: str
    digest: bytes
    item: ItemId | None = None
    turn: TurnId | None = None
    outcome: bytes = b""


class GrantRow(_Value, frozen=True, kw_only=True):
    """A remembered approval. `session` None: valid in every Session of this store."""

    id: str
    session: SessionId | None
    conversation: ConversationId | None = None
    expires: int | None = None
    body: bytes


class PutSession(_Value, frozen=True, kw_only=True):
    """Creates or changes a Session's row."""

    session: SessionId
    root: ConversationId
    settings: dict[str, Any] = {}


class PutConversation(_Value, frozen=True, kw_only=True):
    """Creates or replaces a conversation's row.

    IdConflict for the id of a deleted one that a fork still reaches.
    """

    row: ConversationRow


class PutBranch(_Value, frozen=True, kw_only=True):
    """Creates a branch. One with a parent sees the parent's records up to `at` from then on.

    SequenceConflict when it is there already, or `at` lies beyond the end of the parent.
    """

    row: BranchRow


class Append(_Value, frozen=True, kw_only=True):
    """Records at the end of a branch, with the branch's totals after them and the ts of the last.

    They take the seqs `first` to `last`; the retention may have left rows out, so `rows` can be sparse, or
    empty (`last` = `first` - 1 takes none). The conversation's `updated` rises to `ts`.
    """

    conversation: ConversationId
    branch: int
    first: int
    last: int
    rows: tuple[Row, ...]
    totals: Totals
    ts: int


class PutInbox(_Value, frozen=True, kw_only=True):
    """Adds an item; anyone may, without a fence. ConversationNotFound when there is no such conversation.

    A client id that was used (whatever the digest) or an item that waits already is refused with IdConflict,
    whose details name the item; `client_id()` tells the digest.
    """

    row: InboxRow
    digest: bytes | None = None


class ChangeInbox(_Value, frozen=True, kw_only=True):
    """Changes what is not None. Refused with ItemNotFound when the item is gone."""

    conversation: ConversationId
    item: ItemId
    body: bytes | None = None
    rank: float | None = None
    state: Literal["queued", "held"] | None = None


class DropInbox(_Value, frozen=True, kw_only=True):
    """Removes a settled item and its body for good. Harmless when it is gone already."""

    conversation: ConversationId
    item: ItemId


class PutClientId(_Value, frozen=True, kw_only=True):
    """Remembers a client id, or (same digest) what became of it. Another digest is an IdConflict."""

    row: ClientIdRow


class PutGrant(_Value, frozen=True, kw_only=True):
    row: GrantRow


class DropGrant(_Value, frozen=True, kw_only=True):
    id: str


class Rewrite(_Value, frozen=True, kw_only=True):
    """Retention: other bytes for records that stand; their blobs go. What does not stand is passed over.

    Whoever reads a record through a fork sees the same change. This also works where the conversation was
    deleted and a fork keeps the records; so does DropRange.
    """

    conversation: ConversationId
    branch: int
    rows: tuple[Row, ...]


class DropRange(_Value, frozen=True, kw_only=True):
    """Retention: the records `first` (which stands) to `through` of a branch go; `tombstone` takes its place."""

    conversation: ConversationId
    branch: int
    first: int
    through: int
    tombstone: bytes


class AddBlobs(_Value, frozen=True, kw_only=True):
    """These blobs belong to the record `seq`: they live at least as long. BlobMissing when one is not there.

    A blob whose last owner goes, goes at the end of that batch, unless it was put again and not yet added.
    """

    conversation: ConversationId
    branch: int
    seq: int
    refs: tuple[str, ...]


class DeleteConversation(_Value, frozen=True, kw_only=True):
    """Everything of it goes, except the records that a living fork still reaches, which stay unlisted.

    These go with the last fork that reaches them. With its last conversation a Session's row and grants go.
    """

    conversation: ConversationId


Op = (
    PutSession
    | PutConversation
    | PutBranch
    | Append
    | PutInbox
    | ChangeInbox
    | DropInbox
    | PutClientId
    | PutGrant
    | DropGrant
    | Rewrite
    | DropRange
    | AddBlobs
    | DeleteConversation
)

Batch = tuple[Op, ...]
"""Applied in order, all or nothing."""

UNFENCED = (PutInbox,)
"""What anyone may write."""


class Fence(_Value, frozen=True, kw_only=True):
    session: SessionId
    epoch: int


class Opened(_Value, frozen=True, kw_only=True):
    """All that is needed to go on with a conversation, and nothing of its history."""

    conversation: ConversationRow
    branches: tuple[BranchRow, ...]  # its own by number, then the ancestors of these in other conversations
    inbox: tuple[InboxRow, ...]  # in order
    last: int  # the last seq over all its branches, the inherited part included


class SessionRow(_Value, frozen=True, kw_only=True):
    id: SessionId
    root: ConversationId
    epoch: int = 0
    holder: str | None = None  # who writes it now, when someone living does
    settings: dict[str, Any] = {}


class Listed(_Value, frozen=True, kw_only=True):
    """A page of a list; `cursor` is None at the end."""

    rows: tuple[ConversationRow, ...]
    cursor: str | None = None


class Change(msgspec.Struct, frozen=True):
    """One append of a Session, under the store's commit number."""

    commit: int
    segment: Segment


class Store(Protocol):
    """See the module's text for the rules. Reading never claims and never writes."""

    @property
    def durable(self) -> bool:
        """Whether what is committed outlives the process."""
        ...

    def commit(self, batch: Batch, fence: Fence | None = None) -> asyncio.Future[int]:
        """All or nothing; answers with the store's commit number. It never falls, and rises with each append.

        Not a coroutine: the order of calls is the order of commits, so it is fixed when the call returns.
        What is wrong with a batch is the future's exception, never raised here. The future belongs to the
        caller's running loop; it is settled even when nobody awaits it, and cancelling it changes nothing.
        """
        ...

    async def claim(self, session: SessionId) -> Fence:
        """Become the Session's writer (it need not exist yet).

        SessionHeld while another living process is.
        """
        ...

    async def release(self, fence: Fence) -> None:
        """Stop being it. Harmless when someone else is by now."""
        ...

    async def session(self, session: SessionId) -> SessionRow:
        """SessionNotFound when there is none."""
        ...

    async def open(self, conversation: ConversationId) -> Opened:
        """ConversationNotFound when there is none, or it was deleted."""
        ...

    async def read(
        self, path: Sequence[Segment], *, after: int = 0, limit: int = 500, reverse: bool = False
    ) -> list[Row]:
        """Up to `limit` records of these segments in order of seq, above `after` (backwards: below it).

        A segment of what is not there holds none.
        """
        ...

    async def client_id(self, conversation: ConversationId, client_id: str) -> ClientIdRow | None: ...

    async def list(
        self,
        *,
        cursor: str | None = None,
        limit: int = 50,
        search: str | None = None,
        archived: bool | None = False,
        session: SessionId | None = None,
    ) -> Listed:
        """Conversations, last changed first, then by id. `archived` None means both.

        `search` is a part of the id or the title, in any case; nothing in it is a wildcard.
        """
        ...

    async def grants(self, session: SessionId) -> Sequence[GrantRow]: ...

    async def changes(self, session: SessionId, after: int, limit: int = 500) -> Sequence[Change]:
        """The appends (those that took a seq) of a Session's conversations after a commit number, in order.

        The appends of one commit are never split over two pages, so a page may be longer than `limit`.
        """
        ...

    async def put_blob(self, data: bytes) -> str:
        """Its ref. A blob that no commit refers to is collected after a while."""
        ...

    async def get_blob(self, ref: str) -> bytes:
        """BlobMissing, or StoreCorrupt when the bytes are not those that the ref names."""
        ...

    async def collect(self, older_than: float = 3600.0) -> int:
        """Drop the blobs that nothing refers to and that were put longer ago than this; how many."""
        ...

    async def aclose(self) -> None:
        """Wait for what was handed over, release every claim, free everything."""
        ...
