"""Search for how many blocks of a chain a provider has, in few round trips. No I/O.

A provider that has a block has all blocks before it. A request about 64 blocks that are spread
evenly over the unknown part therefore reduces this part to a 64th. Two requests are enough for
4,096 blocks, and three for 262,144.
"""

from collections.abc import Sequence
from typing import Final

from .. import defaults

SHORT: Final = 8  # leading bytes of a name that a request contains
PROOF: Final = 8  # next bytes of the name, with which a reply proves that its sender knows the name
_NOTHING: Final = bytes(PROOF)


class PrefixSearch:
    """Search for the prefix of a chain that one provider has.

    `names` are the blocks of the chain, of which only the first `most` are considered. `held` is
    the number of leading blocks that the provider is known to have.
    """

    def __init__(self, names: Sequence[bytes], most: int) -> None:
        self.held = 0
        self.rounds = 0
        """Number of replies so far."""
        self._names = names
        self._most = min(most, len(names))

    @property
    def done(self) -> bool:
        """Whether the length of the provider's prefix is known."""
        return self.held == self._most

    def _asked(self) -> list[int]:
        """Return the numbers of the blocks to ask about next, in ascending order.

        The first block of the chain has number 1. The last number is that of the last unknown
        block.
        """
        span = self._most - self.held
        count = min(span, defaults.KV_ASKED)
        return [self.held + -(-span * n // count) for n in range(1, count + 1)]

    def question(self) -> bytes:
        """Return the payload of the next request: the first `SHORT` bytes of some blocks' names."""
        return b"".join(self._names[block - 1][:SHORT] for block in self._asked())

    def answered(self, proofs: bytes) -> bool:
        """Process the reply to the latest request.

        Return False if it proves that the provider lies. For each block in the request, `proofs`
        has either the bytes that follow in its name, or zeros if the provider does not have the
        block. The blocks that the provider claims to have must be a prefix of those in the request.
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
    """Return the bytes that prove knowledge of a name to a peer that sent the beginning of it."""
    return name[SHORT : SHORT + PROOF]


def answer(question: bytes, names: Sequence[bytes | None]) -> bytes:
    """Return the reply to a request.

    `names` has, for each block in the request, its full name, or None if this node does not have
    it.
    """
    assert len(question) == SHORT * len(names)
    return b"".join(_NOTHING if name is None else proof_of(name) for name in names)
