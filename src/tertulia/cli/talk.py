"""What the commands that talk to a model share: their arguments, the choice of the model, the Session."""

import argparse
from typing import Any

from ..approvals.policy import MODES, Mode, Policy
from ..models import choice
from ..models.base import Model
from ..records.errors import InvalidInput
from ..sandbox.policy import Policy as SandboxPolicy
from ..sandbox.sandbox import Choice
from ..session.conversation import Conversation
from ..session.session import Opening, Session
from ..tools.base import Tool, as_tool
from ..tools.demo import DEMO_TOOLS
from . import render

RETRIES = 4
"""A person at a terminal would try again too; a program decides that for itself."""

NOBODY = "nobody is there to be asked, and only --approvals allow lets it run"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="the model (default: the first of `tertulia models`)")
    parser.add_argument("--store", metavar="PATH", help="keep the conversation: a SQLite file, or jsonl:DIR")
    parser.add_argument("--resume", metavar="ID", help="go on with a stored conversation (with --store)")
    parser.add_argument("--system", metavar="TEXT", default="", help="the system prompt")
    parser.add_argument(
        "--tools", action="store_true", help="the built-in tools, in this folder: files, search, shell"
    )
    parser.add_argument(
        "--mcp", metavar="NAMES", nargs="?", const="",
        help="the MCP servers of `tertulia mcp list`, or those of these names, with commas between them",
    )  # fmt: skip
    parser.add_argument(
        "--sandbox", choices=["on", "off"], default="on", help="off runs commands unconfined (default: on)"
    )
    parser.add_argument(
        "--network", metavar="HOSTS", default="off",
        help="what commands reach in the sandbox: off (default), on, or hosts with commas between them",
    )  # fmt: skip
    parser.add_argument(
        "--approvals",
        choices=MODES,
        help="what becomes of tools that ask (default: ask, or deny where nobody can be asked)",
    )


def check(options: argparse.Namespace) -> None:
    if options.resume and not options.store:
        raise InvalidInput("--resume needs --store", hint="say where the conversation is kept")


def approvals(options: argparse.Namespace, *, somebody: bool) -> Policy:
    """What becomes of tools that ask; where nobody is there to be asked, they are denied."""
    mode: Mode = options.approvals or "ask"
    if mode == "ask" and not somebody:
        return Policy(mode="deny", message=NOBODY)
    return Policy(mode=mode)


def chosen_model(name: str | None) -> tuple[str, Model | str]:
    """The model of this name. One that nobody named is told on stderr, and how it came to be."""
    if name not in (None, "auto"):
        return name, name
    chosen = choice.choose()
    model = choice.make(chosen)
    if chosen.note:
        render.note(chosen.note)
    render.note(f"model {chosen.name} ({chosen.why})")
    return chosen.name, model


def open_session(options: argparse.Namespace, **settings: Any) -> Opening:
    """As the arguments say."""
    name, model = chosen_model(options.model)
    return Session.open(
        id=options.resume,
        store=options.store,
        model=model,
        tools=_tools(name, options.tools),
        sandbox=sandbox(options),
        system_prompt=options.system,
        max_retries=RETRIES,
        **_servers(options),
        **settings,
    )


def sandbox(options: argparse.Namespace) -> Choice:
    network = options.network.strip()
    if network.lower() == "off":
        return "off" if options.sandbox == "off" else "on"
    if options.sandbox == "off":
        raise InvalidInput("--network is about the sandbox, which is off", hint="leave out one of the two")
    hosts = tuple(host.strip() for host in network.split(","))
    return SandboxPolicy(network="on" if network.lower() == "on" else hosts)


def _servers(options: argparse.Namespace) -> dict[str, Any]:
    if options.mcp is None:
        return {}
    from . import mcp_places as mcp

    found = mcp.configured()
    names = [name.strip() for name in options.mcp.split(",") if name.strip()] or list(found)
    unknown = [name for name in names if name not in found]
    if unknown or not names:
        what = f"there is no MCP server {', '.join(unknown)}" if unknown else "no MCP server is configured"
        raise InvalidInput(what, hint=", ".join(found) or "`tertulia mcp add` configures one")
    return {
        "mcp_servers": {name: found[name] for name in names},
        "mcp_log_folder": mcp.log_folder(),
        "mcp_auth_folder": mcp.auth_folder(),
    }


def _tools(model: str, built_in: bool) -> tuple[Tool, ...]:
    demo = tuple(map(as_tool, DEMO_TOOLS)) if model == "demo" else ()
    if not built_in:
        return demo
    from ..tools.builtin import default_tools

    names = {tool.name for tool in demo}  # what the demo model calls is called as it knows it
    return (*(tool for tool in default_tools() if tool.name not in names), *demo)


def conversation(session: Session, options: argparse.Namespace) -> Conversation:
    """The one that was asked for, else the root."""
    known = {conversation.id for conversation in session.conversations}
    return session.conversation(options.resume) if options.resume in known else session.root
