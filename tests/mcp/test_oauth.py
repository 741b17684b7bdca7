"""Signing in to remote servers: the SDK's own client against an authorization server and a protected MCP server."""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tertulia.records.errors import McpError
from tertulia.testing import FakeClock, FakeMcpServer, FakeOAuthServer, call
from tertulia.tools.mcp.around import Standing, Surroundings
from tertulia.tools.mcp.config import ServerConfig
from tertulia.tools.mcp.oauth import SignIn, _check_place
from tests.mcp.kit import BOUND, ready, results, talk, until, warnings
from tests.mcp.oauth_kit import DONE, Person, files, refreshes, sign_in, stored

# ── signing in ──


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_a_person_signs_in_once_and_later_sessions_need_nobody(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "auth"
    before = os.umask(0)
    try:
        async with FakeOAuthServer(kind) as fake:
            person = Person(fake)
            config = {"far": {**fake.config, "headers": {"X-Own": "header"}}}
            options = {"mcp_auth_folder": folder, "mcp_login": person}
            async with talk(config, [call("echo")], "ok", **options) as (session, _, _):
                await ready(session)
                await session.prompt("go")
                assert await results(session) == [("echo", "ok", "ok")]
            assert [server for _, server in person.shown] == ["far"]
            [file] = files(folder)
            assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
            seen = len(fake.requests)
            async with talk(config, [call("echo")], "ok", mcp_auth_folder=folder) as (session, _, _):
                await ready(session)
                await session.prompt("go")
                assert await results(session) == [("echo", "ok", "ok")]
            later = fake.requests[seen:]
            assert not [each for each in later if each.path.startswith("/auth")]
            assert {each.token for each in later} == fake.valid
            own = {each.path for each in fake.requests if each.headers.get("x-own")}
            assert own <= {
                "/mcp",
                "/sse",
                "/messages",
            }  # our headers are for the server, not for who signs us in
    finally:
        os.umask(before)


async def test_without_a_folder_the_token_lives_as_long_as_the_session(far: FakeOAuthServer) -> None:
    person, clock = Person(far), FakeClock()
    async with talk({"far": far}, default="ok", mcp_login=person, clock=clock) as (session, _, _):
        await ready(session)
        connection = session.mcp._connection("far")
        connection._standing.lost.set()
        await until(lambda: connection.state == "waiting")
        await clock.asleep(1)
        await clock.advance(1)
        await ready(session)
        assert (connection.starts, len(person.shown)) == (2, 1)


async def test_a_client_that_the_configuration_names(far: FakeOAuthServer, tmp_path: Path) -> None:
    far.registers = False
    far.clients = {"ours": "hush"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    oauth = {"client_id": "ours", "client_secret": "hush", "scope": "one two", "callback_port": port}
    await sign_in(far, tmp_path / "auth", oauth=oauth)
    [asked] = far.of("/auth/authorize")
    assert asked.form["redirect_uri"] == f"http://127.0.0.1:{port}/callback"
    assert asked.form["scope"] == "one two"
    assert far.of("/auth/register") == []
    assert "hush" not in json.dumps(stored(tmp_path / "auth"))
    far.revoke()
    config = {"far": {**far.config, "oauth": oauth}}
    async with talk(config, mcp_auth_folder=tmp_path / "auth") as (session, _, _):
        assert (await session.mcp.started("far", BOUND)).state == "ready"
    other = {"far": {**far.config, "oauth": {**oauth, "client_id": "another"}}}
    async with talk(other, mcp_auth_folder=tmp_path / "auth") as (session, _, _):
        assert "wants you to sign in" in (await session.mcp.started("far", BOUND)).error


async def test_the_client_is_registered_once(far: FakeOAuthServer, tmp_path: Path) -> None:
    await sign_in(far, tmp_path)
    far.revoke(refresh=True)
    await sign_in(far, tmp_path)
    first, second = (each.form["redirect_uri"] for each in far.of("/auth/authorize"))
    assert (first == second, len(far.of("/auth/register"))) == (True, 1)
    port = int(first.rpartition(":")[2].partition("/")[0])
    far.revoke(refresh=True)
    with socket.create_server(("127.0.0.1", port)):  # its port is taken: another one, and another client
        await sign_in(far, tmp_path)
    assert len(far.of("/auth/register")) == 2


async def test_calls_to_a_server_that_we_are_signed_in_to_do_not_wait_for_each_other(
    far: FakeOAuthServer,
) -> None:
    script = [[call("slow", n=1), call("slow", n=2)], "ok"]
    async with talk({"far": far}, *script, mcp_login=far.person) as (session, _, _):
        await ready(session)
        going = asyncio.create_task(session.prompt("go"))
        await until(lambda: far.waiting == 2)
        far.gate.set()
        await going


async def test_a_call_that_needs_more_rights(far: FakeOAuthServer, tmp_path: Path) -> None:
    await sign_in(far, tmp_path)
    far.wants = "admin"
    script = [[call("echo")], "ok"]
    async with talk({"far": far}, *script, mcp_auth_folder=tmp_path) as (session, _, _):
        await ready(session)
        await session.prompt("go")
        assert (await results(session))[0][1] == "error"
        assert session.mcp.servers()[0].state == "ready"  # it is one call that is refused
    person = Person(far)
    async with talk({"far": far}, *script, mcp_auth_folder=tmp_path, mcp_login=person) as (session, _, _):
        await ready(session)
        await session.prompt("go")
        assert await results(session) == [("echo", "ok", "ok")]
        assert person.asked["scope"].split() == ["read", "write", "admin"]


async def test_the_time_of_a_start_does_not_run_while_a_person_is_asked() -> None:
    standing = Standing()
    async with standing.starting(60.0):
        limit = standing._limit
        assert limit is not None
        with standing.waiting():
            assert limit.when() is None
        assert limit.when() is not None


# ── tokens that are not good any more ──


async def test_a_token_that_ran_out_is_refreshed_and_kept(far: FakeOAuthServer, tmp_path: Path) -> None:
    far.expires_in = 0  # which says nothing
    await sign_in(far, tmp_path)
    held = stored(tmp_path)
    old = held["tokens"]
    files(tmp_path)[0].write_text(json.dumps({**held, "expires_at": 1_000_000_000}))
    far.expires_in = 3600
    seen = len(far.requests)
    async with talk({"far": far}, mcp_auth_folder=tmp_path) as (session, _, _):
        assert (await session.mcp.started("far", BOUND)).state == "ready"
    assert far.requests[seen].path == "/auth/token"  # before anything was refused
    assert old["access_token"] not in {each.token for each in far.requests[seen:]}
    new = stored(tmp_path)["tokens"]
    assert (new["access_token"] in far.valid, new["refresh_token"] != old["refresh_token"]) == (True, True)
    count = len(far.of("/auth/token"))
    async with talk({"far": far}, mcp_auth_folder=tmp_path) as (session, _, _):
        assert (await session.mcp.started("far", BOUND)).state == "ready"
    assert len(far.of("/auth/token")) == count


async def test_a_token_that_is_refused_before_its_time_is_refreshed(far: FakeOAuthServer) -> None:
    far.expires_in = None
    script = [[call("echo")], "ok"]
    async with talk({"far": far}, *script, mcp_login=far.person) as (session, _, _):
        await ready(session)
        far.revoke()
        await session.prompt("go")
        assert await results(session) == [("echo", "ok", "ok")]
        assert refreshes(far) == 1


async def test_sessions_share_what_one_of_them_refreshed(far: FakeOAuthServer, tmp_path: Path) -> None:
    await sign_in(far, tmp_path)
    script = [[call("echo")], "ok"]
    async with (
        talk({"far": far}, *script, mcp_auth_folder=tmp_path) as (one, _, _),
        talk({"far": far}, *script, mcp_auth_folder=tmp_path) as (two, _, _),
    ):
        await ready(one)
        await ready(two)
        far.revoke()
        for session in (one, two):
            await session.prompt("go")
            assert await results(session) == [("echo", "ok", "ok")]
        assert refreshes(far) == 1


@pytest.mark.parametrize("kind", ["http", "sse"])
async def test_who_is_not_signed_in_any_more_is_told(
    kind: str, tmp_path: Path, fake: Callable[..., FakeMcpServer]
) -> None:
    clock = FakeClock()
    async with FakeOAuthServer(kind) as far:
        await sign_in(far, tmp_path / "auth")
        script = [[call("echo"), call("near")], "ok", [call("echo"), call("near")], "ok"]
        servers = {"far": far, "near": fake("near")}
        async with talk(servers, *script, mcp_auth_folder=tmp_path / "auth", clock=clock) as (
            session,
            _,
            seen,
        ):
            await ready(session)
            far.revoke(refresh=True)
            await session.prompt("go")
            await until(lambda: session.mcp.servers()[0].state == "waiting")
            assert session.mcp.servers()[0].error == "far wants you to sign in (tertulia mcp login far)"
            count = len(far.requests)
            await session.prompt("again")
            found = {(name, status): text for name, status, text in await results(session)}
            assert "far wants you to sign in (tertulia mcp login far)" in found["echo", "error"]
            assert found["near", "ok"] == "ok"
            assert any("far wants you to sign in" in each for each in warnings(seen, "mcp"))
            assert len(far.requests) == count  # nothing until the pause is over


async def test_nobody_signed_in_and_nobody_to_ask(far: FakeOAuthServer) -> None:
    clock = FakeClock()
    async with talk({"far": far}, default="ok", clock=clock) as (session, _, _):
        found = await session.mcp.started("far", BOUND)
        assert (found.state, found.error) == ("waiting", "far wants you to sign in (tertulia mcp login far)")
        assert [each.path for each in far.requests] == [
            "/mcp"
        ]  # nothing that the refusal points to is fetched
        assert (await session.prompt("go")).text == "ok"


async def test_a_sign_in_made_elsewhere_is_found_by_itself(far: FakeOAuthServer, tmp_path: Path) -> None:
    clock = FakeClock()
    async with talk({"far": far}, mcp_auth_folder=tmp_path, clock=clock) as (session, _, _):
        assert (await session.mcp.started("far", BOUND)).state == "waiting"
        await sign_in(far, tmp_path)
        await clock.asleep(1)
        await clock.advance(1)
        await ready(session)


async def test_an_authorization_server_that_is_out_of_order_refuses_nothing(
    far: FakeOAuthServer, tmp_path: Path
) -> None:
    await sign_in(far, tmp_path)
    far.revoke()
    far.status = 503
    clock = FakeClock()
    async with talk({"far": far}, mcp_auth_folder=tmp_path, clock=clock) as (session, _, _):
        found = await session.mcp.started("far", BOUND)
        assert found.error.startswith("the sign-in to far cannot be renewed now: 503")
        far.status = 200
        await clock.asleep(1)
        await clock.advance(1)
        await ready(session)


# ── sign-ins that come to nothing ──


async def test_a_person_who_says_no_is_not_asked_again(far: FakeOAuthServer) -> None:
    far.denies = True
    person, clock = Person(far), FakeClock()
    async with talk({"far": far}, default="ok", mcp_login=person, clock=clock) as (session, _, _):
        found = await session.mcp.started("far", BOUND)
        assert found.error == "signing in to far was refused: access_denied: no, thanks"
        assert await far.pages() == [f"You were not signed in. {DONE}"]
        await clock.asleep(1)
        await clock.advance(1)
        await until(lambda: session.mcp.servers()[0].error.startswith("far wants you to sign in"))
        assert len(person.shown) == 1


async def test_the_time_of_a_person_ends(far: FakeOAuthServer) -> None:
    person, clock = Person(far, away=True), FakeClock()
    async with talk({"far": far}, default="ok", mcp_login=person, clock=clock) as (session, _, _):
        await clock.asleep(1)
        port = person.port
        await clock.advance(299)
        assert session.mcp.servers()[0].state == "starting"
        await clock.advance(2)
        found = await session.mcp.started("far", BOUND)
        assert found.error == "nobody signed in to far within 300 s"
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        assert (await session.prompt("go")).text == "ok"


async def test_a_handler_that_fails_is_told(far: FakeOAuthServer) -> None:
    async def broken(url: str, server: str) -> None:
        raise RuntimeError("no screen")

    async with talk({"far": far}, mcp_login=broken, clock=FakeClock()) as (session, _, _):
        found = await session.mcp.started("far", BOUND)
        assert found.error == "nobody could be asked to sign in to far: no screen"


async def test_a_session_that_closes_meanwhile_leaves_nothing(far: FakeOAuthServer) -> None:
    person = Person(far, away=True)
    async with talk({"far": far}, mcp_login=person):
        await until(lambda: person.shown)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", person.port)) != 0


async def test_a_port_that_is_taken_is_told(far: FakeOAuthServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        config = {"far": {**far.config, "oauth": {"callback_port": port}}}
        async with talk(config, mcp_login=far.person, clock=FakeClock()) as (session, _, _):
            found = await session.mcp.started("far", BOUND)
            assert f"port {port} of this machine" in found.error


async def said(port: int, data: bytes) -> bytes:
    """What the listener answers to these bytes; nothing when it just hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_only_the_answer_that_is_expected_is_taken(far: FakeOAuthServer) -> None:
    person = Person(far, away=True)
    async with talk({"far": far}, mcp_login=person) as (session, _, _):
        await until(lambda: person.shown)
        port, state = person.port, person.asked["state"]
        for data, status in [
            (b"\x00\xff\x16\x03\x01garbage\r\n\r\n", b"400"),
            (b"", b""),
            (b"GET /callback?code=stolen&state=wrong HTTP/1.1\r\n\r\n", b"400"),
            (b"GET /callback?code=stolen HTTP/1.1\r\n\r\n", b"400"),
            (f"GET /callback?code=stolen&state={state}&state={state} HTTP/1.1\r\n\r\n".encode(), b"400"),
            (f"GET /callback?state={state} HTTP/1.1\r\n\r\n".encode(), b"400"),
            (f"GET /callback?{'a=1&' * 100}state={state} HTTP/1.1\r\n\r\n".encode(), b"400"),
            (f"POST /callback?code=stolen&state={state} HTTP/1.1\r\n\r\n".encode(), b"405"),
            (f"GET /else?code=stolen&state={state} HTTP/1.1\r\n\r\n".encode(), b"404"),
        ]:
            assert (await said(port, data)).partition(b" ")[2].startswith(status)
        await said(port, b"GET /callback?" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n")
        assert session.mcp.servers()[0].state == "starting"
        assert far.of("/auth/token") == []
        assert await far.browse(person.shown[0][0]) == DONE
        await ready(session)


@pytest.mark.parametrize("issuer", ["http://auth.example.org", "file:///etc/passwd", "http://10.0.0.1/auth"])
async def test_a_server_cannot_send_the_sign_in_anywhere(far: FakeOAuthServer, issuer: str) -> None:
    far.issuer = issuer
    async with talk({"far": far}, mcp_login=far.person, clock=FakeClock()) as (session, _, _):
        found = await session.mcp.started("far", BOUND)
        assert found.state == "waiting"
        assert "not safe" in found.error or "failed" in found.error


@pytest.mark.parametrize(
    ("server", "page", "said"),
    [
        ("https://mcp.example.org/mcp", "http://as.example.org/go", "http://as.example.org"),
        ("https://mcp.example.org/mcp", "https://192.168.1.1/admin", "https://192.168.1.1"),
        ("https://mcp.example.org/mcp", "https://localhost./go", "https://localhost."),
        ("https://mcp.example.org/mcp", "https://2130706433/go", "https://127.0.0.1"),
        ("https://mcp.example.org/mcp", "https://as.example.org/go", ""),
        ("http://127.0.0.1/mcp", "http://localhost./go", ""),
    ],
)
async def test_nobody_is_shown_a_page_that_is_not_safe(server: str, page: str, said: str) -> None:
    shown: list[str] = []
    config = ServerConfig(name="far", type="http", url=server)

    def answer(request: httpx2.Request) -> httpx2.Response:
        path, base = request.url.path, server.removesuffix("/mcp")
        if path == "/mcp":
            return httpx2.Response(401)
        if "oauth-protected-resource" in path:
            return httpx2.Response(200, json={"resource": server, "authorization_servers": [base]})
        if "oauth-authorization-server" in path:
            found = {"issuer": base, "authorization_endpoint": page, "response_types_supported": ["code"]}
            ends = {"token_endpoint": f"{base}/token", "registration_endpoint": f"{base}/register"}
            return httpx2.Response(200, json={**found, **ends, "code_challenge_methods_supported": ["S256"]})
        return httpx2.Response(201, json={**json.loads(request.content), "client_id": "c"})

    async def login(url: str, name: str) -> None:
        shown.append(url)
        raise RuntimeError("it was shown")

    around = Surroundings(clock=FakeClock(), cwd="/", warn=lambda *_: None, login=login)
    auth = SignIn(config, around, Standing())
    async with httpx2.AsyncClient(auth=auth, transport=httpx2.MockTransport(answer)) as client:
        with pytest.raises(McpError, match=f"to go to {said}, which" if said else "it was shown"):
            await client.post(server, json={})
    assert len(shown) == (not said)


@pytest.mark.parametrize(
    "host", ["localhost.", "a.LOCALHOST", "127.1", "2130706433", "0x7f.1", "10.1", "[::1]"]
)
def test_spellings_of_our_own_network(host: str) -> None:
    server = ServerConfig(name="far", type="http", url="https://mcp.example.org/mcp")
    with pytest.raises(McpError, match="not safe"):
        _check_place(httpx2.URL(f"https://{host}/go"), server)
    _check_place(httpx2.URL("https://134744072/go"), server)  # 8.8.8.8


async def test_answers_to_the_sign_in_are_bounded_too(
    far: FakeOAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tertulia.tools.mcp.http.MAX_MESSAGE", 1_000_000)
    far.floods = True
    async with talk({"far": far}, mcp_login=far.person, default="ok", clock=FakeClock()) as (session, _, _):
        found = await session.mcp.started("far", BOUND)
        assert found.state == "waiting"
        assert (await session.prompt("go")).text == "ok"
