"""Search for how many chunks of a chain a provider has, in few round trips. No I/O.

A provider that has a chunk has all chunks before it. A request about 64 chunks that are spread
evenly over the unknown part therefore reduces this part to a 64th. Two requests are enough for
4,096 chunks, and three for 262,144.
"""

from collections.abc import Sequence
from typing import Final

from .. import defaults

SHORT: Final = 8  # leading bytes of a tag that a request contains
PROOF: Final = 8  # next bytes of the tag, with which a reply proves that its sender knows the tag
_NOTHING: Final = bytes(PROOF)


class PrefixSearch:
    """Search for the prefix of a chain that one provider has.

    `tags` are the chunks of the chain, of which only the first `most` are considered. `held` is
    the number of leading chunks that the provider is known to have.
    """

    def __init__(self, tags: Sequence[bytes], most: int) -> None:
        self.held = 0
        self.rounds = 0
        """Number of replies so far."""
        self._tags = tags
        self._most = min(most, len(tags))

    def __len__(self) -> int:
        """Return the number of chunks of the whole chain."""
        return len(self._tags)

    @property
    def done(self) -> bool:
        """Whether the length of the provider's prefix is known."""
        return self.held == self._most

    def _asked(self) -> list[int]:
        """Return the numbers of the chunks to ask about next, in ascending order.

        The first chunk of the chain has number 1. The last number is that of the last unknown
        chunk.
        """
        span = self._most - self.held
        count = min(span, defaults.KV_ASKED)
        return [self.held + -(-span * n // count) for n in range(1, count + 1)]

    def question(self) -> bytes:
        """Return the payload of the next request: the first `SHORT` bytes of some chunks' tags."""
        return b"".join(self._tags[chunk - 1][:SHORT] for chunk in self._asked())

    def answered(self, proofs: bytes) -> bool:
        """Process the reply to the latest request.

        Return False if it proves that the provider lies. For each chunk in the request, `proofs`
        has either the bytes that follow in its tag, or zeros if the provider does not have the
        chunk. The chunks that the provider claims to have must be a prefix of those in the request.
        """
        asked = self._asked()
        if len(proofs) != PROOF * len(asked):
            return False
        there = []
        for number, chunk in enumerate(asked):
            proof = proofs[number * PROOF : (number + 1) * PROOF]
            if proof not in (_NOTHING, proof_of(self._tags[chunk - 1])):
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


def proof_of(tag: bytes) -> bytes:
    """Return the bytes that prove knowledge of a tag to a peer that sent the beginning of it."""
    return tag[SHORT : SHORT + PROOF]


def answer(question: bytes, tags: Sequence[bytes | None]) -> bytes:
    """Return the reply to a request.

    `tags` has, for each chunk in the request, its full tag, or None if this node does not have
    it.
    """
    assert len(question) == SHORT * len(tags)
    return b"".join(_NOTHING if tag is None else proof_of(tag) for tag in tags)
