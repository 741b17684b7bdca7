"""What the tests of signing in share."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tertulia.testing import FakeOAuthServer
from tests.mcp.kit import BOUND, talk

DONE = "You can close this window."


class Person:
    """Opens the page that is shown, unless `away`."""

    def __init__(self, fake: FakeOAuthServer, *, away: bool = False) -> None:
        self.fake = fake
        self.away = away
        self.shown: list[tuple[str, str]] = []

    async def __call__(self, url: str, server: str) -> None:
        self.shown.append((url, server))
        if not self.away:
            await self.fake.person(url, server)

    @property
    def asked(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.shown[-1][0]).query).items()}

    @property
    def port(self) -> int:
        """Where we listen."""
        return urlsplit(self.asked["redirect_uri"]).port or 0


async def sign_in(fake: FakeOAuthServer, folder: Path, **more: Any) -> None:
    config = {"far": {**fake.config, **more}}
    async with talk(config, mcp_auth_folder=folder, mcp_login=fake.person) as (session, _, _):
        found = await session.mcp.started("far", BOUND)
        assert (found.state, found.error) == ("ready", ""), found
    assert (await fake.pages())[-1] == DONE


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def stored(folder: Path) -> dict[str, Any]:
    [file] = files(folder)
    held: dict[str, Any] = json.loads(file.read_text())
    return held


def refreshes(fake: FakeOAuthServer) -> int:
    return sum(each.form["grant_type"] == "refresh_token" for each in fake.of("/auth/token"))
