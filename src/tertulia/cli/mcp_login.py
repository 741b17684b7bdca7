"""`tertulia mcp login` and `tertulia mcp logout`: who this user is at servers that want signing in."""

import argparse
import asyncio
import webbrowser
from pathlib import Path
from typing import Any

from ..records.errors import InvalidInput, McpError, NotFound, TertuliaError
from ..session.session import Session
from ..tools.mcp.config import ServerConfig
from ..tools.mcp.oauth_files import Vault
from . import render

WAIT = 420.0  # seconds: what a person has, and the start of the server


async def login(
    options: argparse.Namespace, servers: dict[str, Any], config: ServerConfig, folder: Path
) -> int:
    """The server itself asks for it, when it is started: so what works here works in a Session."""
    name, asked = config.name, False
    if config.type == "stdio":
        raise InvalidInput(f"{name} is a program of this machine: there is nothing to sign in to")
    if not config.signs_in:
        raise InvalidInput(
            f"{name} is given its credentials by the configuration", hint="its headers, or its url"
        )
    vault = Vault(folder)
    vault.prepare()

    async def show(url: str, server: str) -> None:
        nonlocal asked
        asked = True
        render.note(f"sign in to {server} on this page:\n{url}")
        if not options.no_browser:
            await asyncio.to_thread(webbrowser.open, url)

    async with Session.open(mcp_servers=servers, mcp_auth_folder=folder, mcp_login=show) as session:
        found = await session.mcp.started(name, WAIT)
    if found.state != "ready":
        raise McpError(f"{name} does not run: {found.error or found.state}", hint=config.where)
    signed_in = vault.signed_in(config)
    if asked and not signed_in:
        raise McpError(f"the sign-in to {name} could not be kept", hint=str(folder))
    if options.json:
        render.data({"name": name, "signed_in": signed_in, "asked": asked})
    elif asked:
        print(f"signed in to {name}")
    elif signed_in:
        print(f"{name} is signed in to already; `tertulia mcp logout {name}` ends that")
    else:
        print(f"{name} does not want signing in")
    return 0


def logout(options: argparse.Namespace, folder: Path, *, known: bool) -> int:
    """Also of servers that are not configured any more."""
    dropped = Vault(folder).forget(options.name)
    if not dropped and not known:
        raise NotFound(f"there is no MCP server {options.name!r}", hint="`tertulia mcp list` shows them")
    if options.json:
        render.data({"name": options.name, "signed_out": bool(dropped)})
    elif dropped:
        print(f"signed out of {options.name}")
    else:
        print(f"nothing is kept of {options.name}")
    return 0


def signed_in(config: ServerConfig, folder: Path) -> bool:
    try:
        return config.type != "stdio" and Vault(folder).signed_in(config)
    except TertuliaError as error:  # the list of all servers does not end for one
        render.note(f"tertulia: {error}")
        return False
