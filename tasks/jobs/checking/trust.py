"""Figures on claimants, from the rows that a node has checked and from those of other nodes.

The figures are facts in this node's `usage` feed, so they survive restarts and others can read
them. Trust is earned slowly and lost at once: one lie makes all earlier work count for nothing.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ....state.errors import BadFact, FeedFull
from ....state.service import State
from ....state.views.usage import CheckedWork, checked_fact, checked_key, peer_of_key, read_checked
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ..fairness import weight_of
from . import defaults
from .credits import credits_of

_KIND = "usage"


class Trust:
    """Figures on the claimants whose results a node has checked. `load` must be called first."""

    def __init__(self, host: Host, state: State, own: PeerId) -> None:
        self._host, self._state, self._own = host, state, own
        self.figures: dict[PeerId, CheckedWork] = {}
        self._unwritten: set[PeerId] = set()
        self._credits: Mapping[PeerId, float] = {}
        self._computed = -math.inf  # time at which the credits were computed

    def load(self) -> None:
        """Read this node's figures of earlier runs. The feed's facts must be known."""
        for key in self._state.keys(_KIND):
            with suppress(BadFact):
                peer, fact = peer_of_key(key), self._state.get(_KIND, key)
                if peer is not None and fact is not None:
                    self.figures.setdefault(peer, read_checked(fact))

    def share(self, claimant: PeerId) -> float:
        """Return the part of a claimant's rows that is to be recomputed.

        The part is large until enough rows were right. All rows are recomputed if another member
        says that the claimant lied. A false accusation has no other effect.
        """
        if any(work.wrong for _, work in self._state.views.usage.checks_of(claimant)):
            return 1.0
        known = self.figures.get(claimant)
        if known is None or known.rows < defaults.PROBATION:
            return defaults.PROBATION_SHARE
        return defaults.SHARE

    def is_liar(self, claimant: PeerId) -> bool:
        """Return whether a claimant has lied to this node lately."""
        known = self.figures.get(claimant)
        return (
            known is not None
            and known.wrong > 0
            and self._host.wall() - known.at < defaults.LIAR_TIME
        )

    def liars(self) -> tuple[PeerId, ...]:
        """Return the latest liars, as many as a new job names."""
        found = [peer for peer in self.figures if self.is_liar(peer)]
        found.sort(key=lambda peer: -self.figures[peer].at)
        return tuple(sorted(found[: defaults.LIARS_NAMED]))

    def note_right(self, claimant: PeerId, rows: int, seconds: float) -> None:
        """Record that `rows` of a piece of `seconds` were recomputed and are right."""
        known = self.figures.get(claimant, CheckedWork())
        self._note(
            claimant,
            replace(known, rows=known.rows + rows, ms=known.ms + round(1000 * max(seconds, 0.0))),
        )

    def note_lie(self, claimant: PeerId) -> None:
        """Note that a claimant has lied, and publish it."""
        known = self.figures.get(claimant, CheckedWork())
        self._note(claimant, CheckedWork(wrong=known.wrong + 1, at=int(self._host.wall())))
        self.write()

    def _note(self, claimant: PeerId, work: CheckedWork) -> None:
        self.figures[claimant] = work
        self._unwritten.add(claimant)
        self._computed = -math.inf
        while len(self.figures) > defaults.PEERS:  # liars are remembered longest
            least = min(self.figures, key=lambda peer: _worth(self.figures[peer]))
            del self.figures[least]
            self._unwritten.add(least)

    def write(self) -> None:
        """Publish the figures that have changed. If the feed is full, the next call tries again."""
        for peer in sorted(self._unwritten):
            work = self.figures.get(peer)
            fact = None if work is None else checked_fact(work)
            if fact is None and self._state.get(_KIND, checked_key(peer)) is None:
                self._unwritten.discard(peer)
                continue
            with suppress(FeedFull):
                self._state.set(_KIND, checked_key(peer), fact)
                self._unwritten.discard(peer)

    def weight(self, user: PeerId) -> float:
        """Return a user's share beside others: 1, or more if it has given checked work."""
        return weight_of(self.credit(user))

    def credit(self, user: PeerId) -> float:
        """Return the seconds of a user's work that count here: those that this node has checked, or
        that a member vouches for whose work it has checked."""
        now = self._host.now()
        if now - self._computed >= defaults.CREDIT_AGE:
            self._computed, self._credits = now, self._all_credits()
        return self._credits.get(user, 0.0)

    def _all_credits(self) -> Mapping[PeerId, float]:
        usage = self._state.views.usage
        own = {peer: work.ms / 1000 for peer, work in self.figures.items() if not work.wrong}
        vouched = {
            voucher: {peer: work.ms / 1000 for peer, work in usage.checked_by(voucher).items()}
            for voucher in own
        }
        liars = [peer for peer in self.figures if self.is_liar(peer)]
        found = credits_of(own, vouched)
        return found | dict.fromkeys(liars, 0.0)


def _worth(work: CheckedWork) -> tuple[int, int, int]:
    return work.wrong, work.ms, work.rows
