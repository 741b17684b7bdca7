"""Killed in the middle: what was acknowledged is there, nothing runs twice, and the log is whole again."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tertulia.records.errors import PromptCancelled, TertuliaError
from tertulia.records.record import Interruption, Message, ToolResult
from tertulia.session.session import Session
from tertulia.testing import ScriptedModel
from tests.session.kit import assert_stats, check_records, record_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.req("S2-14b")]

PATIENCE = 30.0


class Victim:
    """The program, and what it said until it was killed."""

    def __init__(self, path: Path, *where: str, program: str = "tests.session.crash_session") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", program, str(path), *where], stdout=subprocess.PIPE
        )
        self.lines: list[list[str]] = []
        self._rest = b""

    def kill(self, seconds: float | None = None) -> None:
        """When it stands where it is to be killed, or so long after its first word."""
        if seconds is None:
            self._until(lambda: ["there"] in self.lines, PATIENCE)
        else:
            self._until(lambda: bool(self.lines), PATIENCE)
            self._until(lambda: False, seconds)
        self.process.send_signal(signal.SIGKILL)
        with self.process:
            assert self.process.stdout is not None
            self._take(self.process.stdout.read())

    def _until(self, condition: object, seconds: float) -> None:
        assert self.process.stdout is not None
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return
            data = os.read(self.process.stdout.fileno(), 65_536)
            assert data, "it died by itself"
            self._take(data)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [line.decode().split(" ") for line in lines]

    def said(self, word: str) -> list[list[str]]:
        return [line[1:] for line in self.lines if line[0] == word]


@pytest.fixture
def victims() -> Iterator[list[Victim]]:
    made: list[Victim] = []
    yield made
    for victim in made:
        with victim.process:
            victim.process.kill()


def killed(victims: list[Victim], path: Path, where: str, seconds: float | None = None) -> Victim:
    victim = Victim(path, where)
    victims.append(victim)
    victim.kill(seconds)
    return victim


async def look(n: int) -> str:
    raise AssertionError(f"call {n} ran a second time")


async def found(victim: Victim, path: Path) -> tuple[Session, ScriptedModel]:
    model = ScriptedModel(default="again")
    (id,) = victim.said("session")[0]
    return await Session.open(id=id, store=path, model=model, tools=[look]), model


async def whole(session: Session) -> list[str]:
    """The log is valid and the stats agree; the texts of the messages."""
    records = await session.records()
    check_records(records)
    assert_stats(await session.stats(), records)
    return [record.text for record in record_of(records, Message)]


@pytest.mark.parametrize("where", ["stream", "batch", "queue"])
async def test_killed(victims: list[Victim], tmp_path: Path, where: str) -> None:
    path = tmp_path / "store.db"
    victim = killed(victims, path, where)
    session, model = await found(victim, path)
    async with session:
        before = await session.transcript()
        assert [entry.text for entry in before][:3] == ["before", "fine", "killed"]
        texts = [text for _, text in victim.said("receipt")]
        assert [(item.text, item.held) for item in session.queue.list()] == [(text, True) for text in texts]
        with pytest.raises(PromptCancelled):
            await session.prompt("killed", id="mine")
        assert str(await session.prompt("after")) == "again"
        assert await whole(session) == ["before", "fine", "killed", "after", "again"]
        (note,) = record_of(await session.records(), Interruption)
        assert note.reason == "crash"
        results = [(r.status, r.synthetic) for r in record_of(await session.records(), ToolResult)]
        assert results in ([], [("ok", False), ("cancelled", True), ("cancelled", True)])
        assert [message.text for message in model.requests[0].messages][-1] == "after"
        child = await session.fork(
            from_user_entry_index=(await session.forkable_user_messages())[-1].entry_index
        )
        assert_stats(await child.stats(), await child.records())
        assert await session.queue.run() == len(texts)
        await session.wait_idle()
        assert await whole(session) == [
            "before", "fine", "killed", "after", "again", *(word for text in texts for word in (text, "again")),
        ]  # fmt: skip
        assert session.queue.list() == []


async def test_a_receipt_names_what_is_found(victims: list[Victim], tmp_path: Path) -> None:
    victim = killed(victims, tmp_path / "store.db", "queue")
    session, _ = await found(victim, tmp_path / "store.db")
    async with session:
        assert [item.id for item in session.queue.list()] == [id for id, _ in victim.said("receipt")]
        dropped = await session.queue.remove(victim.said("receipt")[0][0])
        assert dropped.text == "one"
    again, _ = await found(victim, tmp_path / "store.db")
    async with again:
        assert [item.text for item in again.queue.list()] == ["two"]


async def at_any_moment(victims: list[Victim], folder: Path, count: int) -> None:
    chance = random.Random(count)
    for n in range(count):
        path = folder / f"{n}.db"
        victim = killed(victims, path, "queue", chance.random() * 0.05)
        try:
            session, _ = await found(victim, path)
        except TertuliaError:
            assert not victim.said("reply")
            continue
        async with session:
            texts = await whole_now(session)
            assert not victim.said("reply") or texts[:2] == ["before", "fine"]
            waiting = [item.id for item in session.queue.list()]
            assert waiting[: len(victim.said("receipt"))] == [id for id, _ in victim.said("receipt")]


async def whole_now(session: Session) -> list[str]:
    await session.rename("claimed, and so mended")
    return await whole(session)


async def test_killed_at_any_moment(victims: list[Victim], tmp_path: Path) -> None:
    await at_any_moment(victims, tmp_path, 4)


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_killed_at_any_moment_often(victims: list[Victim], tmp_path: Path) -> None:
    await at_any_moment(victims, tmp_path, 300)
