"""fetch: one public page. Addresses inside of a network are refused, also behind a redirect or a name.

The address that was checked is the one that is connected to: a name that answers otherwise the second time is not asked
a second time.
"""

import codecs
import contextlib
import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

from ...records.errors import InvalidInput, SandboxError
from ...sandbox.hosts import is_public
from ..base import tool

LARGEST = 2 * 1024 * 1024
SECONDS = 30.0
REDIRECTS = 5
PORTS = (80, 443, 8080, 8443)
TEXT = (
    "text/",
    "application/json",
    "application/xml",
    "application/xhtml",
    "application/javascript",
    "+json",
    "+xml",
)
CODECS = re.compile(
    r"utf-(8(-sig)?|(16|32)(-[bl]e)?)|ascii|iso8859-\d+|cp\d+|koi8-[rut]|mac-\w+|gb(2312|k|18030)|hz|big5(hkscs)?"
    r"|shift_jis\w*|euc_\w+|johab|tis-620|kz1048|ptcp154"
)


def fetch(url: str) -> str:
    """Get a page from the web, as text (HTML as it is). Only public http and https addresses can be reached."""
    until = time.monotonic() + SECONDS
    for _ in range(REDIRECTS + 1):
        status, headers, body = _get(url, until)
        target = headers.get("location")
        if status not in (301, 302, 303, 307, 308) or not target:
            return _told(url, status, headers, body)
        url = urljoin(url, target)
    raise InvalidInput(f"more than {REDIRECTS} redirects; the last to {url[:200]}")


def _get(url: str, until: float) -> tuple[int, http.client.HTTPMessage, bytes]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InvalidInput(f"{url[:200]!r} is no address: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidInput(f"{url[:200]!r} is no http or https address")
    if parts.username or parts.password:
        raise InvalidInput("an address with a password in it is not fetched")
    if port not in PORTS:
        raise SandboxError(f"port {port} is not reached by fetch")
    connection = _Connection(host, port, until, secure=parts.scheme == "https")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with contextlib.closing(connection), _ending(connection, until):
        try:
            connection.request("GET", path, headers={"User-Agent": "tertulia", "Accept": "text/*, */*;q=0.5"})
            response = connection.getresponse()
            return response.status, response.headers, _body(response, until)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise InvalidInput(f"{host} cannot be reached: {str(error) or type(error).__name__}") from error


class _Connection(http.client.HTTPConnection):
    """Connects to a checked address of the host, with the host's name in the request and on the certificate."""

    def __init__(self, host: str, port: int, until: float, *, secure: bool) -> None:
        super().__init__(host, port)
        self._until = until
        self._secure = secure

    def connect(self) -> None:
        address = public_address(self.host, self.port)
        self.sock = socket.create_connection((address, self.port), timeout=_left(self._until))
        if self._secure:
            # Without the handshake, so that the end of the time finds the socket that it is to end.
            secured = ssl.create_default_context().wrap_socket(
                self.sock, server_hostname=self.host, do_handshake_on_connect=False
            )
            self.sock = secured
            secured.settimeout(_left(self._until))
            secured.do_handshake()
        _left(self._until)  # it may have come while there was no socket to end


def public_address(host: str, port: int) -> str:
    """An address of the host. SandboxError when any of them is not public: a mixed answer is no accident."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(sockaddr[0]) for *_, sockaddr in found]
    for address in addresses:
        if not is_public(address):
            raise SandboxError(f"{host} is inside of a network ({address}), which fetch does not reach")
    return addresses[0]


@contextlib.contextmanager
def _ending(connection: _Connection, until: float) -> Iterator[None]:
    """Ends the connection when the time is up: a server that sends a byte now and then passes every other timeout."""

    def end() -> None:
        if connection.sock is not None:
            with contextlib.suppress(OSError):  # of the socket itself: TLS is in use by the other thread
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    timer = threading.Timer(_left(until), end)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _body(response: http.client.HTTPResponse, until: float) -> bytes:
    chunks, size = [], 0
    while size <= LARGEST:
        _left(until)  # what the end of the time has cut off is no page
        chunk = response.read1(65536)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    _left(until)
    return b"".join(chunks)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"it took longer than {SECONDS:g} s")
    return left


def _told(url: str, status: int, headers: http.client.HTTPMessage, body: bytes) -> str:
    kind = headers.get_content_type()
    head = f"{url}\n{status} {kind}"
    if not any(kind.startswith(each) or kind.endswith(each) for each in TEXT):
        return f"{head}\n[{len(body):,} bytes that are no text]"
    text = body[:LARGEST].decode(_codec(headers.get_content_charset()), "replace")
    more = f"\n[cut after {LARGEST:,} bytes]" if len(body) > LARGEST else ""
    return f"{head}\n\n{text}{more}"


def _codec(charset: str | None) -> str:
    """Of Python's codecs those for pages: others take a time that grows with the square of the size, or are no text."""
    try:
        name = codecs.lookup(charset or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if CODECS.fullmatch(name) else "utf-8"


FETCH = tool(enabled=False, ask=True)(fetch)
