"""From names to hosted models: keys, missing packages, and what an import costs."""

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from tertulia.models import names
from tertulia.models.hosted import PROVIDERS, HostedModel
from tertulia.records.errors import ConfigError, InvalidInput, MissingExtra
from tests.models.hosted_kit import KEY


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_name_is_a_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in PROVIDERS[name].keys:
        monkeypatch.setenv(variable, KEY)
    model = names.resolve(f"{name}:some-model:7b")
    assert isinstance(model, HostedModel)
    assert model.name == f"{name}:some-model:7b"
    assert KEY not in repr(model)


@pytest.mark.parametrize("name", ["anthropic", "openai", "openai-chat", "google"])
def test_a_missing_key_is_named(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        names.resolve(f"{name}:some-model")
    for variable in PROVIDERS[name].keys:
        assert variable in str(caught.value)


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_google_has_two_variables(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, KEY)
    assert HostedModel("google", "gemini")._key == KEY


def test_a_key_of_the_environment_goes_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert HostedModel("openai-chat", "x", base_url="http://127.0.0.1:1234/v1")._key != KEY
    assert HostedModel("openai-chat", "x", base_url="http://127.0.0.1:1234/v1", api_key=KEY)._key == KEY


@pytest.mark.parametrize("name", ["anthropic:", "nobody:x", "anthropic"])
def test_half_a_name_is_none(name: str) -> None:
    with pytest.raises(InvalidInput):
        names.resolve(name)


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(InvalidInput, match="anthropic"):
        HostedModel("nobody", "x")


@pytest.mark.parametrize("missing", ["pydantic_ai", "own"])
@pytest.mark.parametrize("name", PROVIDERS)
def test_a_missing_package_names_the_extra(name: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = PROVIDERS[name].package if missing == "own" else missing
    find = importlib.util.find_spec

    def found(package: str, *args: Any) -> ModuleSpec | None:
        if package == absent:
            if "." in package:
                raise ModuleNotFoundError(package)
            return None
        return find(package, *args)

    monkeypatch.setattr("tertulia.models.hosted.find_spec", found)
    with pytest.raises(MissingExtra) as caught:
        HostedModel(name, "x", api_key=KEY)
    assert f"pip install 'tertulia[{PROVIDERS[name].extra}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_of_the_providers_is_imported_before_use() -> None:
    code = (
        "import sys, tertulia, tertulia.models.names, tertulia.testing\n"
        "from tertulia.models.hosted import HostedModel\n"
        "HostedModel('anthropic', 'x', api_key='k')\n"
        "heavy = {'pydantic_ai', 'pydantic', 'anthropic', 'openai', 'google.genai', 'httpx2', 'httpx'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
