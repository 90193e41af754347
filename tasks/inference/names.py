"""Names of prefixes, by which stages find KV that they have computed before. No I/O.

A name stands for all tokens up to the end of one block of 16. It is a keyed hash (BLAKE2b) under a
secret of the gateway, so that a stage cannot find out by comparing names whether two gateways send
the same text. It does not hide the text itself: the first stage gets the token ids.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from ..engine.interface import NAME_BYTES, USER_BYTES
from ..engine.kv.blocks import BLOCK
from .messages import VEIL_BYTES


class PrefixNames:
    """Names of prefixes, and tags of users, under one secret of at most 64 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._last: tuple[str, Sequence[int], bytes] = "", (), b""

    def of(self, root: str, ids: Sequence[int]) -> bytes:
        """Return the concatenated names of the full blocks of a token sequence.

        `root` identifies the model, with its adapter. The last result is kept, because a request
        needs the names of a prompt several times, and those of a long prompt take up to 40 ms.
        """
        if self._last[0] != root or self._last[1] != ids:
            self._last = root, list(ids), self.compute(root, ids)
        return self._last[2]

    def compute(self, root: str, ids: Sequence[int]) -> bytes:
        names = []
        name = root.encode()
        for at in range(0, len(ids) - BLOCK + 1, BLOCK):
            block = struct.pack(f"<{BLOCK}I", *ids[at : at + BLOCK])
            name = blake2b(name + block, digest_size=NAME_BYTES, key=self._secret).digest()
            names.append(name)
        return b"".join(names)

    def user_tag(self, user: str) -> bytes:
        """Return the tag by which stages tell a user of this gateway from its other users.

        It says nothing else about the user. For "", it is empty.
        """
        if not user:
            return b""
        digest = blake2b(user.encode(), digest_size=USER_BYTES, key=self._secret, person=b"user")
        return digest.digest()

    def veil(self, session: bytes) -> bytes:
        """Return the secret with which the ends of a session's chain veil drafts."""
        return blake2b(session, digest_size=VEIL_BYTES, key=self._secret, person=b"veil").digest()


def names_behind(names: bytes, stages: Sequence[str]) -> bytes:
    """Return block names that also stand for the stages before this one, in their order.

    These stages compute the inputs. If one of them lies, only chains with the same stages find what
    came of it.
    """
    if not stages:
        return names
    key = blake2b("/".join(stages).encode()).digest()
    return b"".join(
        blake2b(names[at : at + NAME_BYTES], digest_size=NAME_BYTES, key=key).digest()
        for at in range(0, len(names), NAME_BYTES)
    )
