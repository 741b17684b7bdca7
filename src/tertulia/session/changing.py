"""Changes of files: recorded before they are made, so that a turn can be shown and put back, also after a crash."""

import asyncio
import os
import stat
from functools import partial

import msgspec

from ..records.errors import InvalidInput, PromptCancelled
from ..records.ids import CallId
from ..records.record import Custom
from ..sandbox.changes import LARGEST, replace
from ..sandbox.files import Files, Place
from ..store.blobs import ref_of
from .engine import Turn
from .journal import Committed, Put
from .threads import in_thread

CHANGE = "file_change"
UNDONE = "file_change_undone"
REWOUND = "files_rewound"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a `file_change`: what a file held and what it was about to hold, by the names of blobs.

    None: there is no file. `kept` is False when one of them is too large to be kept. `mode`: the permissions that
    the file had, where they are known.
    """

    path: str
    before: str | None
    after: str | None
    kept: bool = True
    mode: int | None = None


async def write_file(
    turn: Turn, call: CallId, path: str, data: bytes | None, before: bytes | None
) -> Place:  # fmt: skip
    """Change a file on behalf of a call. The record of it is durable before the file is touched."""
    given: tuple[object, ...] = (data, before)
    if not all(each is None or isinstance(each, bytes) for each in given):
        raise InvalidInput("a file holds bytes", hint="encode the text first")
    files = turn.sandbox.files
    place, change = await in_thread(_planned, {"files": files, "path": path, "data": data, "before": before})
    arguments = {"turn": turn, "call": call, "path": place.real, "data": data, "before": before}
    if data == before:
        return await in_thread(_replaced, arguments)
    recorded = await _recorded(turn, call, change, (before, data))
    try:
        return await in_thread(_replaced, arguments)
    except Exception:  # when it is cancelled, its thread goes on: the file may yet be changed
        _undone(turn, recorded)
        raise


def _planned(files: Files, path: str, data: bytes | None, before: bytes | None) -> tuple[Place, Change]:
    place = files.locate(path, write=True)
    names = [None if each is None else ref_of(each) for each in (before, data)]
    kept = max(len(each or b"") for each in (before, data)) <= LARGEST
    mode = None if before is None else _mode(place.real)
    return place, Change(path=place.real, before=names[0], after=names[1], kept=kept, mode=mode)


def _mode(path: str) -> int | None:
    try:
        return stat.S_IMODE(os.lstat(path).st_mode) & 0o777
    except OSError:  # there is none any more: the replacement will say so
        return None


def _replaced(turn: Turn, call: CallId, path: str, data: bytes | None, before: bytes | None) -> Place:
    with turn.sandbox.changes.writing:
        _check_open(turn, call)  # here, as it may have been given up while others were writing
        return replace(files=turn.sandbox.files, path=path, data=data, before=before)


async def _recorded(
    turn: Turn, call: CallId, change: Change, contents: tuple[bytes | None, bytes | None]
) -> Committed:  # fmt: skip
    """The record, durable. Where the retention stores no bodies, the contents stay in memory, as the record does."""
    stored = turn.journal.retention_of(turn.id).bodies
    refs: list[str] = []
    for name, data in zip((change.before, change.after), contents, strict=True) if change.kept else ():
        if data is not None and stored:
            refs.append(await turn.store.put_blob(data))
        elif data is not None:
            await in_thread(turn.sandbox.changes.keep, {"name": name, "data": data})
    _check_open(turn, call)
    record = Custom(
        seq=0, ts=0, turn=turn.id, kind=CHANGE, data=msgspec.to_builtins(change), refs=tuple(refs)
    )
    committed = turn.journal.put(Put([record], turn=turn.id))
    try:
        await asyncio.shield(committed)
    except asyncio.CancelledError:
        committed.add_done_callback(partial(_undone, turn))
        raise
    return committed


def _undone(turn: Turn, recorded: Committed) -> None:
    """What was recorded did not happen."""
    if recorded.exception() is None:
        data = {"seq": recorded.result()[0].seq}
        turn.journal.put(Put([Custom(seq=0, ts=0, turn=turn.id, kind=UNDONE, data=data)]))


def _check_open(turn: Turn, call: CallId) -> None:
    """What its turn has given up changes nothing any more."""
    if call not in turn.open_calls:
        raise PromptCancelled("the call was given up before it changed the file")
