"""Steps of a run, the signatures on them, and the choice between steps that compete. No I/O.

Nothing is a lock. Each peer signs the steps that it has checked. A signature is never
withdrawn: a peer that follows another step adds a signature. So signatures are a set that only
grows, and the choice is a function of that set: from a common step, follow at each fork the side
that the most peers have signed, there or later; of equal sides, the one with the lowest id. Peers
that see the same signatures make the same choice, and each choice adds at most one signature, so
all peers agree once they see what the others have signed. Spec: docs/spec/averaging.md, Agreement.

Offers and signed steps are facts in members' feeds, whose values the functions at the end convert.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ....state.views.tuning import EntryFact, OfferFact, StepFact, offer_fact, step_fact
from ....transport.identity import PeerId, peer_id_of, public_key_of
from .defaults import MAX_PEERS, MAX_TOKENS, SIGNED, WINDOW
from .errors import BadUpdate

_GENESIS: Final = b"shoal/average/genesis/1"
_STEP: Final = b"shoal/average/step/1"
_REMEMBERED: Final = 2 * WINDOW * SIGNED  # signatures of one peer


@dataclass(frozen=True, slots=True)
class Offer:
    """A peer's statement that it has an update on the state after the step `base`.

    `root` is that of the blob with the encoded update.
    """

    round: int
    base: str  # 64 hex digits
    root: str  # 64 hex digits
    tokens: int  # on which it was trained


@dataclass(frozen=True, slots=True)
class PeerUpdate:
    """One peer's update in a step."""

    peer: PeerId
    root: str
    tokens: int
    refused: bool = False


@dataclass(frozen=True)
class Step:
    """An outer step: the updates that lead from one state to the next. Entries are by public key.

    `round` is the number of outer steps including this one.
    """

    run: str
    base: str  # id of the step before
    round: int
    entries: tuple[PeerUpdate, ...] = field(repr=False)

    def __post_init__(self) -> None:
        keys = [public_key_of(entry.peer) for entry in self.entries]
        if not 1 <= len(keys) <= MAX_PEERS or keys != sorted(set(keys)):
            raise ValueError("expected 1 to 64 updates by public key, one of each peer")
        if self.round < 1 or any(not 1 <= each.tokens <= MAX_TOKENS for each in self.entries):
            raise ValueError("the round or the tokens of a step are out of range")
        roots = {entry.root for entry in self.entries}
        if not self.accepted or len(roots) < len(keys):
            raise ValueError("expected an accepted update, and no update twice")

    @cached_property
    def id(self) -> str:
        """The hash of what the step consists of, in 64 hex digits."""
        hashed = hashlib.sha256(_STEP + bytes.fromhex(self.run) + bytes.fromhex(self.base))
        hashed.update(self.round.to_bytes(8))
        for each in self.entries:
            hashed.update(public_key_of(each.peer) + bytes.fromhex(each.root))
            hashed.update(each.tokens.to_bytes(8) + bytes([each.refused]))
        return hashed.hexdigest()

    @property
    def accepted(self) -> tuple[PeerUpdate, ...]:
        """The entries whose updates are applied."""
        return tuple(entry for entry in self.entries if not entry.refused)


def step_of(run: str, base: str, number: int, entries: Iterable[PeerUpdate]) -> Step:
    """Return a step with these entries, in the order of the peers' public keys."""
    ordered = sorted(entries, key=lambda entry: public_key_of(entry.peer))
    return Step(run, base, number, tuple(ordered))


def genesis(run: str) -> str:
    """Return the id that stands for the state before the first step of a run."""
    return hashlib.sha256(_GENESIS + bytes.fromhex(run)).hexdigest()


