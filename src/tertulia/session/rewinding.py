"""What a turn changed in files: shown as one diff, and put back. All of it is read from the log."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from ..records.errors import BlobMissing, Conflict, InvalidInput, NotFound, TertuliaError
from ..records.ids import TurnId
from ..records.record import Custom
from ..sandbox.changes import content, replace, unified
from ..sandbox.files import Files
from ..sandbox.sandbox import Sandbox
from ..store.blobs import ref_of
from .changing import CHANGE, REWOUND, UNDONE, Change
from .journal import Journal, Put
from .loading import read
from .log import Log
from .threads import in_thread

Contents = Mapping[str | None, bytes | None]


class FileChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn changed in files. `rewound`: it was put back by this conversation."""

    turn_id: TurnId
    files: tuple[str, ...]
    diff: str
    rewound: bool = False

    def __str__(self) -> str:
        return self.diff


class _Path(msgspec.Struct, frozen=True, kw_only=True):
    """A file before the first change of a turn, before the last one, and after it.

    `mixed`: between two of the changes it held something that the turn had not written. `mode`: the permissions that
    are to be given back, where the turn removed it.
    """

    path: str
    before: str | None
    last: str | None
    after: str | None
    kept: bool
    mixed: bool
    first_mode: int | None
    removed: bool

    @property
    def mode(self) -> int | None:
        return self.first_mode if self.removed else None


class _Turn(msgspec.Struct, kw_only=True):
    changes: dict[int, Change | None] = {}  # by seq; None when the retention took what it says
    rewound: bool = False

    def paths(self) -> list[_Path]:
        found: dict[str, _Path] = {}
        for change in self.changes.values():
            if change is not None:
                held = found.get(change.path)
                found[change.path] = _Path(
                    path=change.path,
                    before=change.before if held is None else held.before,
                    last=change.before,
                    after=change.after,
                    kept=change.kept and (held is None or held.kept),
                    # the same as before the one before: that one was recorded, and never made
                    mixed=held is not None and (held.mixed or change.before not in (held.after, held.last)),
                    first_mode=change.mode if held is None else held.first_mode,
                    removed=change.after is None or (held is not None and held.removed),
                )
        return [found[path] for path in sorted(found)]


async def shown(log: Log, sandbox: Sandbox, turn: str | None) -> FileChanges:
    """Of a turn of the active path; without one, of the last that changed something and was not put back."""
    id, found = _pick(await _turns(log), turn)
    files, paths = sandbox.files, found.paths()
    names = {each.path: _shown(files, each.path) for each in paths}
    diffs = []
    for each in paths:
        if each.kept:
            contents = await _contents(log, sandbox, each, each.before, each.after)
            args = {"path": names[each.path], "before": contents[each.before], "after": contents[each.after]}
            diffs.append(await in_thread(unified, args))
        else:
            diffs.append(f"File {names[each.path]} changed, and is too large to be shown\n")
    return FileChanges(turn_id=id, files=tuple(names.values()), diff="".join(diffs), rewound=found.rewound)


async def rewind(journal: Journal, sandbox: Sandbox, turn: str) -> list[str]:
    log = journal.log
    id, found = _pick(await _turns(log), turn)
    if found.rewound:
        raise Conflict(f"the files of turn {id} were put back already")
    paths = found.paths()
    large = [_shown(sandbox.files, each.path) for each in paths if not each.kept]
    if large:
        raise Conflict(
            f"too large to be kept before turn {id} changed it: " + ", ".join(large),
            hint="nothing was put back",
        )
    contents: dict[str | None, bytes | None] = {}
    for each in paths:
        contents |= await _contents(log, sandbox, each, each.before)
    args = {"sandbox": sandbox, "turn": id, "paths": paths, "contents": contents}
    done = await in_thread(_put_back_alone, args)
    await asyncio.shield(journal.put(Put([Custom(seq=0, ts=0, kind=REWOUND, data={"turn": id})])))
    return done


async def _turns(log: Log) -> dict[TurnId, _Turn]:
    """All turns of the active path that changed files, in their order."""
    turns: dict[TurnId, _Turn] = {}
    async for chunk in read(log, log.store, log.path()):
        for record in chunk:
            if isinstance(record, Custom):
                _take(turns, record)
    return {id: turn for id, turn in turns.items() if turn.changes}


