"""Choices of one node by predicted speed: its first layers, and later a move to others.

No I/O. Predictions take up to a second, so results are reused while the facts stay the same.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from ...state.membership.record import Rank
from ...transport.identity import PeerId
from ..defaults import FASTER_LOOK
from .coverage import Span
from .improve import BetterMove, PlanTerms, addition, better_move, divided, is_safe
from .plan import Place, has_chain

Divide = Callable[[PlanTerms, Sequence[Place]], Mapping[PeerId, Span]]
Better = Callable[[PlanTerms, Sequence[Place]], BetterMove | None]


class SpeedChoices:
    """Choices by speed of one node in one model, with what they were made from.

    `divide` and `better` predict; the simulator supplies ones that remember their results for all
    nodes together.
    """

    def __init__(self, divide: Divide = divided, better: Better = better_move) -> None:
        self._divide = divide
        self._better_move = better
        self._first: tuple[object, Span | None] | None = None
        self.looked_at = -inf
        self._looked_for: object = None
        self._better: tuple[Span, float] | None = None  # (layers, since when they are better)

    def chosen(self, terms: PlanTerms, others: Sequence[Place], own: Place) -> Span | None:
        """Return the layers that a node without layers should take for the sake of speed, or None.

        If no node has layers yet, all nodes divide the model among themselves. If a chain of nodes
        already serves the whole model, this node takes the layers that add most speed.
        """
        held = [place for place in others if place.span is not None and place.rank >= Rank.HOLDS]
        served = has_chain(terms.model.sizes.layers, (place.span for place in held if place.span))
        if held and not served:
            return None
        counted = held if served else others
        key = (
            served,
            terms.links,
            [(p.peer, p.memory, p.span if served else None, p.rates) for p in counted],
        )
        if self._first is None or self._first[0] != key:
            if served:
                span = addition(terms, held, own)
            else:
                span = self._divide(terms, (*others, own)).get(own.peer) if others else None
            self._first = key, span
        return self._first[1]

    def faster(
        self, now: float, terms: PlanTerms, places: Sequence[Place], own: Place, late: float
    ) -> tuple[Span | None, float]:
        """Return (layers with which this node makes the model faster, time at which it may claim
        them), or (None, time of the next look).

        The layers must have been better for `late` seconds. The next look is never if only other
        facts can change the result.
        """
        facts = terms.links, list(places)
        if self._looked_for != facts:
            if now < self.looked_at + FASTER_LOOK:
                return None, self.looked_at + FASTER_LOOK
            self._look(now, terms, places, own)
            self._looked_for = facts
        if self._better is None:
            return None, inf
        if not is_safe(terms, places, own.peer):
            return None, now + FASTER_LOOK
        return self._better[0], self._better[1] + late

    def _look(self, now: float, terms: PlanTerms, places: Sequence[Place], own: Place) -> None:
        """Look for a move that makes the model faster, and note since when there is one."""
        self.looked_at = now
        move = self._better_move(terms, places)
        if move is None or move.peer != own.peer:
            self._better = None
        elif self._better is None or self._better[0] != move.span:
            self._better = move.span, now