class Ledger:
    """The steps of one run, with the peers that have signed each, and the root of the state from
    which each peer trains."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._steps: dict[str, Step] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._signers: dict[str, set[PeerId]] = {}
        self.states: dict[PeerId, tuple[str, str]] = {}
        """By peer: the last step of which it stated the root of the state, and that root."""
        self._by_peer: dict[PeerId, OrderedDict[str, None]] = {}
        self._supporters: dict[str, frozenset[PeerId]] = {}  # computed since the last change
        self._ordered: dict[str, list[Step]] = {}  # the same

    def __contains__(self, step: str) -> bool:
        return step in self._steps

    def get(self, step: str) -> Step | None:
        """Return a step that at least one peer has signed, or None."""
        return self._steps.get(step)

    def sign(self, peer: PeerId, step: Step) -> bool:
        """Add a peer's signature on a step. Return whether it is new.

        Beyond a limit, a peer's signature replaces the oldest one of that peer.
        """
        if step.run != self._run or peer in self._signers.get(step.id, ()):
            return False
        mine = self._by_peer.setdefault(peer, OrderedDict())
        while len(mine) >= _REMEMBERED:
            self._unsign(peer, mine.popitem(last=False)[0])
        self._steps[step.id] = step
        self._children.setdefault(step.base, {})[step.id] = None
        self._signers.setdefault(step.id, set()).add(peer)
        mine[step.id] = None
        self._changed()
        return True

    def signers(self, step: str) -> frozenset[PeerId]:
        """Return the peers that have signed a step."""
        return frozenset(self._signers.get(step, ()))

    def state(self, peer: PeerId, step: str, root: str) -> None:
        """Note the root of the state from which a peer trains, and the step after which it comes.

        The last one of each peer counts.
        """
        if peer in self.states or len(self.states) < 4 * MAX_PEERS:
            self.states[peer] = step, root

    def stated(self, step: str) -> list[tuple[str, frozenset[PeerId]]]:
        """Return the roots of the state after a step, each with the signers that state it. The one
        of most comes first; of equally many, the lowest root."""
        found = dict[str, set[PeerId]]()
        for peer in sorted(self._signers.get(step, ())):
            of, root = self.states.get(peer, ("", ""))
            if of == step:
                found.setdefault(root, set()).add(peer)
        ordered = sorted(found, key=lambda root: (-len(found[root]), root))
        return [(root, frozenset(found[root])) for root in ordered]

    def supporters(self, step: str) -> frozenset[PeerId]:
        """Return the peers that have signed a step or one that follows it."""
        if step not in self._supporters:
            found, waiting = set[PeerId](), [step]
            while waiting:  # a step contains its base's hash, so there is no cycle
                each = waiting.pop()
                found.update(self._signers.get(each, ()))
                waiting.extend(self._children.get(each, ()))
            self._supporters[step] = frozenset(found)
        return self._supporters[step]

    def children(self, base: str) -> list[Step]:
        """Return the steps that follow a step, in the order of the choice."""
        if base not in self._ordered:
            support = {each: len(self.supporters(each)) for each in self._children.get(base, ())}
            order = sorted(support, key=lambda each: (-support[each], each))
            self._ordered[base] = [self._steps[each] for each in order]
        return self._ordered[base]

    def choose(self, start: str, allowed: Callable[[Step], bool]) -> list[Step]:
        """Return the chosen steps after `start`, of those that this peer may follow."""
        path = list[Step]()
        at = start
        while (step := next(filter(allowed, self.children(at)), None)) is not None:
            path.append(step)
            at = step.id
        return path

    def latest(self) -> dict[PeerId, Step]:
        """Return the step with the highest round that each peer has signed."""
        found = dict[PeerId, Step]()
        for peer, steps in self._by_peer.items():
            known = [self._steps[each] for each in steps]
            if known:
                found[peer] = max(known, key=lambda step: (step.round, step.id))
        return found

    def origin(self, step: Step) -> str:
        """Return the id of the earliest known ancestor's base."""
        while (before := self._steps.get(step.base)) is not None:
            step = before
        return step.base

    def prune(self, before: int) -> None:
        """Forget steps of rounds before `before`."""
        for each in [step for step in self._steps.values() if step.round < before]:
            for peer in sorted(self._signers[each.id]):
                self._by_peer[peer].pop(each.id, None)
                self._unsign(peer, each.id)

    def _changed(self) -> None:
        self._supporters.clear()
        self._ordered.clear()

    def _unsign(self, peer: PeerId, step: str) -> None:
        self._changed()
        signers = self._signers[step]
        signers.discard(peer)
        if not signers:
            gone = self._steps.pop(step)
            del self._signers[step]
            siblings = self._children[gone.base]
            del siblings[step]
            if not siblings:
                del self._children[gone.base]


def offer_of(fact: OfferFact) -> Offer:
    """Return the offer that a fact states."""
    return Offer(fact.round, fact.base, fact.root, fact.tokens)


def step_of_fact(run: str, fact: StepFact) -> Step:
    """Return the step that a fact signs. Raises BadUpdate `bad-step` if it is malformed."""
    try:
        entries = tuple(
            PeerUpdate(peer_id_of(each.key), each.root, each.tokens, each.refused)
            for each in fact.entries
        )
        return Step(run, fact.base, fact.round, entries)
    except ValueError as error:
        raise BadUpdate("bad-step", f"a signed step is malformed: {error}") from None


def fact_of_offer(offer: Offer) -> Mapping[str, object]:
    """Return the value of the fact with an offer."""
    return offer_fact(OfferFact(offer.round, offer.base, offer.root, offer.tokens))


def fact_of_step(step: Step) -> Mapping[str, object]:
    """Return the value of the fact with a signature on a step."""
    entries = tuple(
        EntryFact(public_key_of(each.peer), each.root, each.tokens, each.refused)
        for each in step.entries
    )
    return step_fact(StepFact(step.round, step.base, entries))


def places(step: Step) -> list[str]:
    """Return the keys at which a step may be signed. They are shared with the rounds that are a
    multiple of WINDOW away."""
    return [f"{step.round % WINDOW}/{place}" for place in range(SIGNED)]
