"""How blobs are named: by what they hold, so that a name can always be checked against the bytes."""

import hashlib

from ..records.errors import BlobMissing, StoreCorrupt

PREFIX = "blob_"


def ref_of(data: bytes) -> str:
    return PREFIX + hashlib.sha256(data).hexdigest()


def check(ref: str, data: bytes) -> bytes:
    """The data, or StoreCorrupt when it is not what the ref names."""
    if ref_of(data) != ref:
        raise StoreCorrupt(
            f"the bytes of {ref} are not those that were stored",
            hint="run `tertulia store check`; the records that refer to it can still be read",
            ref=ref,
        )
    return data


def missing(ref: str) -> BlobMissing:
    return BlobMissing(
        f"there is no blob {ref[:80]}", hint="it was erased, never stored, or collected before use", ref=ref
    )
