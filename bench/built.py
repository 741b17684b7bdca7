"""Long conversations and chains of forks, written into a store without running their turns."""

from tertulia.records.codec import encode
from tertulia.records.ids import (
    ConversationId,
    SessionId,
    new_conversation_id,
    new_session_id,
    new_turn_id,
)
from tertulia.records.parts import Text
from tertulia.records.record import AnyRecord, Message, ModelUsage, Totals, TurnEnd, TurnStart, Usage
from tertulia.store.base import (
    Append,
    ConversationRow,
    Fence,
    PutBranch,
    PutConversation,
    PutSession,
    Row,
    Store,
)
from tertulia.transcript.path import BranchRow
from tertulia.transcript.stats import count

A_TURN = 5  # records
GROUP = 200  # turns in one append
START = 1_700_000_000_000_000


def turn(seq: int, totals: Totals, size: int = 200) -> tuple[list[AnyRecord], Totals]:
    """The records of a text turn, the first of them `seq`, and the totals after them."""
    id, entries, usage = new_turn_id(), totals.entries, Usage(input_tokens=1, output_tokens=1, requests=1)
    ts = START + seq * 1000
    said, answer = (Text(text="q" * size),), (Text(text="a" * size),)
    records: list[AnyRecord] = [
        TurnStart(seq=seq, ts=ts, turn=id, model="scripted", totals=totals),
        Message(seq=seq + 1, ts=ts + 1, turn=id, role="user", parts=said, index=entries),
        Message(
            seq=seq + 2, ts=ts + 2, turn=id, msg=f"{id}.1", first=True, role="assistant", parts=answer,
            index=entries + 1,
        ),
        ModelUsage(seq=seq + 3, ts=ts + 3, turn=id, model="scripted", usage=usage),
        TurnEnd(seq=seq + 4, ts=ts + 4, turn=id, status="completed", stop_reason="end", usage=usage),
    ]  # fmt: skip
    for record in records:
        totals = count(totals, record)
    return records, totals


def append(conversation: ConversationId, records: list[AnyRecord], totals: Totals) -> Append:
    rows = tuple(Row(record.seq, encode(record)) for record in records)
    first, last = records[0].seq, records[-1]
    return Append(
        conversation=conversation, branch=0, first=first, last=last.seq, rows=rows, totals=totals, ts=last.ts
    )


async def conversation(store: Store, turns: int) -> ConversationId:
    """One of that many text turns, in a Session of its own that nobody holds."""
    session, id = new_session_id(), new_conversation_id()
    fence = await create(store, session, id)
    totals, seq = Totals(), 1
    for start in range(0, turns, GROUP):
        records: list[AnyRecord] = []
        for _ in range(min(GROUP, turns - start)):
            made, totals = turn(seq, totals)
            records += made
            seq += A_TURN
        await store.commit((append(id, records, totals),), fence)
    await store.release(fence)
    return id


async def create(store: Store, session: SessionId, id: ConversationId) -> Fence:
    row = ConversationRow(id=id, session=session, created=START, updated=START)
    fence = await store.claim(session)
    branch = BranchRow(conversation=id, n=0)
    await store.commit(
        (PutSession(session=session, root=id), PutConversation(row=row), PutBranch(row=branch)), fence
    )
    return fence


async def chain(store: Store, depth: int) -> ConversationId:
    """A fork of a fork of …, each with one turn of its own; the last of them."""
    session, id = new_session_id(), new_conversation_id()
    fence = await create(store, session, id)
    records, totals = turn(1, Totals())
    await store.commit((append(id, records, totals),), fence)
    for _ in range(depth):
        parent, id, at = id, new_conversation_id(), records[-1].seq
        row = ConversationRow(id=id, session=session, parent=(parent, at), created=START, updated=START)
        base = totals
        branch = BranchRow(conversation=id, n=0, parent=(parent, 0), at=at, last=at, base=base, totals=base)
        records, totals = turn(at + 1, base)
        ops = (PutConversation(row=row), PutBranch(row=branch), append(id, records, totals))
        await store.commit(ops, fence)
    await store.release(fence)
    return id
