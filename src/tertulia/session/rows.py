"""The store's rows of a conversation's queue and client ids, made from items and read back."""

from typing import Literal

from ..records.ids import ConversationId, ItemId, TurnId, new_turn_id
from ..records.record import TurnStatus
from ..store.base import ChangeInbox, ClientIdRow, DropInbox, InboxRow, PutClientId, PutInbox
from .inbox import Item
from .inputs import digest, dump_input, load_input


def put_inbox(conversation: ConversationId, item: Item, now: int) -> PutInbox:
    row = InboxRow(
        conversation=conversation,
        item=item.id,
        source=item.source,
        body=body_of(item),
        state="held" if item.status == "held" else "queued",
        client_id=item.client_id,
        ts=now,
    )
    return PutInbox(row=row, digest=item.digest)


def drop_inbox(conversation: ConversationId, item: ItemId) -> DropInbox:
    return DropInbox(conversation=conversation, item=item)


def body_of(item: Item) -> bytes:
    return dump_input(item.parts)


def change_inbox(
    conversation: ConversationId,
    item: ItemId,
    *,
    body: bytes | None = None,
    rank: float | None = None,
    state: Literal["queued", "held"] | None = None,
) -> ChangeInbox:
    return ChangeInbox(conversation=conversation, item=item, body=body, rank=rank, state=state)


def put_client_id(
    conversation: ConversationId, item: Item, turn: TurnId | None, status: TurnStatus | None = None
) -> PutClientId:
    """That the id was used, by which turn (None: it never ran), and how that ended; the reply is in the log."""
    assert item.client_id is not None
    assert item.digest is not None
    row = ClientIdRow(
        conversation=conversation,
        client_id=item.client_id,
        digest=item.digest,
        item=item.id,
        turn=turn,
        outcome=(status or "").encode(),
    )
    return PutClientId(row=row)


def item_of(row: InboxRow, known: ClientIdRow | None) -> Item:
    """An item found in the store: nobody waits for it any more, so it runs only when somebody says so."""
    item = Item(row.item, row.source, load_input(row.body), new_turn_id(), row.client_id)
    item.rank = row.rank
    item.row = item.announced = True
    if row.client_id is not None:
        item.digest = known.digest if known is not None else digest(item.parts)
    item.status = "held"
    return item
