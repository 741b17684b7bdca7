"""The running totals of a path, one record at a time."""

from collections.abc import Iterable

from msgspec.structs import replace

from ..records.parts import has_content
from ..records.record import AnyRecord, Message, ModelUsage, ToolCall, ToolResult, Totals


def count(totals: Totals, record: AnyRecord) -> Totals:
    """The totals with one more record. An assistant message without content counts as an entry only."""
    if isinstance(record, ModelUsage):
        cost = totals.cost if record.cost is None else (totals.cost or 0.0) + record.cost
        return replace(totals, usage=totals.usage + record.usage, cost=cost)
    if not isinstance(record, Message | ToolCall | ToolResult):
        return totals
    user = isinstance(record, Message) and record.role == "user"
    assistant = isinstance(record, Message) and record.role == "assistant" and has_content(record.parts)
    return Totals(
        totals.entries + 1,
        totals.user_messages + user,
        totals.assistant_messages + assistant,
        totals.tool_calls + isinstance(record, ToolCall),
        totals.tool_results + isinstance(record, ToolResult),
        max(totals.updated, record.ts),
        totals.usage,
        totals.cost,
    )


def plus(one: Totals, other: Totals) -> Totals:
    """The totals of two stretches of a path together."""
    costs = [each.cost for each in (one, other) if each.cost is not None]
    return Totals(
        one.entries + other.entries,
        one.user_messages + other.user_messages,
        one.assistant_messages + other.assistant_messages,
        one.tool_calls + other.tool_calls,
        one.tool_results + other.tool_results,
        max(one.updated, other.updated),
        one.usage + other.usage,
        sum(costs) if costs else None,
    )


def totals(records: Iterable[AnyRecord]) -> Totals:
    result = Totals()
    for record in records:
        result = count(result, record)
    return result
