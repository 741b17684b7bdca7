"""Whether a server on this machine answers `GET /v1/models`, within a bounded time whatever listens there."""

import socket
import time

import msgspec

LIMIT = 1_000_000  # bytes of an answer; longer ones come from something else


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def first_model(port: int, seconds: float) -> str | None:
    """The first model that the server has; None when nothing, or something else, answers in time."""
    deadline = time.monotonic() + seconds
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as server:
            server.sendall(f"GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            data = _read(server, deadline)
    except OSError:  # a timeout is one
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not head.startswith(b"HTTP/1.") or status != [b"200"]:
        return None
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return models[0].id if models else None


def _read(server: socket.socket, deadline: float) -> bytes:
    """To the end, which the server makes: HTTP/1.0 keeps no connection open."""
    data = b""
    while len(data) < LIMIT:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        server.settimeout(left)
        piece = server.recv(65536)
        if not piece:
            break
        data += piece
    return data