def _take(turns: dict[TurnId, _Turn], record: Custom) -> None:
    data = record.data if isinstance(record.data, dict) else {}
    if record.kind == CHANGE and record.turn is not None:
        turns.setdefault(record.turn, _Turn()).changes[record.seq] = _change(data)
    elif record.kind == UNDONE and record.turn in turns:
        turns[record.turn].changes.pop(data.get("seq", 0), None)
    elif record.kind == REWOUND and data.get("turn") in turns:
        turns[data["turn"]].rewound = True


def _change(data: dict[str, Any]) -> Change | None:
    try:
        return msgspec.convert(data, Change)
    except msgspec.ValidationError:
        return None


def _pick(turns: dict[TurnId, _Turn], turn: str | None) -> tuple[TurnId, _Turn]:
    if turn is None:
        turn = next((id for id, each in reversed(turns.items()) if not each.rewound), None)
        if turn is None:
            raise NotFound("no turn of this conversation has changed files that were not put back")
    found = turns.get(TurnId(turn))
    if found is None:
        raise NotFound(
            f"no file changes of turn {turn} are known",
            hint="only what tools changed by write_file is, in the turns of the active path",
        )
    if None in found.changes.values():
        raise NotFound(
            f"what turn {turn} changed was not kept",
            hint="the retention of this conversation stores no contents",
        )
    return TurnId(turn), found


async def _contents(
    log: Log, sandbox: Sandbox, path: _Path, *names: str | None
) -> dict[str | None, bytes | None]:  # fmt: skip
    found: dict[str | None, bytes | None] = {None: None}
    for name in names:
        if name is not None:
            held = await in_thread(sandbox.changes.get, {"name": name})
            try:
                found[name] = held if held is not None else await log.store.get_blob(name)
            except BlobMissing as error:
                raise NotFound(
                    f"what {_shown(sandbox.files, path.path)} held is not kept any more",
                    hint="contents that are not stored are forgotten, the oldest first, and with the session",
                ) from error
    return found


def _shown(files: Files, path: str) -> str:
    return os.path.relpath(path, files.cwd) if path.startswith(files.cwd + "/") else path


def _put_back_alone(sandbox: Sandbox, turn: str, paths: list[_Path], contents: Contents) -> list[str]:
    """While no tool of this Session stands between reading a file and writing it."""
    with sandbox.changes.lock, sandbox.changes.writing:
        return _put_back(sandbox.files, turn, paths, contents)


def _put_back(files: Files, turn: str, paths: list[_Path], contents: Contents) -> list[str]:
    """Looks at all of them before it touches one; a failure in the midst takes back what was done."""
    steps: list[tuple[_Path, bytes | None]] = []
    since, mixed = [], []
    for each in paths:
        if os.path.realpath(each.path) != each.path:  # a link stands there, or on the way
            since.append(_shown(files, each.path))
            continue
        try:
            now = content(files, each.path)
        except InvalidInput:  # no file any more, or one that cannot be read
            since.append(_shown(files, each.path))
            continue
        name = None if now is None else ref_of(now)
        if name == each.before:
            continue
        if name not in (each.last, each.after):
            since.append(_shown(files, each.path))
        elif each.mixed:
            mixed.append(_shown(files, each.path))
        else:
            files.locate(each.path, write=True)
            steps.append((each, now))
    _check_untouched(turn, since, mixed)
    done: list[tuple[_Path, bytes | None]] = []
    try:
        for each, now in steps:
            replace(files, each.path, contents[each.before], now, each.mode)
            done.append((each, now))
    except TertuliaError:
        for each, now in reversed(done):
            replace(files, each.path, now, contents[each.before])
        raise
    return [_shown(files, each.path) for each, _ in steps]


def _check_untouched(turn: str, since: list[str], mixed: list[str]) -> None:
    if since:
        raise Conflict(
            f"changed since turn {turn}: " + ", ".join(since),
            hint="nothing was put back; rewind the later turns first, or keep the changes",
        )
    if mixed:
        raise Conflict(
            f"also changed by someone else during turn {turn}: " + ", ".join(mixed),
            hint="nothing was put back; file_changes shows what to take back by hand",
        )
