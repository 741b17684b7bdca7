"""`tertulia mcp login` and `logout`, as processes: a person opens the page that they name."""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tertulia.testing import FakeOAuthServer
from tests.mcp.kit import BOUND

PAGE = re.compile(r"http://127\.0\.0\.1:\d+/auth/authorize\S+")


@pytest.fixture
async def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeOAuthServer]:
    monkeypatch.setenv("TERTULIA_HOME", str(tmp_path / "home"))
    async with FakeOAuthServer() as fake:
        assert (await tertulia("add", "far", fake.url))[0] == 0
        yield fake


async def tertulia(*typed: str, person: FakeOAuthServer | None = None, **more: str) -> tuple[int, str, str]:
    """Its exit code, what it printed, and what it said; the person opens the page that it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tertulia", "mcp", *typed), env={**os.environ, **more},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stdout is not None
    said = ""
    try:
        async with asyncio.timeout(BOUND):
            async for line in process.stderr:
                said += line.decode()
                if person is not None and (page := PAGE.search(line.decode())):
                    await person.person(page[0], "far")
            out = (await process.stdout.read()).decode()
            return await process.wait(), out, said
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_user_signs_in_and_out(far: FakeOAuthServer, tmp_path: Path) -> None:
    code, _, said = await tertulia("test", "far")
    assert (code, "far wants you to sign in (tertulia mcp login far)" in said) == (1, True)
    assert "signed in" not in (await tertulia("list"))[1]
    code, out, said = await tertulia("login", "--no-browser", "far", person=far)
    assert (code, out) == (0, "signed in to far\n")
    assert said.startswith("sign in to far on this page:\nhttp://127.0.0.1:")
    assert (await tertulia("list"))[1].endswith("/mcp  (signed in)\n")
    [row] = json.loads((await tertulia("list", "--json"))[1])["servers"]
    assert row["signed_in"] is True
    assert (await tertulia("test", "far"))[0] == 0
    [file] = (tmp_path / "home" / "mcp-auth").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_user_signs_out(far: FakeOAuthServer) -> None:
    await tertulia("login", "--no-browser", "far", person=far)
    code, out, _ = await tertulia("login", "--json", "far")
    assert json.loads(out) == {"name": "far", "signed_in": True, "asked": False}
    assert (await tertulia("logout", "far"))[:2] == (0, "signed out of far\n")
    assert (await tertulia("logout", "far"))[:2] == (0, "nothing is kept of far\n")
    assert (await tertulia("test", "far"))[0] == 1


async def test_the_browser_opens_the_page(far: FakeOAuthServer, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    code, _, said = await tertulia("login", "far", person=far, BROWSER=f"{browser} %s")
    assert code == 0
    assert (tmp_path / "opened").read_text() in said


async def test_a_user_who_says_no(far: FakeOAuthServer) -> None:
    far.denies = True
    code, out, said = await tertulia("login", "--no-browser", "--json", "far", person=far)
    assert code == 1
    assert "was refused: access_denied: no, thanks" in json.loads(out)["error"]["message"]
    assert "Traceback" not in said


async def test_where_there_is_nothing_to_sign_in_to(far: FakeOAuthServer, tmp_path: Path) -> None:
    await tertulia("add", "here", "prog")
    await tertulia("add", "--header", "Authorization=Bearer x", "given", far.url)
    for typed in (["login", "here"], ["login", "given"], ["login", "none"], ["logout", "none"]):
        code, out, said = await tertulia(*typed)
        assert (code, out, said.startswith("tertulia: ")) == (1, "", True)
    assert (await tertulia("login"))[0] == 2
    assert far.requests == []


async def test_a_damaged_file_is_told_and_replaced(far: FakeOAuthServer, tmp_path: Path) -> None:
    await tertulia("login", "--no-browser", "far", person=far)
    [file] = (tmp_path / "home" / "mcp-auth").iterdir()
    file.write_text("{")
    code, out, said = await tertulia("list")
    assert (code, "damaged" in said, "signed in" in out) == (0, True, False)
    assert (await tertulia("login", "--no-browser", "far", person=far))[0] == 0
