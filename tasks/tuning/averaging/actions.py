"""What `Rounds` asks of its caller, and the verdict on an update by its loss. No I/O."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ....transport.identity import PeerId
from .aggregate import VectorSource, Weighed, aggregate, vector_of
from .codecs import Vector
from .defaults import BESIDE_OWN, BESIDE_TOLERANCE, CLIPPED_NORM, LOSS_TOLERANCE
from .memory import SpareMemory
from .outer import OuterState, stepped
from .steps import Step
from .terms import RunTerms


def is_harmless(before: float, after: float, *, strict: bool, beside: bool = False) -> bool:
    """Return whether an update may be applied. `before` and `after` are the losses without it and
    with it: alone, or `beside` a peer's own update.

    An honest update may raise the loss a little by chance. With `strict` it may not: its author's
    earlier updates were refused.
    """
    if not math.isfinite(after):
        return False
    tolerance = 0.0 if strict else BESIDE_TOLERANCE if beside else LOSS_TOLERANCE
    return after <= before + tolerance * abs(before)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """An update that was found to decode. `good` is this peer's verdict by held-out loss, None if
    not judged yet."""

    source: VectorSource = field(repr=False)
    norm: float
    good: bool | None = None

    @property
    def vector(self) -> Vector:
        """The decoded update. Takes long if only its bytes are in memory."""
        return vector_of(self.source)


@dataclass(frozen=True, slots=True)
class FetchUpdate:
    """Fetch the update with this root from one of `peers`. Report by `decoded` or `unfetched`."""

    root: str
    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class FetchState:
    """Fetch the state after `step` from one of `peers`, which state this root. Report by `restored`
    or `unfetched`."""

    root: str
    step: Step
    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, eq=False)
class JudgeUpdate:
    """Compare the held-out losses without and with this update. Report by `judged`.

    `own` is what this peer has learned from the same state, or None if it has delivered nothing.
    `strict` is set if the author's earlier updates were refused: the loss must not rise.
    """

    root: str
    peer: PeerId  # its author
    state: OuterState
    update: Known
    strict: bool
    own: Known | None = None

    def without(self) -> Vector:
        """Return the values to which the update is compared. Takes long."""
        if self.own is None:
            return self.state.values
        values: Vector = self.own.vector * np.float32(1 - BESIDE_OWN)
        np.subtract(self.state.values, values, out=values)
        return values

    def with_it(self) -> Vector:
        """Return the values with the update, which is scaled down as in a step. Takes long."""
        if self.own is None:
            return self.state.values - self.update.vector
        clip = min(1.0, CLIPPED_NORM * self.own.norm / (self.update.norm or 1.0))
        values = self.without()
        values -= self.update.vector * np.float32(BESIDE_OWN * clip)
        return values

    def is_harmless(self, before: float, after: float) -> bool:
        """Return the verdict, from the losses without the update and with it."""
        return is_harmless(before, after, strict=self.strict, beside=self.own is not None)


@dataclass(frozen=True, slots=True, eq=False)
class ComputeState:
    """Compute the state after a step. Report by `computed`."""

    step: Step
    state: OuterState
    updates: Mapping[str, Known]

    def run(self, terms: RunTerms, memory: SpareMemory | None = None) -> OuterState:
        """Return the state. Takes long: about 0.1 s for 10 M values of four peers."""
        refused = {entry.peer: entry.refused for entry in self.step.entries}
        weighed = [
            Weighed(
                vector=self.updates[entry.root].source,
                norm=self.updates[entry.root].norm,
                tokens=entry.tokens,
                points=self.state.points.get(entry.peer, 0),
            )
            for entry in self.step.accepted
        ]
        mean = aggregate(weighed, trim=terms.trims, memory=memory)
        return stepped(self.state, mean, refused, terms.rule, memory)


@dataclass(frozen=True, slots=True)
class Sign:
    """Publish this peer's signature on a step."""

    step: Step


@dataclass(frozen=True, slots=True, eq=False)
class Adopted:
    """This peer now trains from `state`, after the step `head`. Report its root by `stated`.

    `included` says whether the steps that led here contain this peer's last update.
    """

    head: str
    state: OuterState
    included: bool


Action: TypeAlias = FetchUpdate | FetchState | JudgeUpdate | ComputeState | Sign | Adopted
