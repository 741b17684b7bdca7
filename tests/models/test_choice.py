"""Which model is chosen when none is named."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tertulia import Session
from tertulia.models import choice, local_weights, names, probe
from tertulia.models.choice import DEFAULTS, choose, make, options
from tertulia.models.demo import DemoModel
from tertulia.models.hosted import HostedModel
from tertulia.models.hosted_spec import PROVIDERS
from tertulia.models.local import LocalModel
from tertulia.records.errors import ConfigError, MissingExtra

MODELS = b'{"object":"list","data":[{"id":"small:1b","object":"model"},{"id":"other"}]}'
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + MODELS

Serve = Callable[[bytes | None], int]


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "PORTS", (1,))


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server on loopback that answers everything with these bytes; None: with nothing, and never. Its port."""
    listening: list[socket.socket] = []
    taken: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes | None) -> int:
        server = socket.create_server(("127.0.0.1", 0))

        def work() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed at the end of the test
                    return
                taken.append(connection)
                if answer is not None:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

        listening.append(server)
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return int(server.getsockname()[1])

    yield start
    for server in listening:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for thread in threads:
        thread.join(5)
    for connection in taken:
        connection.close()


def without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtra("no weights", hint=local_weights.GET_WEIGHTS)

    monkeypatch.setattr(local_weights, "find", missing)


def test_the_order(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    chosen = []
    without_weights(monkeypatch)
    chosen.append(choose().name)
    monkeypatch.undo()
    monkeypatch.setattr(choice, "PORTS", (1,))
    for variable in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    chosen.append(choose().name)
    monkeypatch.setattr(choice, "PORTS", (1, serve(OK)))
    chosen.append(choose().name)
    for variable in ("GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, "secret")
        assert choose().why == f"{variable} is set"
        chosen.append(choose().name)
    assert chosen == [
        "demo",
        "local",
        "openai-chat:small:1b",
        f"google:{DEFAULTS['google']}",
        f"openai:{DEFAULTS['openai']}",
        f"anthropic:{DEFAULTS['anthropic']}",
    ]


def test_what_is_chosen_can_be_made(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    port = serve(OK)
    monkeypatch.setattr(choice, "PORTS", (port,))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    made = {option.name: make(option) for option in options() if option.usable}
    assert isinstance(made["local"], LocalModel)
    assert isinstance(made["demo"], DemoModel)
    for name in (f"anthropic:{DEFAULTS['anthropic']}", "openai-chat:small:1b"):
        assert made[name].name == name
    server = made["openai-chat:small:1b"]
    assert isinstance(server, HostedModel)
    assert server._spec.base_url == f"http://127.0.0.1:{port}/v1"


def test_a_key_whose_packages_are_missing_is_passed_over_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")

    def missing(provider: str, *_: object, **__: object) -> None:
        raise MissingExtra("anthropic is not installed", hint="pip install 'tertulia[anthropic]'")

    monkeypatch.setattr(choice, "HostedModel", missing)
    chosen = choose()
    assert chosen.name == "local"
    told = "ANTHROPIC_API_KEY is set, but anthropic is not installed: pip install 'tertulia[anthropic]'"
    assert chosen.note == told


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 404 Not Found\r\n\r\n" + MODELS,
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b'HTTP/1.1 200 OK\r\n\r\n{"data":[]}',
        b'HTTP/1.1 200 OK\r\n\r\n{"data":[{"name":"no id"}]}',
        b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe",
    ],
)
def test_what_else_listens_there_is_no_model(
    answer: bytes | None, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setattr(choice, "PORTS", (serve(answer), serve(answer), serve(answer)))
    assert choose().name == "local"


def test_servers_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    met = threading.Barrier(3, timeout=60)

    def silent(port: int, seconds: float) -> None:
        assert seconds == choice.PROBE
        met.wait()  # breaks when one is asked after the other

    monkeypatch.setattr(choice, "PORTS", (1, 2, 3))
    monkeypatch.setattr(probe, "first_model", silent)
    assert choose().name == "local"


async def test_auto_is_the_choice_and_no_model_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without_weights(monkeypatch)
    assert isinstance(names.resolve("auto"), DemoModel)
    async with Session.open(model="auto") as session:
        assert "demo model" in (await session.prompt("Hello?")).text
    async with Session.open() as session:
        with pytest.raises(ConfigError) as caught:
            await session.prompt("Hello?")
    assert "usable here: demo; or " in str(caught.value)


def test_a_name_that_means_nothing_lists_what_is_usable() -> None:
    with pytest.raises(ConfigError, match=r"usable here: local, demo; or anthropic:NAME, .*\"auto\""):
        names.resolve("nonsense")


def test_each_provider_with_a_default_is_one() -> None:
    assert set(DEFAULTS) < set(PROVIDERS)
