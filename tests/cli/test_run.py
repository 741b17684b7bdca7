"""`tertulia run`: what goes where, how it ends, and an answer without a key or a network."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "tertulia", "run"]
KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY")


def run(*arguments: str, text: str = "", **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **settings,
    )


def demo(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return run("--model", "demo", *arguments, text=text)


def test_without_key_and_network_the_embedded_model_answers(tmp_path: Path) -> None:
    here = {name: value for name, value in os.environ.items() if name not in KEYS}
    done = run("-p", "What is the capital of France?", "--model", "local", env=here, cwd=tmp_path)
    assert done.returncode == 0
    assert "Paris" in done.stdout
    assert done.stderr == ""


def test_the_answer_is_all_that_stdout_gets() -> None:
    done = demo("-p", "parallel")
    assert done.returncode == 0
    assert done.stdout.startswith("The tools answered: ")
    assert "· now" in done.stderr
    assert "· roll {'dice': 2}" in done.stderr


def test_an_output_that_cannot_be_written_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "--model", "demo", "-p", "hello"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "tertulia: the output cannot be written: No space left on device\n"


def test_letters_that_the_terminal_has_not_are_written_out() -> None:
    here = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run("--model", "demo", "-p", "grüß dich", env=here)
    assert done.returncode == 0
    assert "gr\\xfc\\xdf dich" in done.stdout


def test_the_prompt_is_read_from_stdin() -> None:
    assert "You said: 'from\\na pipe'" in demo("-p", "-", text="from\na pipe\n").stdout


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_prompt_is_told(text: str) -> None:
    done = demo("-p", "-", text=text)
    assert done.returncode == 1
    assert "the prompt is empty" in done.stderr


def test_without_a_prompt_it_is_a_usage_error() -> None:
    assert demo().returncode == 2
    assert demo("-p", "x", "--json", "--stream-json").returncode == 2


def test_json_is_the_answer_and_what_it_cost() -> None:
    done = demo("-p", "chart", "--json")
    shown = json.loads(done.stdout)
    assert shown["text"] == "The tool answered: a chart of three fixed numbers"
    assert (shown["tool_calls"], shown["stop_reason"]) == (1, "end")
    assert shown["usage"]["requests"] == 2


def test_a_failure_is_one_error_in_each_form() -> None:
    plain, as_json, lines = (demo("-p", "error", *more) for more in ((), ("--json",), ("--stream-json",)))
    assert [done.returncode for done in (plain, as_json, lines)] == [1, 1, 1]
    assert (plain.stdout, plain.stderr) == ("", "tertulia: you asked the demo model for an error\n")
    assert json.loads(as_json.stdout)["error"]["code"] == "refused"
    events = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [event["type"] for event in events][-2:] == ["error", "done"]


def test_stream_json_is_the_events_of_the_turn() -> None:
    events = [json.loads(line) for line in demo("-p", "tool now", "--stream-json").stdout.splitlines()]
    types = [event["type"] for event in events]
    assert types.index("turn_start") < types.index("tool_call") < types.index("tool_result")
    assert types[-1] == "done"
    last = [event for event in events if event["type"] == "message"][-1]
    texts = [e["text"] for e in events if e["type"] == "text" and e["message_id"] == last["message_id"]]
    assert "".join(texts) == last["text"]


def test_a_stored_conversation_goes_on(tmp_path: Path) -> None:
    store = str(tmp_path / "kept.db")
    first = demo("-p", "one", "--store", store, "--json")
    id = json.loads(first.stdout)["conversation_id"]
    assert first.stderr == f"conversation {id}\n"
    again = json.loads(demo("-p", "two", "--store", store, "--resume", id, "--json").stdout)
    assert (again["conversation_id"], again["usage"]["input_tokens"]) == (id, 2 + len(first_words(first)))
    assert "--resume needs --store" in demo("-p", "x", "--resume", id).stderr


def first_words(done: subprocess.CompletedProcess[str]) -> list[str]:
    return str(json.loads(done.stdout)["text"]).split()


def test_a_tool_that_would_ask_is_denied() -> None:
    assert "publish is not allowed here" in demo("-p", "approval").stdout


def test_ctrl_c_ends_with_130() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--model", "demo", "-p", "wait", "--stream-json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "I wait" in line:
            break
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (130, "interrupted\n")
