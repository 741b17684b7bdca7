"""An MCP server that wants signing in, and the authorization server it belongs to: real HTTP on loopback.

`async with FakeOAuthServer() as fake:`, `fake.config` goes into `mcp_servers=` and `fake.person` into `mcp_login=`: it
opens the page and follows it back to whoever asked. What both servers saw is in `requests`.
"""

import asyncio
import base64
import hashlib
import itertools
import json
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

SCOPES = ["read", "write"]


class SeenRequest:
    """One request. `form` is its body or its query."""

    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path, _, query = target.partition("?")
        self.headers = headers
        self.body = body
        text = query if method == "GET" else body.decode("utf-8", "replace")
        self.form = {name: values[0] for name, values in parse_qs(text).items()}

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


class FakeOAuthServer:
    """What it does can be changed at any time.

    `kind`: "http" or "sse". `expires_in`: seconds that its tokens are said to be good for. `registers`: it takes
    clients that it does not know; else only `clients`, by id and secret. `denies`: the person says no. `refreshes`: a
    refresh token is good once. `status`: of each answer of the token endpoint, when it is none of 200. `issuer`: who it
    says the authorization server is. `floods`: what it says of itself has no end. `wants`: the scope that a call needs.
    `gate`: what its tool `slow` waits for. The authorization server has a path of its own: nobody finds it by guessing.
    """

    def __init__(self, kind: str = "http", *, port: int = 0) -> None:
        self.kind = kind
        self.expires_in: int | None = 3600
        self.registers = True
        self.denies = False
        self.refreshes = True
        self.status = 200
        self.issuer = ""
        self.floods = False
        self.wants = ""
        self.scopes: dict[str, str] = {}
        self.clients: dict[str, str] = {}
        self.requests: list[SeenRequest] = []
        self.gate = asyncio.Event()
        self.waiting = 0  # calls of `slow`
        self.valid: set[str] = set()
        self._port = port
        self._redirects: dict[str, set[str]] = {}
        self._codes: dict[str, dict[str, str]] = {}
        self._refresh: set[str] = set()
        self._numbers = itertools.count(1)
        self._streams: list[asyncio.StreamWriter] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._browsing: list[asyncio.Task[str]] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        return f"{self.base}/{'sse' if self.kind == 'sse' else 'mcp'}"

    @property
    def config(self) -> dict[str, Any]:
        """What `mcp_servers` takes under a name."""
        return {"type": self.kind, "url": self.url}

    def of(self, path: str) -> list[SeenRequest]:
        """The requests for this path so far."""
        return [each for each in self.requests if each.path == path]

    def revoke(self, *, refresh: bool = False) -> None:
        """No token that was given so far is good any more; with `refresh`, no refresh token either."""
        self.valid.clear()
        if refresh:
            self._refresh.clear()

    async def person(self, url: str, server: str) -> None:
        """Opens the page, and does not wait for what comes of it."""
        self._browsing.append(asyncio.create_task(self.browse(url)))

    async def pages(self) -> list[str]:
        """What stood on each page in the end that the person opened."""
        return [await each for each in self._browsing]

    async def browse(self, url: str) -> str:
        """As a browser does: the page, and where it leads to. What stands there in the end."""
        while True:
            split = urlsplit(url)
            reader, writer = await asyncio.open_connection(split.hostname, split.port)
            try:
                target = f"{split.path}?{split.query}"
                writer.write(f"GET {target} HTTP/1.1\r\nHost: {split.netloc}\r\n\r\n".encode())
                head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            finally:
                writer.close()
                await writer.wait_closed()
            places = [line[10:] for line in head.split("\r\n") if line.lower().startswith("location: ")]
            if not places:
                return body
            url = places[0]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        left = [*self._connections, *self._browsing]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            method, target, _ = first.split(" ")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            seen = SeenRequest(method, target, headers, body)
            self.requests.append(seen)
            await self._answer(seen, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        except asyncio.CancelledError:
            pass  # the server is closing; a connection's task may end quietly
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _answer(
        self, seen: SeenRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        makers = {
            "/.well-known/oauth-protected-resource" + urlsplit(self.url).path: self._resource,
            "/.well-known/oauth-authorization-server/auth": self._metadata,
            "/auth/register": self._register,
            "/auth/authorize": self._authorize,
            "/auth/token": self._token,
        }
        if self.floods and seen.path.startswith("/.well-known/"):
            await _flood(writer)
        elif seen.path in makers:
            await _say(writer, *makers[seen.path](seen))
        elif seen.path not in ("/mcp", "/sse", "/messages"):
            await _say(writer, 404, {})
        elif seen.token not in self.valid:
            place = f"{self.base}/.well-known/oauth-protected-resource{urlsplit(self.url).path}"
            await _say(writer, 401, {}, {"WWW-Authenticate": f'Bearer resource_metadata="{place}"'})
        elif self._lacks(seen):
            asked = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{self.wants}"'}
            await _say(writer, 403, {}, asked)
        elif seen.path == "/sse":
            await self._stream(reader, writer)
        elif seen.method != "POST":
            await _say(writer, 405, {})
        else:
            await self._message(json.loads(seen.body), writer)

    def _lacks(self, seen: SeenRequest) -> bool:
        return (
            bool(self.wants)
            and b'"tools/call"' in seen.body
            and self.wants not in self.scopes.get(seen.token, "").split()
        )

    # ── the authorization server ──

    def _resource(self, seen: SeenRequest) -> tuple[int, Any]:
        return 200, {"resource": self.url, "authorization_servers": [self.issuer or f"{self.base}/auth"]}

    def _metadata(self, seen: SeenRequest) -> tuple[int, Any]:
        issuer = f"{self.base}/auth"
        return 200, {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "registration_endpoint": f"{issuer}/register",
            "token_endpoint": f"{issuer}/token",
            "scopes_supported": SCOPES,
            "code_challenge_methods_supported": ["S256"],
        }

    def _register(self, seen: SeenRequest) -> tuple[int, Any]:
        if not self.registers:
            return 403, {"error": "access_denied"}
        asked = json.loads(seen.body)
        id, secret = f"client{next(self._numbers)}", f"secret-of-client{next(self._numbers)}"
        self.clients[id] = secret
        self._redirects[id] = set(asked["redirect_uris"])
        way = {"token_endpoint_auth_method": "client_secret_post"}
        return 201, {**asked, "client_id": id, "client_secret": secret, **way}

    def _authorize(self, seen: SeenRequest) -> tuple[int, Any, dict[str, str]] | tuple[int, Any]:
        asked = seen.form
        known = self._redirects.get(asked["client_id"])
        if asked["client_id"] not in self.clients or (known and asked["redirect_uri"] not in known):
            return 400, {"error": "invalid_client"}
        if asked.get("code_challenge_method") != "S256" or asked.get("resource") != self.url:
            return 400, {"error": "invalid_request"}
        code = f"code-{next(self._numbers)}"
        self._codes[code] = asked
        answer = (
            {"error": "access_denied", "error_description": "no, thanks"} if self.denies else {"code": code}
        )
        query = urlencode({**answer, "state": asked["state"]})
        return 302, {}, {"Location": f"{asked['redirect_uri']}?{query}"}

    def _token(self, seen: SeenRequest) -> tuple[int, Any]:
        if self.status != 200:
            return self.status, {"error": "temporarily_unavailable", "error_description": f"no: {seen.form}"}
        given, asked_for = seen.form, ""
        id, secret = _credentials(seen)
        if self.clients.get(id) != secret:
            return 401, {"error": "invalid_client"}
        if given["grant_type"] == "refresh_token":
            if not self.refreshes or given["refresh_token"] not in self._refresh:
                return 400, {"error": "invalid_grant", "error_description": f"no: {given['refresh_token']}"}
            self._refresh.discard(given["refresh_token"])
        else:
            asked = self._codes.pop(given["code"], None)
            asked_for = (asked or {}).get("scope", "")
            digest = hashlib.sha256(given["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if asked is None or (asked["code_challenge"], asked["redirect_uri"]) != (
                challenge,
                given["redirect_uri"],
            ):
                return 400, {"error": "invalid_grant", "error_description": f"no: {given['code']}"}
        access, refresh = f"access-{next(self._numbers)}", f"refresh-{next(self._numbers)}"
        self.valid.add(access)
        self.scopes[access] = asked_for
        self._refresh.add(refresh)
        answer = {"access_token": access, "token_type": "Bearer", "refresh_token": refresh}
        return 200, answer if self.expires_in is None else {**answer, "expires_in": self.expires_in}

    # ── the MCP server ──

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"event: endpoint\ndata: /messages\n\n")
        self._streams.append(writer)
        try:
            await reader.read()  # until the client leaves
        finally:
            self._streams.remove(writer)

    async def _message(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "id" not in message:
            await _say(writer, 202, {})
            return
        answer = {"jsonrpc": "2.0", "id": message["id"], **await self._result(message)}
        if self.kind != "sse":
            await _say(writer, 200, answer)
            return
        await _say(writer, 202, {})
        for stream in self._streams:
            stream.write(f"event: message\ndata: {json.dumps(answer)}\n\n".encode())
            await stream.drain()

    async def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        params = message.get("params", {})
        if message["method"] == "initialize":
            return {
                "result": {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "fake", "version": "1"},
                }
            }
        if message["method"] == "tools/list":
            tools = [{"name": each, "inputSchema": {"type": "object"}} for each in ("echo", "slow")]
            return {"result": {"tools": tools}}
        if message["method"] != "tools/call":
            return {"error": {"code": -32601, "message": "there is no such method"}}
        if params["name"] == "slow":
            self.waiting += 1
            await self.gate.wait()
        return {"result": {"content": [{"type": "text", "text": "ok"}]}}


def _credentials(seen: SeenRequest) -> tuple[str, str]:
    kind, _, given = seen.headers.get("authorization", "").partition(" ")
    if kind == "Basic":
        id, _, secret = base64.b64decode(given).decode().partition(":")
        return id, secret
    return seen.form.get("client_id", ""), seen.form.get("client_secret", "")


async def _flood(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 Said\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    while True:
        writer.write(b"data: " + b"x" * 65_536)
        await writer.drain()


async def _say(
    writer: asyncio.StreamWriter, status: int, value: Any, headers: dict[str, str] | None = None
) -> None:
    body = json.dumps(value).encode()
    lines = "".join(f"{name}: {text}\r\n" for name, text in (headers or {}).items())
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Connection: close\r\n{lines}\r\n".encode() + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
