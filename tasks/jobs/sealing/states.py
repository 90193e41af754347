"""Sealing of the state of work that moves between nodes: the same bytes have the same envelope, so
a part that has not changed is stored and moved once. The cipher is AES-SIV (RFC 5297), which is
made for that. No I/O. Spec: docs/spec/sealing.md.
"""

from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..errors import Unsealable

_KEY_BYTES: Final = 64  # two AES-256 keys


class StateSeal:
    """Seal of the state of one job, for all that know one of `secrets`. The first one seals.

    `place` says of which job. It may be used by several threads.
    """

    extra = 16
    """Bytes that an envelope has more than its message."""

    def __init__(self, secrets: Sequence[bytes], place: bytes, words: str) -> None:
        self._keys = [AESSIV(_derived(secret, place)) for secret in secrets]
        self._place = place
        self._words = words

    def seal(self, data: bytes) -> bytes:
        """Encrypt a part of the state. Blocking. Raises Unsealable without a secret."""
        if not self._keys:
            raise Unsealable(f"the key of the group for {self._words} is not here", "no-key")
        return self._keys[0].encrypt(data, [self._place])

    def open(self, envelope: bytes) -> bytes:
        """Decrypt a part of the state. Blocking. Raises Unsealable if no secret opens it."""
        for key in self._keys:
            try:
                data = key.decrypt(envelope, [self._place])
            except InvalidTag:
                continue
            self._keys = [key, *(other for other in self._keys if other is not key)]
            return data  # the next parts of this state have the same key
        code = "bad-seal" if self._keys else "no-key"
        raise Unsealable(f"the state of {self._words} cannot be opened", code)


def _derived(secret: bytes, place: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=place).derive(secret)
