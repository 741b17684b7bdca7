"""Where a person's browser brings the answer of a sign-in: an address of this machine, for as long as that takes."""

import asyncio
import contextlib
import secrets
from urllib.parse import parse_qs, urlsplit

from ...records.errors import McpError
from .content import clean

PATH = "/callback"
HOST = "127.0.0.1"
HEAD = 16 * 1024  # bytes of a request
PATIENCE = 10.0  # seconds for a request to arrive
AT_ONCE = 16  # connections; a browser needs one or two
PAGE = (
    "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n"
    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\r\n{text}"
)


class Callback:
    """`answer` is what came with the state that is expected; anything else that arrives is turned away."""

    def __init__(self, server: asyncio.Server) -> None:
        self.answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self.uri = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{PATH}"
        self._server = server
        self._state = ""
        self._serving: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, port: int) -> "Callback":
        made: list[Callback] = []

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await made[0]._connected(reader, writer)

        try:
            server = await asyncio.start_server(connected, HOST, port, limit=HEAD, start_serving=False)
        except OSError as error:
            raise McpError(
                f"port {port} of this machine, which the sign-in comes back to, cannot be used: {error.strerror}",
                hint="end what uses it, or configure another oauth.callback_port",
            ) from error
        made.append(cls(server))
        try:
            await server.start_serving()
        except BaseException:  # we are cancelled: nobody else knows of it yet
            server.close()
            raise
        return made[0]

    def expect(self, url: str) -> None:
        """The answer to the question that this address puts."""
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]

    def close(self) -> None:
        """Never waits: it may be called while everything around is being cancelled."""
        self._server.close()
        self.answer.cancel()
        for task in self._serving:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if len(self._serving) <= AT_ONCE:
                await self._serve(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # it went away, or never said anything
        except asyncio.CancelledError:
            pass  # we are closing; a connection's task may end quietly
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _say(writer, "431 Request Header Fields Too Large", "This is too long.")
            return
        status, text, answer = self._judge(head.partition(b"\r\n")[0].decode("latin-1"))
        try:
            await _say(writer, status, text)
        finally:
            if answer is not None and not self.answer.done():
                self.answer.set_result(answer)

    def _judge(self, line: str) -> tuple[str, str, dict[str, str] | None]:
        """The status and the text for the browser, and the answer, where it is one."""
        method, _, rest = line.partition(" ")
        target, _, version = rest.rpartition(" ")
        if not version.startswith("HTTP/1.") or not target.startswith("/"):
            return "400 Bad Request", "This is no request.", None
        path, _, query = target.partition("?")
        if path != PATH:
            return "404 Not Found", "There is nothing here.", None
        if method != "GET":
            return "405 Method Not Allowed", "This address is only for reading.", None
        try:
            given = parse_qs(query, max_num_fields=50)
        except ValueError:
            return "400 Bad Request", "This is no answer of a sign-in.", None
        found = {name: values[0] for name, values in given.items() if len(values) == 1}
        state = found.get("state", "")
        if not self._state or not secrets.compare_digest(state.encode(), self._state.encode()):
            return "400 Bad Request", "This answer belongs to another sign-in.", None
        if "error" in found:
            return "200 OK", "You were not signed in. You can close this window.", found
        if "code" not in found:
            return "400 Bad Request", "This is no answer of a sign-in.", None
        return "200 OK", "You can close this window.", found


async def _say(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    writer.write(PAGE.format(status=status, length=len(text), text=text).encode())
    async with asyncio.timeout(PATIENCE):
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def refusal(answer: dict[str, str]) -> str:
    """What an authorization server says when it lets nobody in."""
    kind, why = clean(answer["error"], 60), clean(answer.get("error_description", ""), 200)
    return f"{kind}: {why}" if why else kind
