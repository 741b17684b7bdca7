"""`tertulia mcp`: servers are listed, added, tested, their words shown; and `tertulia mcp serve` is one itself."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tertulia.cli.main import main
from tertulia.testing import FakeMcpServer, FakeTool, call
from tests.mcp.kit import ready, results, talk

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERTULIA_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "home"


def test_what_is_added_is_listed_and_only_its_owner_reads_it(home: Path, capsys: Capture) -> None:
    assert main(["mcp", "list"]) == 0
    assert "no servers in" in capsys.readouterr().err
    assert main(["mcp", "add", "--env", "TOKEN=a=b", "--timeout", "5", "one", "prog", "-v", "--flag"]) == 0
    assert (
        main(["mcp", "add", "--type", "sse", "--header", "X=1", "two", "https://example.org/sse?key=secret"])
        == 0
    )
    held = json.loads((home / "mcp.json").read_text())
    assert held["mcpServers"] == {
        "one": {"command": "prog", "args": ["-v", "--flag"], "env": {"TOKEN": "a=b"}, "timeout": 5.0},
        "two": {"url": "https://example.org/sse?key=secret", "type": "sse", "headers": {"X": "1"}},
    }
    assert (home / "mcp.json").stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert main(["mcp", "list"]) == 0
    shown = capsys.readouterr().out
    assert shown == "one  stdio  prog -v --flag\ntwo  sse    https://example.org/sse\n"


def test_adding_changes_nothing_else(home: Path, capsys: Capture) -> None:
    home.mkdir()
    (home / "mcp.json").write_text('{"other": 1, "mcpServers": {"a": {"command": "${PROG:-x}"}}}')
    assert main(["mcp", "add", "a", "y"]) == 1
    assert "already" in capsys.readouterr().err
    assert main(["mcp", "add", "--json", "b", "y"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == "b"
    assert main(["mcp", "add", "--replace", "b", "z"]) == 0
    held = json.loads((home / "mcp.json").read_text())
    assert (held["other"], held["mcpServers"]["a"]) == (1, {"command": "${PROG:-x}"})
    assert held["mcpServers"]["b"]["command"] == "z"


@pytest.mark.parametrize(
    "typed",
    [
        ["add", "a b", "x"], ["add", "--env", "novalue", "a", "x"], ["add", "a", "http://x", "arg"],
        ["add", "--type", "http", "a", "x"], ["add", "--timeout", "0", "a", "x"], ["test", "none"], ["logs", "none"],
        ["logs", "../../etc/x"],
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(typed: list[str], home: Path, capsys: Capture) -> None:
    assert main(["mcp", *typed]) == 1
    assert capsys.readouterr().err.startswith("tertulia: ")
    assert not (home / "mcp.json").exists()


def test_a_project_file_is_shown_and_not_used(capsys: Capture) -> None:
    Path(".mcp.json").write_text('{"mcpServers": {"evil": {"command": "rm"}}}')
    assert main(["mcp", "list", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["servers"]
    assert (row["name"], row["origin"], row["used"]) == ("evil", ".mcp.json", False)
    assert main(["mcp", "test", "evil"]) == 1
    assert main(["mcp", "list"]) == 0
    assert "(not used)" in capsys.readouterr().out


ODD = "\x1b[2K\r\x1b[1A\x9b2J\u202eok"


def test_what_a_project_file_names_is_shown_as_words_and_without_secrets(capsys: Capture) -> None:
    servers = {
        "a": {"command": "prog" + ODD, "args": ["https://user:s3cret@example.org/x"]},
        "b": {"url": f"https://user:s3cret@example.org/{ODD}?key=s3cret"},
    }
    Path(".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    for line in (["mcp", "list"], ["mcp", "list", "--json"]):
        assert main(line) == 0
        shown = capsys.readouterr().out
        assert "s3cret" not in shown
        assert "https://example.org/" in shown
        assert not set(shown) & set("\x1b\r\x9b\u202e")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe{",
        b"[" * 100_000,
        b'{"mcpServers": {"a": ' + b'{"a": ' * 900 + b"1" + b"}" * 902,
        b"[]",
        b"{",
        b"1",
    ],
    ids=["bytes", "deep", "rather deep", "a list", "half", "a number"],
)
def test_a_file_that_makes_no_sense_is_told(data: bytes, home: Path, capsys: Capture) -> None:
    for file in (Path(".mcp.json"), home / "mcp.json"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        assert main(["mcp", "list"]) == 1
        assert re.match(
            "tertulia: (this is no MCP configuration|.*mcp.json cannot be read)", capsys.readouterr().err
        )
        if file.parent == home:
            assert main(["mcp", "add", "x", "y"]) == 1
            assert file.read_bytes() == data
        file.unlink()


def add(name: str, config: dict[str, Any]) -> None:
    assert main(["mcp", "add", name, config["command"], *config["args"]]) == 0


def test_a_server_is_tested_and_its_words_are_kept(tmp_path: Path, capsys: Capture) -> None:
    add("good", FakeMcpServer(tmp_path, [FakeTool(name="echo", description="Say it again.\nTwice.")]).config)
    broken = "import sys; print('no licence', file=sys.stderr); sys.exit(1)"
    add("broken", {"command": sys.executable, "args": ["-c", broken]})
    capsys.readouterr()
    assert main(["mcp", "test", "good"]) == 0
    assert "tool      echo  Say it again.\n" in capsys.readouterr().out
    assert main(["mcp", "test", "good", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tools"][0]["name"], found["resources"][0]["uri"]) == ("echo", "test://one")
    assert main(["mcp", "test", "broken"]) == 1
    assert "no licence" in capsys.readouterr().err
    assert main(["mcp", "logs", "broken"]) == 0
    assert "no licence" in capsys.readouterr().out
    assert main(["mcp", "logs", "broken", "--json"]) == 0
    assert "no licence" in json.loads(capsys.readouterr().out)["lines"][0]


async def test_we_are_a_server_too(tmp_path: Path) -> None:
    """Another Session uses ours: prompts it, goes on with what it began, forks it, reads it."""
    store = str(tmp_path / "s.db")
    ours = {
        "command": sys.executable,
        "args": ["-m", "tertulia", "mcp", "serve", "--model", "demo", "--store", store],
    }
    ids: list[str] = []

    def again(name: str, **args: Any) -> Any:
        def answer(request: Any) -> Any:
            if not ids:
                ids.append(json.loads(request.messages[-1].results[0].text)["conversation_id"])
            return [call(name, conversation_id=ids[0], **args)]

        return answer

    script = [
        [call("prompt", text="hello")],
        again("prompt", text="and again"),
        again("fork", from_user_entry_index=2),
        again("read_transcript"),
        [call("read_transcript", conversation_id="conv_unknown")],
        "done",
    ]
    async with talk({"ours": ours}, *script) as (session, _, _):
        await ready(session)
        assert session.active_tool_names() == ("fork", "prompt", "read_transcript")
        await session.prompt("go")
        first, second, fork, transcript, unknown = await results(session)
        assert (first[1], json.loads(second[2])["conversation_id"]) == ("ok", ids[0])
        assert json.loads(fork[2])["conversation_id"] != ids[0]
        assert "and again" in transcript[2]
        assert (unknown[1], "no conversation" in unknown[2]) == ("error", True)
