"""An MCP server for tests, as a real process: `FakeMcpServer(folder, tools).config` goes into `mcp_servers=`.

What it is told to do it does (`mcp_server` of this package), and it writes down what it saw, so that a test can measure
at the server.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec


class FakeTool(msgspec.Struct, kw_only=True):
    """A tool, and what it does when it is called, in the order of the fields.

    `spawn`: starts a process that sleeps for so many seconds. `stderr`: writes that, `lines` times. `progress`: tells
    of so many steps. `ask`: elicits an answer with this message. `sample`: asks for a completion of this prompt.
    `roots`: asks for the roots. `appear`, `vanish`: lists another tool from now on, or one less, and says so. `wait`:
    until there is a file of that name. `sleep`: seconds. `die`: ends the process. `size`: answers with so many
    characters, else `text`.
    """

    name: str
    description: str = "A tool of a test."
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    output_schema: dict[str, Any] | None = None
    read_only: bool = False
    spawn: str = ""
    stderr: str = ""
    lines: int = 1
    progress: int = 0
    ask: str = ""
    sample: str = ""
    roots: bool = False
    appear: dict[str, Any] | None = None
    vanish: str = ""
    wait: str = ""
    sleep: float = 0.0
    die: bool = False
    size: int = 0
    error: bool = False
    image: bool = False
    text: str = "ok"


class Script(msgspec.Struct, kw_only=True):
    name: str = "fake"
    tools: list[FakeTool] = []
    journal: str = ""
    legacy: bool = False
    slow: str = ""
    endless: bool = False
    http: str = ""
    port: int = 0


class FakeMcpServer:
    """`folder` is where the server writes its journal. `slow`: it starts when a file of that name is in the folder.

    `legacy`: it speaks the protocol of 2025 only. `endless`: its list of tools has no end. `http`: "http" or "sse"
    with a `port`; the process is then the test's to start (`command`).
    """

    def __init__(
        self, folder: Path, tools: Sequence[FakeTool | Mapping[str, Any]] = (), **script: Any
    ) -> None:
        self.folder = folder
        self.name = str(script.get("name", "fake"))
        self.journal = folder / f"{self.name}.journal"
        slow = script.pop("slow", "")
        self._script = Script(
            tools=[msgspec.convert(msgspec.to_builtins(each), FakeTool) for each in tools],
            journal=str(self.journal),
            slow=str(folder / slow) if slow else "",
            **script,
        )

    @property
    def command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "tertulia.testing.mcp_server",
            msgspec.json.encode(self._script).decode(),
        ]

    @property
    def config(self) -> dict[str, Any]:
        """What `mcp_servers` takes under a name."""
        if self._script.http:
            path = "sse" if self._script.http == "sse" else "mcp"
            return {"type": self._script.http, "url": f"http://127.0.0.1:{self._script.port}/{path}"}
        return {"command": self.command[0], "args": self.command[1:]}

    def events(self) -> list[dict[str, Any]]:
        """What the server saw: {"at": seconds, "pid": …, "what": "start" | "call" | "end" | "cancelled" | …}."""
        if not self.journal.exists():
            return []
        return [msgspec.json.decode(line) for line in self.journal.read_bytes().splitlines()]

    def of(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["what"] == what]

    def most_at_once(self) -> int:
        """How many calls it worked on at the same time, at most."""
        running, most = 0, 0
        for event in self.events():
            running += {"call": 1, "end": -1, "cancelled": -1}.get(event["what"], 0)
            most = max(most, running)
        return most
