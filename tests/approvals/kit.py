"""Sessions whose calls wait for an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tertulia import Session, Tool, tool
from tertulia.approvals import Rules
from tertulia.approvals.gate import Call, judge
from tertulia.approvals.grant import Grant, Grants
from tertulia.records.ids import ConversationId, TurnId
from tertulia.testing import EventRecorder, ScriptedModel, call


def verdict(command: str, rules: Rules, mode: Any = "ask", granted: tuple[tuple[str, ...], ...] = ()) -> str:
    """What becomes of a command, with answers remembered for these keys."""
    grants = Grants()
    for n, key in enumerate(granted):
        grants.add(Grant(id=f"g{n}", key=("shell", *key), root="/r", decision="allow", scope="session"))
    call = Call(
        tool=("shell",), root="/r", mode=mode, command=command, conversation=ConversationId("c"), turn=TurnId("t")
    )  # fmt: skip
    return judge(call, rules, grants, 0).decision


class Shell:
    """A tool that takes a command, and says what it was given."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.tool = Tool(name="shell", fn=self.run, ask=True, command="command")

    async def run(self, command: str) -> str:
        self.ran.append(command)
        return f"ran {command}"


def asking(ran: list[str]) -> Tool:
    @tool(ask=True)
    async def write(path: str) -> str:
        """Write something."""
        ran.append(path)
        return f"wrote {path}"

    return write


def writes(*paths: str) -> list[Any]:
    return [call("write", path=path, call_id=f"call-{path}") for path in paths]


@contextlib.asynccontextmanager
async def session(
    script: list[Any], tools: Any, **options: Any
) -> AsyncIterator[tuple[Session, EventRecorder]]:
    model = ScriptedModel(script, default="done")
    async with Session.open(model=model, tools=tools, **options) as made, EventRecorder(made) as seen:
        yield made, seen


async def asked(made: Session, seen: EventRecorder, count: int = 1) -> Any:
    """The approval that was asked for last, when that many were."""
    await seen.wait_for("approval_request", count)
    return made.approvals.pending()[-1]


async def results(conversation: Any) -> list[tuple[str, str]]:
    return [
        (each.status, each.text) for each in await conversation.transcript() if each.type == "tool_result"
    ]


async def decisions(conversation: Any) -> list[tuple[Any, ...]]:
    records = [each for each in await conversation.records() if each.type == "approval"]
    return [(each.decision, each.scope, each.by) for each in records if each.phase == "decided"]


def start(conversation: Any, text: str = "go") -> "asyncio.Task[Any]":
    return asyncio.ensure_future(conversation.prompt(text))
