"""Search for how much of a chain a provider has, in few round trips. Sans-I/O.

A provider of one block has all blocks before it. So one request about 64 blocks, spread evenly
over the unknown part, narrows it to a 64th: two requests for 4,096 blocks, three for 262,144.
"""

from collections.abc import Sequence
from typing import Final

from .. import defaults

SHORT: Final = 8  # leading bytes of a name that a request contains
PROOF: Final = 8  # following bytes of the name, which the reply proves knowledge of
_NOTHING: Final = bytes(PROOF)


class PrefixSearch:
    """Search in the first `most` of `names`; `held` blocks are known to be at the provider."""

    def __init__(self, names: Sequence[bytes], most: int) -> None:
        self.held = 0
        self.rounds = 0
        """Number of replies."""
        self._names = names
        self._most = min(most, len(names))

    @property
    def done(self) -> bool:
        return self.held == self._most

    def _asked(self) -> list[int]:
        """Return the block numbers to ask about, from 1, ascending, up to the last unknown one."""
        span = self._most - self.held
        count = min(span, defaults.KV_ASKED)
        return [self.held + -(-span * n // count) for n in range(1, count + 1)]

    def question(self) -> bytes:
        """Return the payload of the next request: the first `SHORT` bytes of some names."""
        return b"".join(self._names[block - 1][:SHORT] for block in self._asked())

    def answered(self, proofs: bytes) -> bool:
        """Take the reply to `question`; return False if it proves that the provider lies.

        For each name the provider must return the next bytes or zeros, and the blocks that it
        claims must be a prefix.
        """
        asked = self._asked()
        if len(proofs) != PROOF * len(asked):
            return False
        there = []
        for number, block in enumerate(asked):
            proof = proofs[number * PROOF : (number + 1) * PROOF]
            if proof not in (_NOTHING, proof_of(self._names[block - 1])):
                return False
            there.append(proof != _NOTHING)
        first = there.index(False) if False in there else len(there)
        if any(there[first:]):
            return False
        self.rounds += 1
        self.held = asked[first - 1] if first else self.held
        if first < len(asked):
            self._most = asked[first] - 1
        return True


def proof_of(name: bytes) -> bytes:
    """Return the bytes that prove knowledge of a full name to a peer that sent its start."""
    return name[SHORT : SHORT + PROOF]


def answer(question: bytes, names: Sequence[bytes | None]) -> bytes:
    """Build the reply to a request, given the full name of each block that is held, or None."""
    assert len(question) == SHORT * len(names)
    return b"".join(_NOTHING if name is None else proof_of(name) for name in names)
