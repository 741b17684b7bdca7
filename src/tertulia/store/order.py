"""The orders that every store keeps: of lists, with their cursors and what a search finds, and of a queue."""

import base64
from collections.abc import Sequence

import msgspec

from ..records.errors import InvalidInput
from .base import ConversationRow, InboxRow, Listed

Place = tuple[int, str]


def place(row: ConversationRow) -> Place:
    """Last changed first."""
    return (-row.updated, row.id)


def place_of(cursor: str | None) -> Place | None:
    """Where the page before ended; None for the first page."""
    if cursor is None:
        return None
    try:
        found: Place = msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=Place)
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidInput("this is no cursor of a list", hint="give one as a list returned it") from error
    return found


def page(rows: Sequence[ConversationRow], limit: int) -> Listed:
    """Of the rows in order, one more than fit where there are more."""
    shown = tuple(rows[:limit])
    if len(rows) <= limit or not shown:
        return Listed(rows=shown)
    return Listed(rows=shown, cursor=base64.urlsafe_b64encode(msgspec.json.encode(place(shown[-1]))).decode())


def mentions(wanted: str, id: str, title: str | None) -> bool:
    """Whether a search finds it; `wanted` is folded already."""
    return wanted in id.casefold() or wanted in (title or "").casefold()


def rank(row: InboxRow) -> tuple[float, int]:
    """Items run by their rank, those without one by their arrival."""
    return (row.n if row.rank is None else row.rank, row.n)
