"""Drives `Placing` for one node: passes it the members' records, and publishes this node's aim.

The aim is part of the node's member record and is published before the layers are loaded, so other
nodes see it within a second. Shards are published as entries of feeds, which arrive later.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import trio

from ...state.directory import Directory
from ...state.membership.record import Aim, Rank
from ...transport.host.seam import Host
from ..defaults import BACKING_TIME, CLAIM_WAIT, PLACE_LOOK
from ..placement.coverage import LayerSizes, Span
from ..placement.demand import Backing
from ..placement.fleet import PlanModel
from ..placement.improve import PlanTerms, considered
from ..placement.links import links_between
from ..placement.placing import Facts, Moves, Placing, PlacingStep
from ..placement.plan import Place, plan

_JITTERS: Final = 256


class ModelStanding:
    """Place of one node in one model at a time.

    `memory` returns the number of bytes that the node offers for a model of these sizes, and
    `backing` the peers that its owner trusts.
    """

    def __init__(
        self,
        host: Host,
        directory: Directory,
        memory: Callable[[LayerSizes], int],
        backing: Callable[[], Backing],
    ) -> None:
        self._backing = backing
        self._evidence: tuple[float, Backing] | None = None
        self._host = host
        self._directory = directory
        self.moves = Moves()
        """Moves of this node to other layers and to other models."""
        self._memory = memory
        self._jitter: float | None = None
        self._facts: Facts | None = None
        self._seen: tuple[list[Place], PlanTerms] | None = None
        self._idle: PlacingStep | None = None  # the last step, if only news can change it
        self._said: Aim | None = None
        self._silent = False

    @property
    def root(self) -> str | None:
        """Root of the model about which the node decides, or None if there is none."""
        return self._facts.root if self._facts is not None else None

    def give_up(self) -> None:
        """Stop to decide about a model, and withdraw the aim."""
        self._facts = None
        self.say(None)

    def take_up(self, root: str, model: PlanModel) -> None:
        """Start to decide about a model of which the node has no layers yet."""
        if self._jitter is None:
            self._jitter = self._host.entropy(1)[0] / _JITTERS
        self._facts, self._model = Facts(root, model), model
        self._offered = self._memory(model.sizes)
        self._placing = Placing(self._directory.own().peer, self._offered, self._jitter, self.moves)
        self._seen = None

    async def next_span(self) -> Span | None:
        """Wait until this node should load layers that it does not hold, and return them.

        Returns None if none of them fits. Decides at once, and again after each change of the
        directory.
        """
        while True:
            version = self._directory.version
            step = await self._look()
            if step.load or step.span is None:
                return step.span
            pause = PLACE_LOOK[step.rank >= Rank.HOLDS]
            with trio.move_on_after(max(0.0, step.wake - self._host.now())):
                await self._directory.changed(version)
                await trio.sleep(pause)

    async def _look(self) -> PlacingStep:
        """Decide from the current member records, publish the aim, and return the step."""
        facts = self._facts
        assert facts is not None
        now, members = self._host.now(), self._directory.members()
        backing, own = self._backed(now), self._directory.own().peer
        others = facts.places(members.values(), own, now, backing.slower)
        terms = self._terms(others, backing, now)
        if (others, terms) == self._seen and self._idle is not None:
            return self._idle
        with trio.CancelScope(shield=True):  # if cancelled, a decision to load would be lost
            step = await self._host.offload(
                self._placing.look, now, self._model.sizes, others, terms
            )
        if self._facts is not facts:  # the model was given up meanwhile
            return step
        if step.span is not None:
            self.say(self._aim(facts.root, self._model.sizes, step.span, step.rank))
        self._seen = others, terms
        self._idle = None if step.load or step.wake < inf else step
        return step

    def _backed(self, now: float) -> Backing:
        """Return the evidence, which is collected again every BACKING_TIME seconds at most: that
        takes milliseconds of the event loop."""
        if self._evidence is None or now >= self._evidence[0] + BACKING_TIME:
            self._evidence = now, self._backing()
        return self._evidence[1]

    def _terms(self, others: Sequence[Place], backing: Backing, now: float) -> PlanTerms:
        """Return what a plan by speed needs to know, from the current member records."""
        assert self._facts is not None
        members, own = self._directory.members(), self._directory.own()
        counted = [members[place.peer] for place in considered(others)]
        return PlanTerms(
            self._model,
            links_between((*counted, own)),
            rates=self._facts.rates(own),
            steady=self._facts.steady(backing.trusted, now),
        )

    async def claim_other(self, root: str, sizes: LayerSizes) -> Span | None:
        """Publish a claim on layers of another model, and wait for competing claims.

        Returns the layers, or None if none fits.
        """
        now, own = self._host.now(), self._directory.own().peer
        others = Facts(root).places(self._directory.members().values(), own, now)
        seeking = Place(own, self._memory(sizes), None, Rank.SEEKS)
        planned = await self._host.offload(plan, sizes, (*others, seeking))
        span = planned.spans.get(own)
        if span is not None:
            self.say(self._aim(root, sizes, span, Rank.CLAIMS))
            await trio.sleep(CLAIM_WAIT)
        return span

    def hold(self, root: str, model: PlanModel, span: Span, rank: Rank = Rank.HOLDS) -> None:
        """Set and publish the layers that this node holds."""
        if self._facts is None or self._facts.root != root:
            self.take_up(root, model)
        self._placing.hold(span)
        self._seen = None
        self.say(self._aim(root, model.sizes, span, rank))

    def _aim(self, root: str, sizes: LayerSizes, span: Span, rank: Rank) -> Aim:
        """Return an aim. It says how much memory is offered unless that is all of the node's."""
        memory, whole = self._memory(sizes), self._directory.own().capacity.memory_bytes
        return Aim(root, *span, rank, 0 if memory >= whole else memory)

    def say(self, aim: Aim | None) -> None:
        """Publish what this node seeks, claims or holds in this place (None: nothing)."""
        aims = self._directory.own().aims
        others = tuple(other for other in aims if other != self._said)
        following = others if aim is None else (*others, aim)
        if not self._silent and following != aims:
            self._said = aim
            self._directory.publish(aims=following)

    def leave(self) -> None:
        """Withdraw the aim and publish no other, because this node is stopping."""
        self.say(None)
        self._silent = True
