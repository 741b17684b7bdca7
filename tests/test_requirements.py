"""The manifest is the specification's, byte for byte; `python -m gates requirements` compares it with the tests."""

import hashlib
from pathlib import Path

SPECIFICATION = "d5ecfcf726cd0db4491e0267e5826995f2964ea2b16cb9d6cc3b2ea70bd0fe56"


def test_the_manifest_is_the_specification() -> None:
    manifest = Path(__file__).with_name("requirements.toml").read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == SPECIFICATION
