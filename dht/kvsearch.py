"""How much of a chain a holder has, in few questions. Sans-I/O.

Whoever holds a block of a chain holds all before it, so one question about 64 blocks spread over
what is not known yet leaves a 64th of it: two for a chain of 4,096 blocks, three for 262,144.
"""

from collections.abc import Sequence
from typing import Final

from . import defaults

SHORT: Final = 8  # bytes of a name that are asked about
PROOF: Final = 8  # bytes of it after those, which only who knows the name can answer
_NOTHING: Final = bytes(PROOF)


class PrefixSearch:
    """`held` of the first `most` blocks in `names` are there, as far as the holder's word goes."""

    def __init__(self, names: Sequence[bytes], most: int) -> None:
        self.held = 0
        self.rounds = 0
        """Questions answered."""
        self._names = names
        self._most = min(most, len(names))

    @property
    def done(self) -> bool:
        return self.held == self._most

    def _asked(self) -> list[int]:
        """Numbers of blocks, counted from 1, rising; the last one that is not known among them."""
        span = self._most - self.held
        count = min(span, defaults.KV_ASKED)
        return [self.held + -(-span * n // count) for n in range(1, count + 1)]

    def question(self) -> bytes:
        """What to ask: the beginnings of names."""
        return b"".join(self._names[block - 1][:SHORT] for block in self._asked())

    def answered(self, proofs: bytes) -> bool:
        """Take the answer to `question`; False where it shows that the holder lies.

        Of each name it must know the rest, or say nothing; and what it has begins at the beginning.
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
    """What shows that somebody knows a whole name of which they were told the beginning."""
    return name[SHORT : SHORT + PROOF]


def answer(question: bytes, names: Sequence[bytes | None]) -> bytes:
    """The answer to a question, given each name that is held, or None."""
    assert len(question) == SHORT * len(names)
    return b"".join(_NOTHING if name is None else proof_of(name) for name in names)
