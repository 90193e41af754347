"""What all peers of a run agree on before they meet. No I/O.

The id of a run is the hash of its terms. So peers that start with other terms are in another run,
and no peer has to be asked. Spec: docs/spec/averaging.md, Runs.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from ....transport.message import pack
from .codecs import CODECS, Codec
from .defaults import MAX_VALUES
from .outer import OuterRule, state_bytes

_DOMAIN: Final = b"shoal/average/run/1"
DENSE_RULE: Final = OuterRule()
SPARSE_RULE: Final = OuterRule(1.0, 0.0)
"""The error feedback of the sparse codec takes the place of momentum."""


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Terms of a run.

    `name` is what its users call it. `subject` says what is trained, as bytes that the trainer
    defines: the model, the modules, the rank, or the weights at the start. `values` is the length
    of the averaged vector.
    """

    name: str
    subject: bytes = field(repr=False)
    values: int
    codec: Codec
    inner_steps: int  # of each peer between two outer steps
    patience: float = 60.0  # seconds from the first update of a round until it closes
    settle: float = 5.0  # seconds in which peers that closed differently may agree
    least: int = 1  # updates without which a round does not close

    def __post_init__(self) -> None:
        if not 1 <= self.values <= MAX_VALUES:
            raise ValueError(f"expected 1 to {MAX_VALUES} values")
        if not (0 < self.settle < self.patience < 86400 and self.inner_steps >= 1 <= self.least):
            raise ValueError("the times or counts of a run are out of range")

    @property
    def rule(self) -> OuterRule:
        """The outer optimiser."""
        return SPARSE_RULE if self.codec.name == "sparse" else DENSE_RULE

    @property
    def trims(self) -> bool:
        """Whether the highest and lowest values are left out when updates are aggregated."""
        return self.codec.name != "sparse"

    @property
    def update_bytes(self) -> int:
        """The exact bytes of one update."""
        return self.codec.size(self.values)

    @property
    def state_bytes(self) -> int:
        """The most bytes of one checkpoint."""
        return state_bytes(self.values)

    @property
    def id(self) -> str:
        """The id of the run, in 64 hex digits."""
        terms = [
            self.name,
            self.subject,
            self.values,
            CODECS.index(self.codec.name),
            self.codec.keep,
            self.inner_steps,
            round(self.patience * 1000),
            round(self.settle * 1000),
            self.least,
        ]
        return hashlib.sha256(_DOMAIN + pack(terms)).hexdigest()
