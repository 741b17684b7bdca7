"""The hosted providers there are, and what says which model of one is meant."""

from typing import Any

import msgspec

from .prices import Price


class Provider(msgspec.Struct, frozen=True):
    """`keys` are the environment variables that may hold its key; none: it needs no key."""

    extra: str
    package: str
    keys: tuple[str, ...] = ()
    base_url: str | None = None


PROVIDERS = {
    "anthropic": Provider("anthropic", "anthropic", ("ANTHROPIC_API_KEY",)),
    "openai": Provider("openai", "openai", ("OPENAI_API_KEY",)),
    "openai-chat": Provider("openai", "openai", ("OPENAI_API_KEY",)),
    "google": Provider("google", "google.genai", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "ollama": Provider("openai", "openai", base_url="http://localhost:11434/v1"),
}


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    model: str
    base_url: str | None
    headers: dict[str, str]
    settings: dict[str, Any]
    prices: dict[str, Price]

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"

    @property
    def origin(self) -> str:
        """Whose answers these are: what it signed is sent back to it and to nobody else."""
        return self.provider if self.base_url is None else f"{self.provider} {self.base_url}"
