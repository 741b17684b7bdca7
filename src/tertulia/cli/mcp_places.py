"""Where the MCP servers of this user are written down, and what belongs to them."""

import os
from pathlib import Path
from typing import Any

from ..records.errors import ConfigError
from ..tools.mcp.config import read_servers


def config_file() -> Path:
    return _folder("XDG_CONFIG_HOME", ".config") / "mcp.json"


def log_folder() -> Path:
    return _folder("XDG_STATE_HOME", ".local/state") / "mcp"


def auth_folder() -> Path:
    """Below the data folder, which no tool is shown."""
    return _folder("XDG_DATA_HOME", ".local/share") / "mcp-auth"


def configured() -> dict[str, Any]:
    """The servers of this user, as `mcp_servers` takes them."""
    file = config_file()
    return read_servers(text_of(file), os.environ) if file.exists() else {}


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


def _folder(variable: str, otherwise: str) -> Path:
    if home := os.environ.get("TERTULIA_HOME"):
        return Path(home)
    return Path(os.environ.get(variable) or Path.home() / otherwise) / "tertulia"
