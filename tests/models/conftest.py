"""Each test that takes a `provider` runs once for every hosted one."""

import gc

import pytest

from tests.models.hosted_kit import MODELS, load_all


@pytest.fixture(params=MODELS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", autouse=True)
def _loaded() -> None:
    """The packages of the providers are there from the start, so that no collection after a test goes over them."""
    load_all()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither keys nor proxies of the machine take part."""
    for name in ("ANTHROPIC", "OPENAI", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
