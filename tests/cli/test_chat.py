"""The terminal chat, as a person and as a pipe use it."""

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tertulia import Session
from tertulia.testing import FakeMcpServer, FakeTool, ScriptedModel, call

COMMAND = [sys.executable, "-m", "tertulia", "chat", "--model", "demo"]


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=text, capture_output=True, text=True, timeout=30, check=False
    )


def test_each_line_of_a_pipe_is_answered_in_order() -> None:
    done = piped("first\nsecond\n")
    assert done.returncode == 0
    assert done.stdout.index("You said: 'first'") < done.stdout.index("You said: 'second'")
    assert done.stderr == ""


def test_a_last_line_without_an_end_counts_too() -> None:
    assert "You said: 'alone'" in piped("alone").stdout


def test_a_failed_turn_is_told_and_is_the_exit_code() -> None:
    done = piped("error\n")
    assert done.returncode == 1
    assert "refused: you asked the demo model for an error" in done.stdout


def test_a_tool_call_and_its_result_are_shown() -> None:
    shown = piped("tool now\n").stdout
    assert "· now" in shown
    assert re.search(r"ok: \d{4}-\d\d-\d\d", shown)


def test_beside_the_built_in_tools_the_demo_has_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--tools"], input="chart\ntool now\n", capture_output=True, text=True, timeout=30, check=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert "  chart: {'$schema'" in done.stdout
    assert "missing argument" not in done.stdout


def test_a_chart_reasoning_and_a_retry_are_shown() -> None:
    shown = piped("chart\nthink\nretry\n").stdout
    assert "  chart: {'$schema'" in shown
    assert "They want to see reasoning. I have none, so I show this.\nThat was" in shown
    assert "retrying in 1.0 s; what it said is void: you asked the demo model to fail once" in shown
    assert shown.endswith("The first attempt failed, this one did not.\n")


def test_from_a_pipe_a_tool_that_asks_is_denied() -> None:
    assert "denied: publish is not allowed here" in piped("approval\n").stdout


def test_the_model_is_chosen_when_none_is_named_and_told() -> None:
    here = {**{name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}}
    done = subprocess.run(
        COMMAND[:-2], input="/quit\n", capture_output=True, text=True, timeout=30, check=False, env=here
    )
    assert done.returncode == 0
    assert re.match(r"model (local|openai-chat:\S+) \(.+\)\n", done.stderr)


def test_commands_answer_and_a_wrong_one_says_what_to_do() -> None:
    done = piped("/nope\n/fork x\n/steer\n/allow\n/allow x\n/help\n")
    assert "there is no command /nope" in done.stderr
    assert "/fork takes the number of a message" in done.stderr
    assert "/steer needs words" in done.stderr
    assert "nothing waits for an answer" in done.stderr
    assert "/allow takes nothing, or the word always" in done.stderr
    for command in ("/steer", "/fork", "/transcript", "/stats", "/quit"):
        assert command in done.stdout


def test_a_stored_chat_is_resumed_with_its_transcript(tmp_path: Path) -> None:
    store = str(tmp_path / "chat.db")
    first = piped("remember me\n", "--store", store)
    id = re.search(r"conversation (\S+);", first.stdout)
    assert id is not None
    second = piped("/transcript\n/stats\n", "--store", store, "--resume", id[1])
    assert "user: remember me" in second.stdout
    assert "1 user, 1 assistant" in second.stdout


def test_what_a_turn_changed_in_files_is_shown_and_put_back(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("mine\n")
    script = [[call("write", path="a.txt", content="theirs\n"), call("write", path="b.txt", content="new\n")]]

    async def change() -> str:
        model = ScriptedModel(script, default="Done.")
        store = tmp_path / "s.db"
        async with Session.open(
            model=model, store=store, tools="default", approvals="allow", cwd=folder
        ) as made:
            await made.prompt("Go.")
            return made.root.id

    done = subprocess.run(
        [*COMMAND, "--store", str(tmp_path / "s.db"), "--resume", asyncio.run(change())],
        input="/diff\n/rewind\n/rewind\n/diff turn_none\n",
        capture_output=True, text=True, timeout=30, check=False, cwd=folder,
    )  # fmt: skip
    assert re.search(r"turn_\w+: a\.txt, b\.txt\n--- a/a\.txt\n", done.stdout)
    assert "-mine\n+theirs\n" in done.stdout
    assert "put back a.txt, b.txt" in done.stdout
    assert "no turn of this conversation has changed files" in done.stderr
    assert "no file changes of turn turn_none" in done.stderr
    assert {each.name: each.read_text() for each in folder.iterdir()} == {"a.txt": "mine\n"}


def test_resume_needs_to_know_where() -> None:
    done = piped("", "--resume", "conv_x")
    assert done.returncode == 1
    assert "--resume needs --store" in done.stderr


def test_an_unknown_model_and_an_unknown_conversation_are_told(tmp_path: Path) -> None:
    assert "no model is named 'nonsense'" in piped("", "--model", "nonsense").stderr
    done = piped("", "--store", str(tmp_path / "x.db"), "--resume", "conv_nowhere")
    assert done.returncode == 1
    assert "conv_nowhere" in done.stderr
    assert "Traceback" not in done.stderr


class Terminal:
    """The chat on a pseudo terminal."""

    def __init__(self, *arguments: str, command: Sequence[str] = COMMAND, folder: Path | None = None) -> None:
        pid, self.file = pty.fork()
        if pid == 0:
            os.environ["NO_COLOR"] = "1"
            os.chdir(folder or ".")
            os.execv(command[0], [*command, *arguments])
        self.pid = pid
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.file, text.encode())

    def until(self, wanted: str, seconds: float = 20.0, after: str = "") -> None:
        """Read until this was shown, behind `after`."""
        end = time.monotonic() + seconds
        while wanted not in self.seen.partition(after)[2] if after else wanted not in self.seen:
            ready, _, _ = select.select([self.file], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{wanted!r} was not shown; what was: {self.seen!r}"
            self.seen += os.read(self.file, 65536).decode("utf-8", "replace")

    def asked(self, after: str = "") -> None:
        """Until a question can be answered."""
        self.until("Do not allow it\r\n> ", after=after)

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    chat = Terminal()
    yield chat
    os.close(chat.file)
    try:
        os.kill(chat.pid, signal.SIGKILL)
        os.waitpid(chat.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return  # the test has waited for it


def test_ctrl_c_when_nothing_runs_leaves(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("\x03")
    assert terminal.end() == 130


def test_ctrl_c_cancels_the_turn_and_a_second_one_leaves(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("wait\n")
    terminal.until("I wait")
    terminal.type("more\n")
    terminal.until("queued")
    terminal.type("\x03")
    terminal.until("cancelled; 1 queued dropped; Ctrl-C again leaves")
    terminal.type("\x03")
    assert terminal.end() == 130


def test_after_a_cancel_the_next_input_is_answered(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("wait\n")
    terminal.until("I wait")
    terminal.type("/cancel\n")
    terminal.until("cancelled")
    terminal.type("hello again\n")
    terminal.until("You said: 'hello again'")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_who_sits_at_the_terminal_is_asked(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("approval\n")
    terminal.asked()
    terminal.type("/deny not today\n")
    terminal.until("The tool answered: not today")
    terminal.type("approval\n")
    terminal.until('? publish {"text":"Hello, world."}', after="not today")
    terminal.asked(after="not today")
    terminal.type("9\n")
    terminal.until("there is no answer 9")
    terminal.type("2\n")
    terminal.until("published to nobody")
    terminal.type("approval\n")
    terminal.until("The tool answered: published to nobody", after="The tool answered: published")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_a_number_answers_what_asks(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("approval\n")
    terminal.asked()
    terminal.type("1\n")
    terminal.until("The tool answered: published to nobody")
    terminal.type("approval\n")
    terminal.asked(after="The tool answered")  # it was for once
    terminal.type("3\n")
    terminal.until("denied", after="The tool answered")
    terminal.type("1\n")
    terminal.until("You said: '1'")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_what_was_answered_is_listed_and_revoked(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("/approvals\n")
    terminal.until("nothing waits, and nothing is remembered")
    terminal.type("approval\n")
    terminal.asked()
    terminal.type("/approvals\n")
    terminal.until("waits: publish")
    terminal.type("2\n")
    terminal.until("The tool answered: published")
    terminal.type("/approvals\n")
    terminal.until("allow publish in ")
    grant = re.search(r"grant_\w+", terminal.seen)
    assert grant is not None
    terminal.type(f"/revoke {grant[0]}\n")
    terminal.until("is revoked")
    terminal.type("approval\n")
    terminal.until("3 Do not allow it", after="is revoked")
    terminal.type("/revoke\n")
    terminal.until("/revoke needs the id")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_a_question_outlives_the_chat(tmp_path: Path) -> None:
    store = str(tmp_path / "chat.db")
    first = Terminal("--store", store)
    first.type("approval\n")
    first.asked()
    first.type("/quit\n")
    assert first.end() == 0
    os.close(first.file)
    id = re.search(r"conversation (\S+);", first.seen)
    assert id is not None
    second = Terminal("--store", store, "--resume", id[1])
    second.asked()
    second.type("1\n")
    second.until("The tool answered: published")
    second.type("/quit\n")
    assert second.end() == 0
    os.close(second.file)


SCRIPTED = """
import sys
from tertulia.cli import main, talk
from tertulia.testing import ScriptedModel, Stream, call
talk.chosen_model = lambda name: ("scripted", ScriptedModel({script}))
sys.exit(main.main(sys.argv[1:]))
"""


def scripted(script: str) -> list[str]:
    return [sys.executable, "-c", SCRIPTED.format(script=script)]


def with_server(home: Path, *tools: FakeTool, monkeypatch: pytest.MonkeyPatch) -> FakeMcpServer:
    """This user has configured a server named fake."""
    server = FakeMcpServer(home / "fake", tools)
    (home / "fake").mkdir(parents=True, exist_ok=True)
    (home / "mcp.json").write_text(json.dumps({"mcpServers": {"fake": server.config}}))
    monkeypatch.setenv("TERTULIA_HOME", str(home))
    return server


def test_a_server_is_used_and_its_question_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = with_server(tmp_path / "home", FakeTool(name="ask", ask="who are you?"), monkeypatch=monkeypatch)
    arguments = ("chat", "--mcp", "fake", "--approvals", "allow")
    chat = Terminal(*arguments, command=scripted('[[call("ask")], "So it is."]'), folder=tmp_path)
    chat.until("> ")
    chat.type("go\n")
    chat.until("? the MCP server fake asks: who are you?")
    chat.until("/answer TEXT, or /decline")
    chat.type("/answer Ada\n")
    chat.until("So it is.")
    assert "Ada" in chat.seen.rpartition("ok: ")[2]
    chat.type("/quit\n")
    assert chat.end() == 0
    os.close(chat.file)
    assert len(server.of("call")) == 1


def test_servers_that_there_are_not_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERTULIA_HOME", str(tmp_path))
    assert "no MCP server is configured" in piped("x\n", "--mcp").stderr
    with_server(tmp_path, FakeTool(name="a"), monkeypatch=monkeypatch)
    assert "there is no MCP server other\n  fake" in piped("x\n", "--mcp", "other").stderr


def test_a_number_that_is_none_ends_nothing() -> None:
    done = piped(f"/fork {'9' * 5000}\n{'9' * 5000}\nhello\n")
    assert "/fork takes the number of a message" in done.stderr
    assert "You said: 'hello'" in done.stdout


def test_what_is_typed_ahead_answers_no_later_question(tmp_path: Path) -> None:
    writes = 'call("write", path="first", content=""), call("write", path="second", content="")'
    chat = Terminal("chat", "--tools", command=scripted(f'[[{writes}], "Done."]'), folder=tmp_path)
    chat.until("> ")
    chat.type("go\n")
    chat.asked()
    chat.type("1\n1\n/allow\n/deny\n")
    chat.until("that was typed before the question was asked")
    chat.asked(after="Do not allow it")
    chat.type("3\n")
    chat.until("Done.")
    chat.type("/quit\n")
    assert chat.end() == 0
    os.close(chat.file)
    assert [each.name for each in tmp_path.iterdir()] == ["first"]


EVIL = "ok\x1b[2K\r\x1b[1A? ls\x9b2J\x1b]0;x\x07\tend"


def test_nothing_that_is_said_moves_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(EVIL)
    calls = '[call("read", path="file"), call("\\x1b[2Jx")]'
    script = f'[{calls}, Stream(["a\\x1b", "[2J\\x9b", "1A", "\\nb"]), ValueError({EVIL!r})]'
    chat = Terminal("chat", "--tools", command=scripted(script), folder=tmp_path)
    chat.until("> ")
    chat.type("go\n")
    chat.until("a\ufffd[2J\ufffd1A\r\nb")
    chat.until("ok\ufffd[2K")
    chat.type("more\n")
    chat.until("? ls", after="1A\r\nb")
    chat.type("/transcript\n/stats\n/quit\n")
    chat.until("tokens in")
    assert chat.end() == 0
    os.close(chat.file)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)", chat.seen)


def test_an_answer_is_words_on_a_terminal_and_untouched_in_a_pipe(tmp_path: Path) -> None:
    command = [*scripted(f"[{EVIL!r}] * 2"), "run", "-p", "x"]
    done = subprocess.run(command, capture_output=True, timeout=30, check=True, cwd=tmp_path)
    assert done.stdout.decode() == EVIL + "\n"
    shown = Terminal(command=command, folder=tmp_path)
    shown.until("end")
    assert shown.end() == 0
    os.close(shown.file)
    assert "ok\ufffd[2K\ufffd[1A? ls\ufffd2J\ufffd]0;x\ufffd\tend" in shown.seen


def test_from_a_pipe_a_flag_lets_it_run() -> None:
    assert "--approvals allow" in piped("approval\n").stdout
    assert "published to nobody" in piped("approval\n", "--approvals", "allow").stdout
