"""What the cases of the store conformance suite are written with. It needs no test framework."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Literal

import msgspec

from ..records.codec import encode
from ..records.errors import TertuliaError
from ..records.ids import ConversationId, ItemId, SessionId
from ..records.parts import Text
from ..records.record import Message, Tombstone, Totals
from ..store.base import (
    Append,
    Batch,
    ConversationRow,
    Fence,
    InboxRow,
    Op,
    Opened,
    PutBranch,
    PutConversation,
    PutInbox,
    PutSession,
    Row,
    Store,
)
from ..transcript.path import BranchRow, Segment

Need = Literal["durable", "processes"]
Opener = Callable[[], Awaitable[Store]]
"""A new Store over the same storage each time; empty the first time."""

PATIENCE = 30.0
"""Seconds after which a store that does not answer has failed."""


class Case(msgspec.Struct, frozen=True):
    """`needs`: `durable` is what is committed outlives the Store; `processes` is that two Stores over one storage,
    open at a time, are to each other as two processes are."""

    name: str
    needs: frozenset[Need]
    body: Callable[[Opener], Awaitable[None]]

    async def run(self, opener: Opener) -> None:
        """Raises AssertionError (or what the store raised) when the store does not keep the rule."""
        await asyncio.wait_for(self.body(opener), PATIENCE)


Register = Callable[[Callable[[Opener], Awaitable[None]]], Callable[[Opener], Awaitable[None]]]


def case(cases: list[Case], *needs: Need) -> Register:
    def register(body: Callable[[Opener], Awaitable[None]]) -> Callable[[Opener], Awaitable[None]]:
        cases.append(Case(body.__name__, frozenset(needs), body))
        return body

    return register


@contextlib.asynccontextmanager
async def opened(opener: Opener) -> AsyncIterator[Store]:
    store = await opener()
    try:
        yield store
    finally:
        await store.aclose()


def same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: found {_short(found)}, expected {_short(expected)}")


def _short(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 600 else f"{text[:400]} … {text[-200:]}"


async def refused(error: type[TertuliaError], doing: Awaitable[object], what: str) -> TertuliaError:
    """That it raises this error; the error."""
    try:
        result = await doing
    except error as raised:
        return raised
    raise AssertionError(f"{what}: gave {_short(result)}, expected {error.__name__}")


# ── batches ──

S = SessionId("s")
A = ConversationId("a")
B = ConversationId("b")
C = ConversationId("c")


def data(seq: int, text: str = "") -> bytes:
    return encode(Message(seq=seq, ts=seq, role="user", parts=(Text(text=text or f"text {seq}"),)))


def rows(first: int, last: int, text: str = "") -> tuple[Row, ...]:
    return tuple(Row(seq, data(seq, text)) for seq in range(first, last + 1))


def row(seq: int, text: str = "") -> Row:
    return Row(seq, data(seq, text))


def tombstone(first: int, through: int) -> bytes:
    return encode(Tombstone(seq=first, ts=first, through=through))


def create(
    id: ConversationId, *, session: SessionId = S, updated: int = 0, title: str | None = None
) -> Batch:
    """A session's row, and in it a conversation with one empty branch."""
    conversation = ConversationRow(id=id, session=session, title=title, updated=updated, created=updated)
    return (
        PutSession(session=session, root=id),
        PutConversation(row=conversation),
        PutBranch(row=BranchRow(conversation=id, n=0)),
    )


def append(
    id: ConversationId, first: int, last: int, *, branch: int = 0, text: str = "", ts: int = 0
) -> Append:
    return Append(
        conversation=id,
        branch=branch,
        first=first,
        last=last,
        rows=rows(first, last, text),
        totals=Totals(entries=last),
        ts=ts,
    )


def branch(id: ConversationId, n: int, at: int, parent: int = 0) -> PutBranch:
    return _child(id, n, (id, parent), at)


def fork(parent: ConversationId, id: ConversationId, at: int, *, n: int = 0, session: SessionId = S) -> Batch:
    """A conversation that begins where branch `n` of another stands at seq `at`."""
    conversation = ConversationRow(id=id, session=session, parent=(parent, at))
    return (PutConversation(row=conversation), _child(id, 0, (parent, n), at))


def _child(id: ConversationId, n: int, parent: tuple[ConversationId, int], at: int) -> PutBranch:
    totals = Totals(entries=at)
    return PutBranch(
        row=BranchRow(conversation=id, n=n, parent=parent, at=at, last=at, base=totals, totals=totals)
    )


def item(
    id: ConversationId, name: str, *, client_id: str | None = None, digest: bytes | None = None
) -> PutInbox:
    body = b"body of \xff\x00 " + name.encode()
    waiting = InboxRow(
        conversation=id, item=ItemId(name), source="follow_up", body=body, client_id=client_id, ts=7
    )
    return PutInbox(row=waiting, digest=digest)


# ── what a store holds ──


class Writer:
    """A store under the claim of one session."""

    def __init__(self, store: Store, fence: Fence) -> None:
        self.store = store
        self.fence = fence

    def commit(self, *ops: Op) -> asyncio.Future[int]:
        return self.store.commit(ops, self.fence)

    async def filled(self, id: ConversationId, count: int) -> None:
        """A conversation with this many records."""
        await self.commit(*create(id, session=self.fence.session), append(id, 1, count))


async def writer(store: Store, session: SessionId = S) -> Writer:
    return Writer(store, await store.claim(session))


def path(opened: Opened, n: int = 0) -> list[Segment]:
    """The stretches that lead to a branch, root first."""
    branches = {(row.conversation, row.n): row for row in opened.branches}
    found: list[Segment] = []
    key: tuple[ConversationId, int] | None = (opened.conversation.id, n)
    until = branches[opened.conversation.id, n].last
    while key in branches:
        here = branches[key]
        if until > here.at:
            found.append(Segment(here.conversation, here.n, here.at, until))
        until = min(until, here.at)
        key = here.parent
    return found[::-1]


async def seqs(store: Store, id: ConversationId, n: int = 0) -> list[int]:
    """The seqs of all records that a branch sees."""
    return [each.seq for each in await read(store, id, n)]


async def read(store: Store, id: ConversationId, n: int = 0) -> list[Row]:
    return await store.read(path(await store.open(id), n), limit=100_000)


async def listed(
    store: Store,
    *,
    search: str | None = None,
    archived: bool | None = False,
    session: SessionId | None = None,
) -> list[ConversationId]:
    page = await store.list(limit=1_000, search=search, archived=archived, session=session)
    return [each.id for each in page.rows]


async def settled(futures: Iterable[asyncio.Future[int]]) -> Sequence[int | BaseException]:
    return await asyncio.gather(*futures, return_exceptions=True)


def kinds(results: Sequence[object]) -> list[str]:
    return [type(result).__name__ for result in results]
