"""What `Session.open(approvals=)` takes, in one value."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from ..records.errors import InvalidInput
from .question import Approval
from .rules import Rules

Mode = Literal["ask", "allow", "deny"]
MODES: tuple[Mode, ...] = ("ask", "allow", "deny")
Handler = Callable[[Approval], Awaitable[Any]]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`mode` is what happens to calls that need an approval and that no grant and no rule decides; a function is asked.

    `tools` sets another mode for the tools that it names, also for those that need none; a tool of an MCP server is
    `server/tool`, since a server can give its tools any name. `message` is added to what the model reads when the mode
    denies.
    """

    mode: Mode | Handler = "ask"
    rules: Rules = Rules()
    tools: Mapping[str, Mode] = {}
    message: str = ""

    @property
    def handler(self) -> Handler | None:
        return self.mode if callable(self.mode) else None

    def mode_of(self, tool: str, server: str | None, asks: bool) -> Mode:
        found = self.tools.get(tool if server is None else f"{server}/{tool}")
        if found is not None:
            return found
        if not asks:
            return "allow"
        return "ask" if callable(self.mode) else self.mode


def make_policy(given: object) -> Policy:
    """The Policy that a mode, a function or a Policy stands for."""
    policy = given if isinstance(given, Policy) else Policy(mode=given)  # type: ignore[arg-type]
    mode: object = policy.mode
    if not callable(mode) and mode not in MODES:
        raise InvalidInput(
            f"approvals is {given!r}", hint="give ask, allow, deny, an async function or a Policy"
        )
    rules, tools = _untyped(policy.rules), _untyped(policy.tools)
    if not isinstance(rules, Rules):
        raise InvalidInput(f"rules is {rules!r}", hint="give Rules(allow=[…], ask=[…], deny=[…])")
    if not isinstance(tools, Mapping) or any(each not in MODES for each in tools.values()):
        raise InvalidInput(f"tools is {tools!r}", hint="give {'name': 'ask', …}")
    return policy


def _untyped(value: object) -> object:
    """What a caller gave may be of any type, whatever the annotation says."""
    return value
