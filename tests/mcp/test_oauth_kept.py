"""What is kept of a sign-in: for one address, for one user, and shown to nobody."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tertulia import Session
from tertulia.records.errors import ConfigError
from tertulia.testing import FakeClock, FakeOAuthServer, call
from tests.mcp.kit import BOUND, results, talk, warnings
from tests.mcp.oauth_kit import files, sign_in


async def test_a_token_never_goes_to_another_address(far: FakeOAuthServer, tmp_path: Path) -> None:
    await sign_in(far, tmp_path)
    [file] = files(tmp_path)
    async with FakeOAuthServer() as other:
        async with talk({"far": other}, mcp_auth_folder=tmp_path, clock=FakeClock()) as (session, _, _):
            assert "wants you to sign in" in (await session.mcp.started("far", BOUND)).error
        await sign_in(other, tmp_path)
        [second] = [each for each in files(tmp_path) if each != file]
        second.write_bytes(file.read_bytes())  # as if somebody had swapped them
        async with talk({"far": other}, mcp_auth_folder=tmp_path, clock=FakeClock()) as (session, _, _):
            assert "damaged" in (await session.mcp.started("far", BOUND)).error
        assert not {each.token for each in other.requests} & far.valid - other.valid


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"url": 1}', b"\xff" * 10, b"x" * 2_000_000, b'{"url": "URL", "tokens": {"a": 1}}'],
)
async def test_a_damaged_file_costs_a_sign_in_and_no_more(
    far: FakeOAuthServer, tmp_path: Path, content: bytes
) -> None:
    await sign_in(far, tmp_path)
    [file] = files(tmp_path)
    file.write_bytes(content.replace(b"URL", far.url.encode()))
    async with talk({"far": far}, default="ok", mcp_auth_folder=tmp_path, clock=FakeClock()) as (
        session,
        _,
        _,
    ):
        found = await session.mcp.started("far", BOUND)
        assert found.error.startswith("what is kept of the sign-in to far is damaged (sign in again: ")
        assert (await session.prompt("go")).text == "ok"
    await sign_in(far, tmp_path)


async def test_a_file_that_is_none_of_ours_is_refused(far: FakeOAuthServer, tmp_path: Path) -> None:
    folder = tmp_path / "auth"
    await sign_in(far, folder)
    [file] = files(folder)
    file.chmod(0o644)
    async with talk({"far": far}, mcp_auth_folder=folder) as (session, _, _):
        assert (await session.mcp.started("far", BOUND)).state == "ready"
    assert file.stat().st_mode & 0o777 == 0o600
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    async with talk({"far": far}, mcp_auth_folder=folder, clock=FakeClock()) as (session, _, _):
        assert "is a symbolic link" in (await session.mcp.started("far", BOUND)).error
    file.unlink()
    os.mkfifo(file)
    async with talk({"far": far}, mcp_auth_folder=folder, clock=FakeClock()) as (session, _, _):
        assert "is no file" in (await session.mcp.started("far", BOUND)).error


async def test_a_folder_that_others_write_to_keeps_nothing(far: FakeOAuthServer, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    options = {"mcp_auth_folder": tmp_path, "mcp_login": far.person}
    async with talk({"far": far}, **options) as (session, _, seen):
        assert (await session.mcp.started("far", BOUND)).state == "ready"  # for as long as it lives
        await seen.wait_for("warning")
        assert any("others can write" in each for each in warnings(seen, "mcp"))
    assert files(tmp_path) == []


async def test_tools_do_not_see_what_is_kept(far: FakeOAuthServer, tmp_path: Path) -> None:
    folder = tmp_path / "auth"
    await sign_in(far, folder)
    [file] = files(folder)
    script = [[call("read", path=f"auth/{file.name}")], "ok"]
    options: dict[str, Any] = {"tools": "default", "cwd": tmp_path, "mcp_auth_folder": folder}
    async with talk({"far": far}, *script, **options) as (session, _, _):
        await session.prompt("go")
        [(_, status, text)] = await results(session)
        assert (status, "access-" in text) == ("error", False)


async def test_secrets_are_nowhere_but_in_the_file(
    far: FakeOAuthServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    script = [[call("echo")], "ok", [call("echo")], "ok"]
    oauth = {"client_id": "ours", "client_secret": "secret-of-ours"}
    far.clients = {"ours": "secret-of-ours"}
    config = {"far": {**far.config, "oauth": oauth, "headers": {"X-Key": "secret-of-header"}}}
    told: list[str] = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        far.status = (
            200 if folder.name == "a" else 400
        )  # the second one ends in an error of the token endpoint
        options: dict[str, Any] = {"mcp_auth_folder": folder, "mcp_login": far.person, "clock": FakeClock()}
        async with talk(config, *script, **options) as (session, _, seen):
            found = await session.mcp.started("far", BOUND)
            await session.prompt("go")
            far.revoke(refresh=True)
            await session.prompt("go")
            told += [
                str(found),
                str(session.mcp.servers()),
                str(seen.events),
                str(await session.transcript()),
            ]
            told += [repr(each) for each in session.mcp._pool.connections] if session.mcp._pool else []
    assert "/auth/token" in caplog.text  # what was sent is logged, but not with what
    told.append(caplog.text)
    for secret in ("access-", "refresh-", "code-", "secret-of-"):
        assert not [text for text in told if secret in text]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"client_secret": "x"}, "without a client_id"),
        ({"callback_port": 70_000}, "70000"),
        ({"scope": 'a"b'}, "scope"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_a_wrong_configuration_is_told(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        await Session.open(mcp_servers={"far": {"url": "https://example.org/mcp", "oauth": more}})


async def test_one_way_to_say_who_we_are() -> None:
    headers = {"authorization": "Bearer x"}
    with pytest.raises(ConfigError, match="beside other credentials"):
        await Session.open(mcp_servers={"far": {"url": "https://a.org", "headers": headers, "oauth": {}}})
    with pytest.raises(ConfigError, match="needs a url"):
        await Session.open(mcp_servers={"far": {"command": "x", "oauth": {}}})


async def test_a_token_of_the_configuration_is_all_that_is_sent(far: FakeOAuthServer) -> None:
    config = {"far": {**far.config, "headers": {"Authorization": "Bearer static"}}}
    async with talk(config, mcp_login=far.person, clock=FakeClock()) as (session, _, _):
        assert (await session.mcp.started("far", BOUND)).state == "waiting"
        assert {(each.path, each.token) for each in far.requests} == {("/mcp", "static")}
