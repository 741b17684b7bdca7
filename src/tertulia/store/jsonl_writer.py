"""Writing: groups of batches go to disk under the folder's lock, each file flushed once, all or nothing per batch.

A group that touches one file writes it and is done. Where a batch is spread over several, an intent that holds the
whole group is made durable first; whoever comes next after a crash carries it out.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..records.errors import StorageError, TertuliaError
from . import jsonl_disk as disk
from .base import Batch, Fence
from .jsonl_blobs import Blobs
from .jsonl_claims import Claims
from .jsonl_draft import Draft
from .jsonl_gate import Gate
from .jsonl_plan import Group, stands_alone
from .jsonl_rebuild import rebuilt

Asked = tuple[Batch, Fence | None]
Answer = int | BaseException


class Writer:
    """Belongs to one thread, as the books and the side do."""

    def __init__(self, gate: Gate, blobs: Blobs, claims: Claims) -> None:
        self.gate = gate
        self.books = gate.books
        self.side = gate.side
        self.folder = gate.folder
        self.blobs = blobs
        self.claims = claims

    # ── commits ──

    def commit(self, asked: Sequence[Asked]) -> list[Answer]:
        """Writes these batches, in order; for each its commit number, or why nothing of it was written."""
        answers: list[Answer] = []
        part: list[Asked] = []
        for each in asked:
            if part and stands_alone(each[0]):
                answers += self._commit_part(part)
                part = []
            part.append(each)
            if stands_alone(each[0]):
                answers += self._commit_part(part)
                part = []
        return answers + (self._commit_part(part) if part else [])

    def _commit_part(self, part: Sequence[Asked]) -> list[Answer]:
        try:
            with self.gate.writing():
                return self._group(part)
        except TertuliaError as error:
            return [error for _ in part]
        except OSError as error:
            return [disk.failed(error, self.folder.side) for _ in part]

    def _group(self, part: Sequence[Asked]) -> list[Answer]:
        group = Group(self.books, self.side, self.blobs.has, self.claims.elsewhere, self.gate.counter())
        answers: list[Answer] = []
        for batch, fence in part:
            try:
                answers.append(group.add(batch, fence))
            except TertuliaError as error:
                answers.append(error)
            except OSError as error:
                answers.append(disk.failed(error, self.folder.side))
        try:
            self._write(group)
        except StorageError as error:
            if len(part) == 1:
                return [error]
            # One batch that finds no room must not fail the others: each by itself.
            return [answer for each in part for answer in self._group([each])]
        return answers

    def _write(self, group: Group) -> None:
        steps: list[disk.Step] = []
        self.gate.count(group.counter)
        try:
            steps = self._steps(group)
            if group.spread:
                disk.write_intent(self.gate.intent, tuple(steps))
            self._carry_out(steps)
        except OSError as error:
            self._take_back(group, steps)
            raise disk.failed(error, error.filename or self.folder.side) from error
        finally:
            for id in group.drafts:
                if group.drafts[id].whole or group.drafts[id].gone:
                    self.books.forget(id)
        if group.spread:
            disk.clear_intent(self.gate.intent)
        self._settle(group)

    def _steps(self, group: Group) -> list[disk.Step]:
        """Appends first, which may find no room; then what replaces a name, which can hardly fail."""
        steps: list[disk.Step] = []
        names: list[disk.Step] = []
        for id, draft in group.drafts.items():
            path = self.folder.file(id)
            name = os.fspath(path)
            if draft.gone and draft.row is None:
                names.append(disk.Step(path=name, commit=group.counter, gone=True))
                continue
            self._set_aside(draft, path)
            if draft.whole or not draft.log.batches:
                fresh = path.with_name(path.name + ".tmp")
                disk.write_new(fresh, self._content(group, draft, path))
                new = not path.exists()
                names.append(disk.Step(path=name, commit=draft.commit, fresh=os.fspath(fresh), new=new))
            else:
                data = b"".join(group.bytes[id])
                steps.append(disk.Step(path=name, commit=draft.commit, at=draft.log.good, data=data))
        if group.side_bytes:
            name, data = os.fspath(self.side.path), b"".join(group.side_bytes)
            steps.append(disk.Step(path=name, commit=group.counter, at=self.side.end, data=data))
        return steps + names

    def _content(self, group: Group, draft: Draft, path: Path) -> Iterator[bytes]:
        if not draft.whole:
            yield from group.bytes[draft.id]
            return
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield from rebuilt(draft, file, group.counter)
        finally:
            os.close(file)

    def _set_aside(self, draft: Draft, path: Path) -> None:
        """Moves what a crash left half-written out of the way, into a file of its own."""
        log = draft.log
        if not log.tail or not path.exists():
            return
        with path.open("rb") as file:
            file.seek(log.good)
            data = file.read()
        aside = disk.put_aside(path, [data])
        self.books.report(
            path, f"{len(data)} bytes of a batch that was never committed", f"moved to {aside.name}"
        )

    def _carry_out(self, steps: Sequence[disk.Step]) -> None:
        renamed = False
        for step in steps:
            try:
                disk.do(step)
            except OSError as error:
                if renamed:
                    raise StorageError(
                        f"a batch is half in place: {error.strerror}",
                        hint="the next write completes it",
                    ) from error
                raise
            renamed = renamed or step.gone or (step.fresh is not None and not step.new)

    def _take_back(self, group: Group, steps: Sequence[disk.Step]) -> None:
        """After a failure: what was appended goes. Where even that fails, the next write does it."""
        for step in steps:
            try:
                if step.fresh is not None:
                    Path(step.fresh).unlink(missing_ok=True)
                    if step.new:
                        Path(step.path).unlink(missing_ok=True)
                elif not step.gone and os.path.exists(step.path) and os.path.getsize(step.path) > step.at:
                    os.truncate(step.path, step.at)
            except OSError as error:
                self.books.report(
                    Path(step.path), f"cannot be cut back: {error.strerror}", "cut at the next write"
                )
        self.gate.void()
        for id in group.drafts:
            self.books.forget(id)

    def _settle(self, group: Group) -> None:
        """After a write: reads back what changed, and clears away what is not needed any more. Cannot fail it."""
        refs: set[str] = set()
        self.blobs.referred({ref for draft in group.drafts.values() for ref in draft.owned})
        gone = [draft for draft in group.drafts.values() if draft.gone]
        for draft in group.drafts.values():
            if draft.whole or draft.gone:
                refs |= draft.disowned()
        try:
            self.books.wrote([draft.id for draft in group.drafts.values() if draft.named])
            self.side.refresh()
            self.side.tidy()
            for draft in gone:
                path = self.folder.file(draft.id)
                for aside in path.parent.glob(_literal(path.name) + ".t*"):
                    aside.unlink(missing_ok=True)
            if refs:
                self.blobs.drop(refs - self.books.owned(refs))
        except OSError as error:
            self.books.report(self.folder.side, f"cannot tidy up: {error.strerror}", "tried again later")

    # ── blobs ──

    def put_blob(self, data: bytes) -> str:
        with self.gate.typed(), self.gate.writing():
            return self.blobs.put(data)

    def collect(self, older_than: float) -> int:
        with self.gate.typed(), self.gate.writing():
            old = set(self.blobs.older(older_than))
            gone = old - self.books.owned(old) if old else set()
            for ref in old:
                self.blobs.waiting.pop(ref, None)
            self.blobs.drop(gone)
            return len(gone)


def _literal(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
