"""`conv.stats()`: from running totals, so that it costs the same however long the history is."""

from typing import Any

import msgspec

from ..records.ids import ConversationId, SessionId
from ..records.record import Usage
from .inbox import Inbox
from .log import Log


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """`last_updated_at` is the time of the last entry, in microseconds since the epoch; None without one."""

    session_id: SessionId
    conversation_id: ConversationId
    user_messages: int
    assistant_messages: int
    tool_calls: int
    tool_results: int
    total_entries: int
    pending_messages: int
    pending_breakdown: dict[str, int]
    last_updated_at: int | None
    usage: Usage
    cost: float | None


def make_stats(session: SessionId, log: Log, inbox: Inbox) -> Stats:
    totals, breakdown = log.totals, inbox.breakdown()
    fields: dict[str, Any] = {
        name: getattr(totals, name)
        for name in ("user_messages", "assistant_messages", "tool_calls", "tool_results", "usage", "cost")
    }
    return Stats(
        session_id=session,
        conversation_id=log.id,
        total_entries=totals.entries,
        pending_messages=sum(breakdown.values()),
        pending_breakdown=breakdown,
        last_updated_at=totals.updated or None,
        **fields,
    )
