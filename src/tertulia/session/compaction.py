"""Compaction: one record whose summary stands for older messages in later requests. The log keeps all of them."""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

from ..records.errors import CompactionRefused
from ..records.ids import TurnId, new_item_id
from ..records.record import Compaction
from ..transcript.context import COMPACTION, ModelMessage, View
from ..transcript.summary import summarise
from .journal import Journal, Put

KEEP = 6
"""So many of the latest messages stay as they are."""


async def compact(journal: Journal, turn: TurnId | None = None) -> Compaction | None:
    """Summarise what stands before the latest messages; None when there is nothing that could be left out."""
    through, old = older(journal.log.context.view())
    if not old:
        return None
    entries = journal.log.entries
    draft = Compaction(
        seq=0,
        ts=0,
        turn=turn,
        id=new_item_id().replace("item", "comp"),
        summary=summarise(old),
        through=through,
        entries=bisect_right(entries, through, key=lambda entry: entry.seq),
        method="local",
    )
    (record,) = await asyncio.shield(journal.put(Put([draft], turn=turn)))
    assert isinstance(record, Compaction)
    return record


async def compact_by_hand(journal: Journal, at_least: int) -> str:
    """As the caller wishes, when there is enough to make it worth while; the summary."""
    messages = sum(1 for message in journal.log.context.view() if message.role in ("user", "assistant"))
    if messages < at_least:
        raise CompactionRefused(
            f"there are {messages} messages; compaction takes at least {at_least}",
            hint="go on, or lower compact_min_messages",
        )
    record = await compact(journal)
    if record is None:
        raise CompactionRefused("everything that could be summarised is a summary already")
    return record.summary


def older(view: View) -> tuple[int, Sequence[ModelMessage]]:
    """The seq through which a summary may stand, and the messages it stands for; none of them alone is a summary.

    Half of a short conversation stays, so that a few huge messages can be left out as well. A call never parts from
    its result: both reach to the same seq.
    """
    last = len(view) - max(1, min(KEEP, len(view) // 2)) - 1
    while last >= 0 and view[last].until >= view[last + 1].until:
        last -= 1
    if last < 0:
        return 0, ()
    through = view[last].until
    old = tuple(message for message in view if message.until <= through)
    if all(message.origin == COMPACTION for message in old):
        return 0, ()
    return through, old
