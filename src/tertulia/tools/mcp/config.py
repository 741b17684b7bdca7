"""Which servers there are: the usual `mcpServers` form, checked."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from ...records.errors import ConfigError
from .content import clean

TIMEOUT = 60.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*")
USER = re.compile(r"(?<=://)[^/?#]*@")


class OAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who we are to a server that wants signing in, where it does not register us by itself."""

    client_id: str = ""
    client_secret: str = ""
    client_name: str = "tertulia"
    scope: str = ""
    callback_port: int = 0  # 0: any that is free

    def __repr__(self) -> str:  # the secret stays out of logs and tracebacks
        return f"OAuth(client_id={self.client_id!r}, scope={self.scope!r})"


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server. Equal ones share a connection; so the values are such that they can be compared."""

    name: str
    type: Literal["stdio", "http", "sse"]
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    url: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    oauth: OAuth = OAuth()
    tools: tuple[str, ...] | None = None
    timeout: float = TIMEOUT
    trust: bool = False
    sampling: bool = False

    def __repr__(self) -> str:  # headers, environment and addresses hold secrets
        return f"ServerConfig(name={self.name!r}, type={self.type!r})"

    @property
    def where(self) -> str:
        """What is started or reached, for people; never with secrets in it."""
        words = (self.command, *self.args) if self.type == "stdio" else (self.url.partition("?")[0],)
        place = " ".join(USER.sub("", word) for word in words)
        return clean(" ".join(place.split()), 200)

    @property
    def signs_in(self) -> bool:
        """Whether we may be asked to sign in there: not where the configuration says already who we are."""
        named = any(name.lower() == "authorization" for name, _ in self.headers)
        return self.type != "stdio" and not named and USER.search(self.url) is None


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    type: Literal["stdio", "http", "streamable-http", "streamable_http", "sse"] | None = None
    headers: dict[str, str] = {}
    oauth: OAuth | None = None
    tools: list[str] | None = None
    timeout: float = TIMEOUT
    trust: bool = False
    sampling: bool = False
    disabled: bool = False


class McpLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one conversation, and all of a Session together, may ask of servers. What is beyond it waits."""

    concurrent: int = 8  # calls of one conversation at a time
    per_minute: int | None = None  # calls of one conversation
    ceiling: int = 32  # calls of the whole Session at a time


def parse_servers(given: object) -> tuple[ServerConfig, ...]:
    """`{name: {command, args, …} | {url, type, …}}`, ordered by name. Servers that are disabled are left out."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"mcp_servers is a {type(given).__name__}", hint='give {"name": {"command": …}}')
    found = [_server(name, value) for name, value in given.items()]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def parse_limits(given: object) -> McpLimits:
    try:
        limits = given if isinstance(given, McpLimits) else msgspec.convert(given, McpLimits)
    except msgspec.ValidationError as error:
        raise ConfigError(f"mcp_limits: {error}", hint="concurrent, per_minute, ceiling") from error
    if min(limits.concurrent, limits.ceiling, limits.per_minute or 1) < 1:
        raise ConfigError("mcp_limits are numbers from 1 on")
    return limits


def parse_tools(given: object) -> dict[str, frozenset[str]]:
    """`{server: [tool, …]}`: what a conversation may use. A server that is not named may not be used at all."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"mcp_tools is a {type(given).__name__}", hint='give {"server": ["tool", …]}')
    return {str(server): _names(server, tools) for server, tools in given.items()}


def read_servers(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The servers of a file in the usual form. `${NAME}` and `${NAME:-else}` stand for the environment's values."""
    try:
        held = msgspec.json.decode(text or "{}")
        servers = held.get("mcpServers", {})
        if not isinstance(servers, dict):
            raise ConfigError("mcpServers is no object", hint='{"mcpServers": {"name": {…}}}')
        return {name: _expanded(value, environment) for name, value in servers.items()}
    except (msgspec.DecodeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"this is no MCP configuration: {error}", hint='{"mcpServers": {…}}') from error


def _expanded(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return VARIABLE.sub(lambda found: environment.get(found[1], found[2] or ""), value)
    if isinstance(value, list):
        return [_expanded(each, environment) for each in value]
    if isinstance(value, dict):
        return {key: _expanded(each, environment) for key, each in value.items()}
    return value


def _names(server: object, tools: object) -> frozenset[str]:
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise ConfigError(f"mcp_tools of {server} is {tools!r}", hint="a list of tool names")
    return frozenset(map(str, tools))


def _server(name: object, value: object) -> ServerConfig | None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name an MCP server", hint="letters, digits, _ . and -, up to 64")
    try:
        given = msgspec.convert(value, _Given)
    except msgspec.ValidationError as error:
        raise ConfigError(f"MCP server {name}: {error}") from error
    if given.disabled:
        return None
    if (given.command is None) == (given.url is None) or not (given.command or given.url):
        raise ConfigError(f"MCP server {name} needs a command or a url, and not both")
    if given.timeout <= 0:
        raise ConfigError(f"MCP server {name}: timeout is {given.timeout:g}; it takes seconds above 0")
    if "\0" in f"{given.command}{given.cwd}{''.join(given.args)}{''.join(given.env.values())}":
        raise ConfigError(f"MCP server {name}: a command cannot hold a zero byte")
    made = ServerConfig(
        name=name,
        type=_kind(name, given),
        command=given.command or "",
        args=tuple(given.args),
        env=tuple(sorted(given.env.items())),
        cwd=given.cwd,
        url=given.url or "",
        headers=tuple(sorted(given.headers.items())),
        oauth=given.oauth or OAuth(),
        tools=None if given.tools is None else tuple(sorted(given.tools)),
        timeout=given.timeout,
        trust=given.trust,
        sampling=given.sampling,
    )
    if given.oauth is not None:
        _check_oauth(made)
    return made


def _check_oauth(server: ServerConfig) -> None:
    given, what = server.oauth, f"MCP server {server.name}: oauth"
    if server.type == "stdio":
        raise ConfigError(f"{what} needs a url", hint="a program that is started here needs no signing in")
    if not server.signs_in:
        raise ConfigError(
            f"{what} stands beside other credentials", hint="drop the Authorization header, or oauth"
        )
    if given.client_secret and not given.client_id:
        raise ConfigError(f"{what} has a client_secret without a client_id", hint="give both")
    if not 0 <= given.callback_port <= 65535:
        raise ConfigError(f"{what}.callback_port is {given.callback_port}", hint="1 to 65535, or 0 for any")
    if given.scope and not SCOPE.fullmatch(given.scope):
        raise ConfigError(f"{what}.scope is {given.scope!r}", hint="names with one space between them")


def _kind(name: str, given: _Given) -> Literal["stdio", "http", "sse"]:
    if given.url is None:
        if given.type not in (None, "stdio"):
            raise ConfigError(f"MCP server {name}: type {given.type} needs a url")
        return "stdio"
    if given.type == "stdio" or not given.url.startswith(("http://", "https://")):
        raise ConfigError(
            f"MCP server {name}: {given.url!r} is not reached by stdio", hint="http:// or https://"
        )
    return "sse" if given.type == "sse" else "http"
