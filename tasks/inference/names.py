"""Names of prefixes, by which stages find KV that they have computed before. No I/O.

A name stands for all tokens up to the end of one block of 16. It is a keyed hash (BLAKE2b) under a
secret of the gateway, so that a stage cannot find out by comparing names whether two gateways send
the same text. It does not hide the text itself: the first stage gets the token ids.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from ..engine.interface import NAME_BYTES, USER_BYTES
from ..engine.kv.blocks import BLOCK
from .messages import VEIL_BYTES

LAST: Final = 4


class PrefixNames:
    """Names of prefixes, and tags of users, under one secret of at most 64 bytes."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._last: dict[str, tuple[list[int], bytes]] = {}  # by root, the latest at the end

    def of(self, root: str, ids: Sequence[int]) -> bytes:
        """Return the concatenated names of the full blocks of a token sequence.

        `root` identifies the model, with its adapter. The last results for LAST models are kept,
        because a request needs the names of a prompt several times, and the next prompt often
        begins with the same tokens. The names of a long prompt take up to 40 ms.
        """
        known, names = self._last.pop(root, ([], b""))
        if known != ids:
            same = _common(known, ids) // BLOCK
            names = names[: same * NAME_BYTES]
            names, known = self.compute(root, ids, names), list(ids)
        self._last[root] = known, names
        if len(self._last) > LAST:
            del self._last[next(iter(self._last))]
        return names

    def compute(self, root: str, ids: Sequence[int], first: bytes = b"") -> bytes:
        """Return what `of` does. `first` are the names of the first blocks, if they are known."""
        names = [first]
        name = first[-NAME_BYTES:] or root.encode()
        for at in range(len(first) // NAME_BYTES * BLOCK, len(ids) - BLOCK + 1, BLOCK):
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


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at the beginning of two sequences are the same."""
    same, most = 0, min(len(one), len(other))
    while same < most:  # what is equal is found in halves, because slices are compared quickly
        half = same + (most - same + 1) // 2
        if one[same:half] == other[same:half]:
            same = half
        elif half - same == 1:
            break
        else:
            most = half - 1
    return same


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
