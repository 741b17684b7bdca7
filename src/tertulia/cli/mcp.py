"""`tertulia mcp`: the MCP servers of this user, and this program as one."""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec

from ..records.errors import ConfigError, InvalidInput, McpError, NotFound
from ..session.session import Session
from ..tools.mcp.config import NAME, ServerConfig, parse_servers, read_servers
from . import render
from .mcp_login import login, logout, signed_in
from .mcp_places import auth_folder, config_file, configured, log_folder, text_of

PROJECT = ".mcp.json"
WAIT = 60.0


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="show the servers that are configured")
    adding = actions.add_parser("add", help="configure a server")
    adding.add_argument(
        "--type", choices=["stdio", "http", "sse"], help="how it is reached (default: seen by TARGET)"
    )
    adding.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="for its environment"
    )
    adding.add_argument(
        "--header", metavar="NAME=VALUE", action="append", default=[], help="for its requests"
    )
    adding.add_argument("--timeout", metavar="SECONDS", type=float, help="of a call (default: 60)")
    adding.add_argument("--replace", action="store_true", help="also when there is one of this name")
    testing = actions.add_parser("test", help="start a server and say what it offers")
    logs = actions.add_parser("logs", help="show what a server last wrote to stderr")
    entering = actions.add_parser("login", help="sign in to a server that wants it")
    entering.add_argument("--no-browser", action="store_true", help="only print the page to open")
    leaving = actions.add_parser("logout", help="forget who this user is at a server")
    for action in (listing, adding, testing, logs, entering, leaving):
        action.add_argument("--json", action="store_true", help="print the result as JSON")
    for action in (adding, testing, logs, entering, leaving):
        action.add_argument("name", metavar="NAME", help="the server's name")
    adding.add_argument("target", metavar="TARGET", help="its URL, or the program that it is")
    adding.add_argument("args", metavar="ARG", nargs=argparse.REMAINDER, help="the program's arguments")
    serving = actions.add_parser("serve", help="be an MCP server, on stdin and stdout")
    serving.add_argument("--model", metavar="NAME", help="the model that answers")
    serving.add_argument(
        "--store", metavar="PATH", help="keep the conversations: a SQLite file, or jsonl:DIR"
    )


def run(options: argparse.Namespace) -> int:
    if options.action == "list":
        return _list(options)
    if options.action == "add":
        return _add(options)
    if options.action == "test":
        return asyncio.run(_test(options))
    if options.action == "logs":
        return _logs(options)
    if options.action == "login":
        return asyncio.run(login(options, *_server(options.name), auth_folder()))
    if options.action == "logout":
        return _logout(options)
    from .mcp_serve import serve

    return asyncio.run(serve(options))


def _server(name: str) -> tuple[dict[str, Any], ServerConfig]:
    servers = configured()
    if name not in servers:
        hint = ", ".join(sorted(servers)) or "`tertulia mcp add` makes one"
        raise NotFound(f"there is no MCP server {name!r} in {config_file()}", hint=hint)
    found = parse_servers({name: servers[name]})
    if not found:
        raise ConfigError(f"the MCP server {name} is disabled in {config_file()}")
    return {name: servers[name]}, found[0]


# ── the actions ──


def _list(options: argparse.Namespace) -> int:
    rows = [_row(each, "user", True) for each in parse_servers(configured())]
    project = Path(PROJECT)
    if project.is_file():
        # Shown, not used: a cloned folder does not get to start programs.
        held = read_servers(text_of(project), {})
        rows += [_row(each, str(project), False) for each in parse_servers(held)]
    if options.json:
        render.data({"servers": rows, "file": str(config_file())})
        return 0
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        more = "" if row["used"] else "  (not used)"
        more += "  (signed in)" if row.get("signed_in") else ""
        render.show(f"{row['name']:<{width}}  {row['type']:<5}  {row['where']}{more}")
    if not rows:
        render.note(f"no servers in {config_file()}; `tertulia mcp add` configures one")
    if any(not row["used"] for row in rows):
        render.note(
            f"what {PROJECT} of this folder names is not used; add what you trust by `tertulia mcp add`"
        )
    return 0


def _row(server: ServerConfig, origin: str, used: bool) -> dict[str, Any]:
    row = {"name": server.name, "type": server.type, "where": server.where, "origin": origin, "used": used}
    return row | {"signed_in": signed_in(server, auth_folder())} if used and server.type != "stdio" else row


def _add(options: argparse.Namespace) -> int:
    remote = options.type in ("http", "sse") or options.target.startswith(("http://", "https://"))
    made: dict[str, Any] = (
        {"url": options.target} if remote else {"command": options.target, "args": options.args}
    )
    if remote and options.args:
        raise InvalidInput(f"{options.args[0]!r} follows a URL", hint="options stand before NAME")
    if options.type:
        made["type"] = options.type
    for name, given in (("env", options.env), ("headers", options.header)):
        if given:
            made[name] = dict(_pair(each) for each in given)
    if options.timeout is not None:
        made["timeout"] = options.timeout
    parse_servers({options.name: made})
    _write(options.name, made, options.replace)
    if options.json:
        render.data({"added": options.name, "file": str(config_file())})
    else:
        print(f"{options.name} is in {config_file()}")
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise InvalidInput(f"{text!r} is no NAME=VALUE")
    return name, value


def _write(name: str, made: dict[str, Any], replace: bool) -> None:
    """The rest of the file stays as it is; it may hold secrets, so only its owner reads it."""
    file = config_file()
    text = text_of(file) if file.exists() else ""
    read_servers(text, {})
    held = msgspec.json.decode(text or "{}")
    servers = held.setdefault("mcpServers", {})
    if name in servers and not replace:
        raise InvalidInput(f"there is an MCP server {name!r} already", hint="--replace takes its place")
    servers[name] = made
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(held)) + b"\n")
    fresh.replace(file)


async def _test(options: argparse.Namespace) -> int:
    servers, config = _server(options.name)
    async with Session.open(
        mcp_servers=servers, mcp_log_folder=log_folder(), mcp_auth_folder=auth_folder()
    ) as session:
        found = await session.mcp.started(options.name, WAIT)
        logs = session.mcp.logs(options.name)
        if found.state != "ready":
            for line in logs:
                render.note(line)
            raise McpError(f"{options.name} does not run: {found.error or found.state}", hint=config.where)
        tools = [
            {"name": each.name, "description": each.short_description} for each in session.list_all_tools()
        ]
        resources = [msgspec.to_builtins(each) for each in await session.mcp.list_resources(options.name)]
        prompts = [msgspec.to_builtins(each) for each in await session.mcp.list_prompts(options.name)]
    if options.json:
        render.data({"name": options.name, "tools": tools, "resources": resources, "prompts": prompts})
        return 0
    for kind, rows in (("tool", tools), ("resource", resources), ("prompt", prompts)):
        for row in rows:
            render.show(f"{kind:<9} {row.get('uri') or row['name']}  {row['description']}".rstrip())
    return 0


def _logout(options: argparse.Namespace) -> int:
    return logout(options, auth_folder(), known=options.name in configured())


def _logs(options: argparse.Namespace) -> int:
    file = log_folder() / f"{options.name}.log"
    if not NAME.fullmatch(options.name) or not file.exists():
        _server(options.name)
    parts = [
        each.read_text(errors="replace") for each in (file.with_suffix(".old.log"), file) if each.exists()
    ]
    if options.json:
        render.data({"name": options.name, "lines": "".join(parts).splitlines()})
    else:
        render.show("".join(parts).removesuffix("\n"))
    return 0
