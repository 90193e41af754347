"""Signatures that the hosts of a run check, each checked once.

A signed record or feed entry reaches every host, and each checks it. A check takes 0.1 ms of real
time and none of virtual time, and its result depends only on its input. All hosts of a run share
the results of valid checks. The code of the hosts is unaffected: it still calls `cryptography`.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

REMEMBERED: Final = 65_536  # valid signatures; each takes about 100 bytes

Load = Callable[[bytes], Ed25519PublicKey]
"""Loads a key from its 32 bytes. Raises ValueError if the number of bytes is wrong."""


class SharedKey:
    """Ed25519 public key of some host, whose `verify` remembers valid signatures."""

    __slots__ = ("_checks", "_raw")

    def __init__(self, checks: "SharedChecks", raw: bytes) -> None:
        self._checks = checks
        self._raw = raw

    def verify(self, signature: bytes, data: bytes) -> None:
        """Raise InvalidSignature unless this is the signature of `data`."""
        self._checks.verify(self._raw, bytes(signature), data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._checks.load(self._raw), name)


class SharedChecks:
    """Checks of signatures whose valid results are remembered. Invalid ones are checked again."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self._valid: set[bytes] = set()

    def key(self, raw: bytes) -> SharedKey | Ed25519PublicKey:
        """Return the key with these 32 bytes, in place of `Ed25519PublicKey.from_public_bytes`."""
        return SharedKey(self, raw) if len(raw) == 32 else self.load(raw)

    def verify(self, raw: bytes, signature: bytes, data: bytes) -> None:
        """Raise InvalidSignature unless `signature` is the signature of `data` by a key."""
        # The number keeps the signature and the data apart, whatever the length of either is.
        whole = b"%d %b%b%b" % (len(signature), raw, signature, data)
        mark = hashlib.sha256(whole).digest()
        if mark in self._valid:
            return
        self.load(raw).verify(signature, data)
        if len(self._valid) >= REMEMBERED:
            self._valid.clear()
        self._valid.add(mark)


def shared_checks() -> "classmethod[Ed25519PublicKey, [bytes], SharedKey | Ed25519PublicKey]":
    """Return a replacement of `Ed25519PublicKey.from_public_bytes`, for one run."""
    checks = SharedChecks(Ed25519PublicKey.from_public_bytes)

    def from_public_bytes(cls: type[Ed25519PublicKey], data: bytes) -> SharedKey | Ed25519PublicKey:
        return checks.key(data)

    return classmethod(from_public_bytes)
