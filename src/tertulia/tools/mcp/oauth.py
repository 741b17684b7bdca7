"""Signing in to a remote server: the SDK's OAuth, with our storage and our way to ask. Imported when it is used."""

import contextlib
import logging
import re
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

from ...records.errors import ConfigError, McpError, TertuliaError
from ...sandbox.hosts import is_public
from .around import Standing, Surroundings, explain
from .config import ServerConfig
from .oauth_asking import Asking
from .oauth_files import Damaged, Held, damaged

ANSWER = httpx2.Timeout(30.0).as_dict()  # for what the sign-in asks of servers; the SDK sets no limit there
LONG_AGO = 1.0
CODE = re.compile(r'"error"\s*:\s*"([a-z_]{1,60})"')
SUMMARY = re.compile(r"[^:{\n]*(: \d{3})?")

Flow = AsyncGenerator[httpx2.Request, httpx2.Response]


class _Quiet(logging.Filter):
    """The SDK logs what it could not read, tokens among it. What fails there is told by us."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.exc_info


logging.getLogger("mcp.client.auth.oauth2").addFilter(_Quiet())


class SignIn(OAuthClientProvider):
    """Adds the token to requests; where it is refused, gets another one: by refreshing it, or from a person.

    The SDK's flow holds a lock until an answer begins, and takes a refused token for one that cannot be refreshed. So
    requests go past it while their token is good, and it takes over where the server refuses one.
    """

    def __init__(self, config: ServerConfig, around: Surroundings, standing: Standing) -> None:
        self._config = config
        self._around = around
        self._asking = Asking(config, around, standing)
        super().__init__(
            config.url, self._metadata("http://127.0.0.1"), self, self._redirected, self._asking.answer
        )

    # ── the flow ──

    async def async_auth_flow(self, request: httpx2.Request) -> Flow:
        refused: httpx2.Response | None = None
        token: str | None = None
        if not self.context.is_token_valid() and not self.context.lock.locked():
            self._load(request)
        if self.context.current_tokens is None or self.context.is_token_valid():
            token = self._sign(request)
            refused = yield request
            if not self._refuses(refused):
                return
            self._outdate(request, refused, token)
        flow, asked = super().async_auth_flow(request), False
        try:
            outgoing = await self._next(flow, None)
            while outgoing is not None:
                if outgoing is not request:
                    response = yield _checked(outgoing, self._config)
                    _check_refresh(outgoing, response, self._config)
                else:
                    fresh = self._renewed(request)
                    if refused is not None and fresh == token:
                        response = refused  # nothing has changed since
                    else:
                        response = yield request
                    refused = None
                    if self._refuses(response):
                        before, asked = asked, True
                        await self._prepare(request, response, again=before)
                outgoing = await self._next(flow, response)
        finally:
            if asked:
                self._asking.close()
            await flow.aclose()

    async def _next(self, flow: Flow, response: httpx2.Response | None) -> httpx2.Request | None:
        """What the SDK wants to send; what goes wrong is an error of ours, without what servers wrote into it."""
        try:
            return await (anext(flow) if response is None else flow.asend(response))
        except StopAsyncIteration:
            return None
        except TertuliaError:
            raise
        except (OAuthFlowError, ValueError, httpx2.InvalidURL) as error:
            raise McpError(f"signing in to {self._config.name} failed: {_told(error)}") from None

    def _sign(self, request: httpx2.Request) -> str | None:
        """The token that goes with the request."""
        tokens = self.context.current_tokens
        if tokens is None or not self.context.is_token_valid():
            return None
        request.headers["Authorization"] = f"Bearer {tokens.access_token}"
        return tokens.access_token

    def _renewed(self, request: httpx2.Request) -> str | None:
        """The token for the next attempt; where we have none, another process may have got one meanwhile."""
        if not self.context.is_token_valid():
            self._load(request)
        return self._sign(request)

    def _refuses(self, response: httpx2.Response) -> bool:
        """Whether signing in may help; more rights than we have are asked for only where somebody can be asked."""
        if response.status_code != 403 or not self._asking.allowed:
            return response.status_code == 401
        return extract_field_from_www_auth(response, "error") == "insufficient_scope"

    def _outdate(self, request: httpx2.Request, response: httpx2.Response, token: str | None) -> None:
        """The token was refused, whatever time it has left."""
        context = self.context
        if response.status_code != 401 or context.lock.locked():  # locked: another request sees to it
            return
        self._load(request)
        if context.current_tokens is not None and context.current_tokens.access_token == token:
            if context.can_refresh_token():
                context.token_expiry_time = LONG_AGO
            else:
                context.clear_tokens()

    # ── asking a person ──

    def _may_ask(self, request: httpx2.Request) -> bool:
        return self._asking.allowed and request.method != "DELETE"  # by which a connection says goodbye

    async def _prepare(self, request: httpx2.Request, response: httpx2.Response, *, again: bool) -> None:
        """Before the SDK asks: that it may, and where the answer comes to."""
        name, oauth, address = self._config.name, self._config.oauth, httpx2.URL(self._config.url)
        if again:
            self._asking.over(well=False)
            raise McpError(f"{name} refuses the sign-in that has just been made")
        if not self._may_ask(request):
            raise McpError(f"{name} wants you to sign in", hint=f"tertulia mcp login {name}")
        if address.scheme != "https" and not _inside(address.host):
            raise McpError(
                f"{name} wants you to sign in at an address that is not encrypted", hint="https://…"
            )
        await self._listen()
        if oauth.scope and response.status_code == 401:  # the SDK takes what it finds there first
            said = response.headers.get("WWW-Authenticate", "")
            response.headers["WWW-Authenticate"] = f'Bearer scope="{oauth.scope}", {said}'

    async def _listen(self) -> None:
        client = self.context.client_info
        uris = [str(uri) for uri in client.redirect_uris or ()] if client is not None else []
        uri = await self._asking.open(httpx2.URL(uris[0]).port if uris else None)
        self.context.client_metadata = self._metadata(uri)
        if self._config.oauth.client_id:
            self.context.client_info = self._own_client()
        elif uri not in uris or _expired(client, self._around.clock.now() / 1e6):
            self.context.client_info = None  # it is registered anew

    async def _redirected(self, url: str) -> None:
        _check_place(httpx2.URL(url), self._config)  # a browser reaches what its user reaches
        self._asking.expect(url)
        if self._config.oauth.client_id:  # by now it is known how the server wants its secret
            self.context.client_info = self._own_client()

    # ── what is kept: the SDK's TokenStorage, and what it would not keep ──

    def _load(self, request: httpx2.Request) -> None:
        """As it is stored now. The SDK alone would forget when the token ends and where it is refreshed."""
        try:
            self._take(self._around.vault.read(self._config))
        except Damaged:
            if not self._may_ask(request):
                raise
            self._take(None)

    def _take(self, held: Held | None) -> None:
        held = held or Held(url=self._config.url)
        context, own = self.context, self._config.oauth.client_id
        ours = not own or held.client.get("client_id") == own  # else another client's
        try:
            context.oauth_metadata = OAuthMetadata.model_validate(held.server) if held.server else None
            context.protected_resource_metadata = (
                ProtectedResourceMetadata.model_validate(held.resource) if held.resource else None
            )
            client = OAuthClientInformationFull.model_validate(held.client) if held.client else None
            tokens = OAuthToken.model_validate(held.tokens) if held.tokens and ours else None
        except ValueError:  # it would quote what it read
            raise damaged(self._config) from None
        context.auth_server_url = held.issuer or None
        context.client_info = self._own_client() if own else client
        context.current_tokens = tokens
        context.token_expiry_time = held.expires_at if tokens is not None else None

    async def get_tokens(self) -> OAuthToken | None:
        return self.context.current_tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.context.client_info

    async def set_tokens(self, tokens: OAuthToken) -> None:
        if tokens.expires_in is not None and tokens.expires_in <= 0:
            self.context.token_expiry_time = (
                None  # some servers say 0 for no end; the SDK would never send it
            )
        self._keep(tokens)
        self._asking.over(well=True)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._keep(None)  # the tokens were another client's

    def _keep(self, tokens: OAuthToken | None) -> None:
        context = self.context
        client = _plain(context.client_info)
        held = Held(
            url=self._config.url,
            tokens=_plain(tokens),
            expires_at=context.token_expiry_time if tokens is not None else None,
            client={"client_id": client["client_id"]} if self._config.oauth.client_id else client,
            issuer=context.auth_server_url or "",
            server=_plain(context.oauth_metadata),
            resource=_plain(context.protected_resource_metadata),
        )
        try:
            self._around.vault.write(self._config, held)
        except ConfigError as error:  # it is good for as long as this connection lives
            self._around.warn(self._config, "mcp", str(error))

    # ── who we are ──

    def _metadata(self, uri: str) -> OAuthClientMetadata:
        return OAuthClientMetadata.model_validate(
            {"redirect_uris": [uri], "client_name": self._config.oauth.client_name}
        )

    def _own_client(self) -> OAuthClientInformationFull:
        """The client that the configuration names."""
        oauth, server = self._config.oauth, self.context.oauth_metadata
        known = server.token_endpoint_auth_methods_supported if server is not None else None
        basic = known is None or "client_secret_basic" in known
        way = ("client_secret_basic" if basic else "client_secret_post") if oauth.client_secret else "none"
        return OAuthClientInformationFull(
            client_id=oauth.client_id,
            client_secret=oauth.client_secret or None,
            token_endpoint_auth_method=way,
        )


def _plain(model: Any) -> dict[str, Any]:
    held: dict[str, Any] = model.model_dump(mode="json", exclude_none=True) if model is not None else {}
    return held


def _checked(outgoing: httpx2.Request, server: ServerConfig) -> httpx2.Request:
    _check_place(outgoing.url, server)
    outgoing.extensions["timeout"] = ANSWER
    return outgoing


def _check_place(url: httpx2.URL, server: ServerConfig) -> None:
    """A server says where we sign in: it cannot send us where anyone listens, nor to this machine or its network."""
    host, own = url.host, _inside(httpx2.URL(server.url).host)
    secure = url.scheme == "https" or (url.scheme == "http" and own and _inside(host))
    if not secure or (_inside(host) and not own):
        where = f"{url.scheme}://{host}"
        raise McpError(f"{server.name} wants the sign-in to go to {where}, which is not safe")


def _check_refresh(outgoing: httpx2.Request, response: httpx2.Response, server: ServerConfig) -> None:
    """A server that is out of order refuses nothing: the token is tried again later."""
    busy = response.status_code >= 500 or response.status_code == 429
    if busy and b"grant_type=refresh_token" in outgoing.content:
        text = f"the sign-in to {server.name} cannot be renewed now: {response.status_code}"
        raise McpError(text, hint="it is tried again by itself")


def _expired(client: OAuthClientInformationFull | None, now: float) -> bool:
    until = client.client_secret_expires_at if client is not None else None
    return bool(until) and now >= (until or 0)


def _inside(host: str) -> bool:
    """Whether this names our machine or its network, as far as a name shows it."""
    host = host.lower().removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with contextlib.suppress(ValueError):  # it is no address as we write it
        return not is_public(host)
    try:
        return not is_public(socket.inet_ntoa(socket.inet_aton(host)))  # 127.1, 0x7f.1, 2130706433
    except (OSError, ValueError):
        return False


def _told(error: Exception) -> str:
    """Without the bodies that the SDK quotes: they hold what should stay between the servers and us."""
    if not isinstance(error, OAuthFlowError):
        return "an answer cannot be understood"
    if not isinstance(error, OAuthTokenError | OAuthRegistrationError):
        return explain(error)
    found, code = SUMMARY.match(str(error)), CODE.search(str(error))
    text = found[0].strip() if found is not None else ""
    return f"{text}: {code[1]}" if code is not None else text
