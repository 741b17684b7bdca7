"""Each test of this folder that takes a store runs on memory and on SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.session.kit import KINDS, store_of
from tests.session.stores import GatedStore


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GatedStore]:
    async with store_of(request.param, tmp_path) as made:
        yield made
