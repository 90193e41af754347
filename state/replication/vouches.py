"""The fact with the authors that an author vouches for, in its `member` feed.

Spec: docs/spec/state.md, Replication.
"""

from collections.abc import Iterable
from typing import Final

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.identity import KEY_BYTES
from .. import defaults

VOUCHES: Final = "vouches"
"""The key of the fact."""


def read_vouches(value: bytes | None) -> list[bytes]:
    """Return the public keys in the value of a fact `vouches`, which is a map with a list `keys`.

    Malformed keys are skipped. Returns no keys if the value is malformed or None.
    """
    if value is None:
        return []
    try:
        fields = decode(value, limit=defaults.FACT_BYTES)
    except Undecodable:
        return []
    keys = fields.get("keys") if isinstance(fields, dict) else None
    found = keys if isinstance(keys, list) else []
    return [key for key in found if type(key) is bytes and len(key) == KEY_BYTES]


def write_vouches(keys: Iterable[bytes]) -> dict[str, object]:
    """Return the value of a fact `vouches` with these public keys, at most AUTHOR_VOUCHED."""
    return {"keys": sorted(keys)[: defaults.AUTHOR_VOUCHED]}
