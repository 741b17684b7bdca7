"""`enable_jsonl_persistence`: one readable file that holds a conversation.

For a conversation in memory the file becomes its store. Beside any other store it is an export that follows the log.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from ..records.codec import encode
from ..records.errors import (
    ConversationNotFound,
    IdConflict,
    InvalidInput,
    SessionHeld,
    StoragePolicyViolation,
    TertuliaError,
)
from ..records.record import AnyRecord, Branched, Totals
from ..store.base import (
    AddBlobs,
    Append,
    Batch,
    ConversationRow,
    Fence,
    Op,
    Opened,
    PutBranch,
    PutClientId,
    PutConversation,
    PutInbox,
    PutSession,
    Row,
    Store,
)
from ..transcript.path import BranchRow, Segment, segments
from . import rows
from .desk import Desk
from .journal import Journal, Put
from .known import KnownIds
from .loading import catch_up, kept_totals_at, records, stored
from .log import Cut, Log
from .owner import Owner

_files: dict[str, Store] = {}
"""The files that conversations of this process keep: a second opening would take a file over from the first."""

CHUNK = 5000  # records in one batch of a copy


async def enable(desk: Desk, known: KnownIds, path: "str | os.PathLike[str]") -> None:
    """The conversation is idle, claimed and loaded. Nothing is changed when this raises."""
    log, journal = desk.log, desk.journal
    if journal.retention.kind in ("none", "headers_only"):
        raise StoragePolicyViolation(
            f"a conversation kept as {journal.retention.kind} is written to no file of bodies"
        )
    if journal.mirror is not None or log.store is not desk.shared.store:
        raise IdConflict("this conversation is kept in a file already", hint="one file for each conversation")
    real = _real(path)
    if real in _files:
        raise SessionHeld(log.id, f"another conversation of this process, which keeps {path}")
    from ..store.jsonl import JsonlStore

    store = await JsonlStore.at_file(path, log.id, clock=desk.shared.clock)
    try:
        await journal.pause()  # what is put meanwhile goes where the log goes
        queue = _queue(desk, known)
        found = await _found(store, log)
        if desk.shared.store.durable:
            await _follow(log, journal, store, found, path)
        else:
            await _move(desk, known, store, found, path, queue)
    except BaseException:
        await store.aclose()
        raise
    finally:
        journal.go_on()
    _files[real] = store
    if found is not None:
        await journal.flush()


def _real(path: object) -> str:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidInput(f"{path!r} is no path for a file")
    return os.path.realpath(name)


def leave(store: object) -> None:
    """The file of this store is free again."""
    for real, kept in list(_files.items()):
        if kept is store:
            del _files[real]


async def _found(store: Store, log: Log) -> Opened | None:
    """What the file holds already, when it holds records."""
    try:
        opened = await store.open(log.id)
    except ConversationNotFound:
        return None
    return opened if opened.last else None


def _queue(desk: Desk, known: KnownIds) -> list[PutInbox | PutClientId]:
    """What waits, in order, and the ids that were used, as far as a store may have them."""
    waiting = [item for item in desk.inbox.items if item.row]
    now = desk.shared.clock.now()
    return [
        *(rows.put_inbox(desk.log.id, item, now) for item in waiting),
        *known.told(desk.keeps_bodies_of),
    ]


async def _move(
    desk: Desk, known: KnownIds, store: Store, found: Opened | None, path: Any, queue: Sequence[Op]
) -> None:
    """The file becomes the store: with what it holds, or with what memory holds."""
    log, journal = desk.log, desk.journal
    if found is not None and (log.totals.entries or any(isinstance(op, PutInbox) for op in queue)):
        raise IdConflict(
            f"{path} holds a conversation already, and so does {log.id}",
            hint="restore it into an empty conversation",
        )
    owner = Owner(store, journal.session_id if found is None else found.conversation.session)
    fence = await store.claim(owner.session)
    if found is None:
        await _copy(log, store, fence, queue=queue)
    else:
        await _add_ids(known, store, fence, queue)
    owner.fence = fence
    opened = await store.open(log.id)
    if found is None:
        _keep_content(log, opened)
    else:
        log.withheld = {}  # of what has no place here
        log.adopt(opened)
    log.store, journal.owner, journal.creation, known.fresh = store, owner, (), False
    if found is not None:
        await catch_up(desk)


async def _add_ids(known: KnownIds, store: Store, fence: Fence, ids: Sequence[Op]) -> None:
    """The ids that were used in vain before the file was taken over. Where the file has one too, it is right."""
    for op in ids:
        assert isinstance(op, PutClientId)
        if await store.client_id(op.row.conversation, op.row.client_id) is None:
            await store.commit((op,), fence)
        else:
            known.forget(op.row.client_id)


def _keep_content(log: Log, opened: Opened) -> None:
    """The same records under the rows of the file, which are those of the active path alone."""
    here, totals, kept = (log.id, 0), log.totals, log.kept_totals
    held = log.withheld_on(log.path())
    log.branches = {(row.conversation, row.n): row for row in opened.branches}
    log.branches[here] = msgspec.structs.replace(log.branches[here], totals=totals)
    log.kept = {here: kept} if kept is not totals else {}
    log.row = msgspec.structs.replace(log.row, active=0, parent=None)
    log.withheld = {seq: each._replace(branch=here) for seq, each in held.items()}


async def _copy(
    log: Log, store: Store, fence: Fence, after: int = 0, queue: Sequence[Op] = (), branch: int = 0
) -> None:  # fmt: skip
    """The active path, as one branch without a parent, with what waits and the ids that were used."""
    found = await stored(log, after)
    begins: Batch = ()
    if not after:
        begins = (
            PutSession(session=fence.session, root=log.id),
            PutConversation(row=msgspec.structs.replace(log.row, active=0, parent=None)),
            PutBranch(row=BranchRow(conversation=log.id, n=0)),
            *queue,
        )
    first = after + 1
    for start in range(0, max(1, len(found)), CHUNK):
        part = found[start : start + CHUNK]
        await _copy_blobs(log.store, store, part)
        last = part[-1].seq if start + CHUNK < len(found) else log.last
        batch = (*begins, *appended(log, part, first, last, log.kept_totals, branch))
        await store.commit(batch, fence)
        first, begins = last + 1, ()


async def _copy_blobs(source: Store, target: Store, records: Sequence[AnyRecord]) -> None:
    for ref in {ref for record in records for ref in record.refs}:
        await target.put_blob(await source.get_blob(ref))


async def fork_copy(
    log: Log, journal: Journal, store: Store, row: ConversationRow, cut: Cut
) -> tuple[Log, Batch]:
    """A fork of what has a file of its own: it lives in the Session's store, so it takes a copy of the prefix along.

    The child's log, and what creates it.
    """
    at = cut.at
    prefix = [record for record in await records(log) if record.seq <= at]
    kept = [record for record in await stored(log) if record.seq <= at]
    await _copy_blobs(log.store, store, kept)
    branch = BranchRow(conversation=row.id, n=0, last=at, totals=cut.totals)
    child = Log(Opened(conversation=row, branches=(branch,), inbox=(), last=at), log.store)
    child.load(prefix)
    child.withheld = {
        seq: held._replace(branch=(row.id, 0)) for seq, held in log.withheld_on(log.path(), at).items()
    }
    if cut.kept is not cut.totals:
        child.kept[row.id, 0] = cut.kept
    active = log.row.active
    noted = Branched(seq=0, ts=0, branch=active, parent=active, at=at, conversation=row.id)
    await asyncio.shield(journal.put(Put([noted])))
    root = BranchRow(conversation=row.id, n=0)
    return child, (PutConversation(row=row), PutBranch(row=root), *appended(child, kept, 1, at, cut.kept))


def appended(
    log: Log, records: Sequence[AnyRecord], first: int, last: int, totals: Totals, branch: int = 0
) -> Batch:
    """These records at the end of a branch of a file."""
    rows = tuple(Row(record.seq, encode(record)) for record in records)
    ts = records[-1].ts if records else log.ts
    ops: list[Op] = [
        Append(conversation=log.id, branch=branch, first=first, last=last, rows=rows, totals=totals, ts=ts),
        *(
            AddBlobs(conversation=log.id, branch=branch, seq=record.seq, refs=record.refs)
            for record in records
            if record.refs
        ),
    ]
    return tuple(ops)


class Mirror:
    """An export that follows the log. It is never read back, and a failure of it harms nothing but itself."""

    def __init__(self, log: Log, store: Store, fence: Fence, branch: int) -> None:
        self.failed: BaseException | None = None
        self._log = log
        self._store = store
        self._fence = fence
        self._last = log.last
        self._branches = {(part.conversation, part.branch): branch for part in log.path()}  # in the file
        self._branches[log.id, log.row.active] = branch
        self._work: asyncio.Task[None] | None = None

    def follow(self) -> None:
        """Something was appended: write what is missing, in one go for all that came meanwhile."""
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._write(), name="tertulia-mirror")

    async def _write(self) -> None:
        """What failed is tried again with what comes next."""
        log = self._log
        try:
            while self._last < log.last:
                until, totals, row, branch = log.last, log.kept_totals, log.row, log.branch
                records = [record for record in await stored(log, self._last) if record.seq <= until]
                if log.row.active != row.active:
                    continue  # another branch meanwhile
                await _copy_blobs(log.store, self._store, records)
                begins, here = await self._place(row, branch)
                batch = (*begins, *appended(log, records, self._last + 1, until, totals, here))
                await self._store.commit(batch, self._fence)
                self._branches[row.id, row.active], self._last = here, until
            self.failed = None
        except TertuliaError as error:
            self.failed = error

    async def _place(self, row: ConversationRow, branch: BranchRow) -> tuple[Batch, int]:
        """The branch of the file that this one of the log is, and what makes it when it is not there yet."""
        known = self._branches.get((row.id, row.active))
        if known is not None:
            return (), known
        parent = None if branch.parent is None else (row.id, self._branches.get(branch.parent, 0))
        base = await kept_totals_at(self._log, branch.at)
        made = BranchRow(
            conversation=row.id,
            n=row.active,
            parent=parent,
            at=branch.at,
            last=branch.at,
            base=base,
            totals=base,
        )
        changed = msgspec.structs.replace(row, parent=None)
        return (PutBranch(row=made), PutConversation(row=changed)), row.active

    async def aclose(self) -> None:
        if self._work is not None:
            await self._work
        leave(self._store)
        await self._store.aclose()


async def _follow(log: Log, journal: Journal, store: Store, found: Opened | None, path: Any) -> None:
    """Begin an export, or go on with the one that is there."""
    if found is not None:
        await _same_log(log, store, found, path)
    fence = await store.claim(found.conversation.session if found is not None else journal.session_id)
    branch = found.conversation.active if found is not None else 0
    await _copy(log, store, fence, found.last if found is not None else 0, branch=branch)
    journal.mirror = Mirror(log, store, fence, branch)


async def _same_log(log: Log, store: Store, found: Opened, path: Any) -> None:
    last = await store.read(_tip(found), limit=1, reverse=True)
    ours = {record.seq: record for record in await stored(log)}
    if not last or last[0].seq not in ours or encode(ours[last[0].seq]) != last[0].data:
        raise IdConflict(f"{path} holds another conversation", hint="give a file of its own")


def _tip(opened: Opened) -> tuple[Segment, ...]:
    return segments(opened.branches, opened.conversation.id, opened.conversation.active)
