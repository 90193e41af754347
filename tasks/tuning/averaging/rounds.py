"""One peer's view of a run: updates on offer, its verdicts on them, and which step to take next.

No I/O and no heavy computation: `poll` returns what is to be done, and the caller reports back. A
round passes through these stages at each peer: updates are offered, fetched and judged; the round
closes when all peers that took part in the last one have delivered, or `patience` after the first
offer; the peer signs one step; it takes the step that most peers have signed, once they are a
majority or `settle` seconds have passed. Spec: docs/spec/averaging.md, Rounds.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....transport.identity import PeerId, public_key_of
from .actions import (
    Action,
    Adopted,
    ComputeState,
    FetchState,
    FetchUpdate,
    JudgeUpdate,
    Known,
    Sign,
)
from .aggregate import lower_median
from .defaults import (
    MAX_PEERS,
    MAX_TOKENS,
    REFUSED_NORM,
    RETRY_SECONDS,
    STATES_KEPT,
    WINDOW,
)
from .errors import BadUpdate
from .outer import OuterState
from .steps import Ledger, Offer, PeerUpdate, Step, genesis, step_of
from .terms import RunTerms


@dataclass(slots=True, eq=False)
class _Computed:
    state: OuterState
    root: str


class Rounds:
    """One peer's part in a run.

    Inputs are the methods with a fact or a result. `poll` returns the actions that are due, each of
    them once.
    """

    def __init__(
        self, terms: RunTerms, own: PeerId, start: OuterState, head: str | None = None
    ) -> None:
        """`start` is the state after the step `head` (None: before the first step)."""
        self.terms = terms
        self.own = own
        self.ledger = Ledger(terms.id)
        self.head = self._anchor = head or genesis(terms.id)
        self.refusals: dict[str, BadUpdate] = {}
        """By root of an update or id of a step: why it was refused."""
        self.diverged: str | None = None
        """The last step after which most signers had another state than this peer. It then fetches
        theirs."""
        self._states: OrderedDict[str, _Computed] = OrderedDict({self.head: _Computed(start, "")})
        self._offers: dict[PeerId, Offer] = {}
        self.updates: dict[str, Known] = {}
        """The updates that decode, by root."""
        self._opened: float | None = None
        self._asked: dict[str, float] = {}  # by what was requested: when it may be requested again
        self._malformed: set[str] = set()  # updates that do not decode
        self._vain: set[str] = set()  # updates that could not be fetched
        self._judging: set[str] = set()
        self._signed_at: dict[str, float] = {}
        self._own_root = ""
        self._here = {own}
        self.departed = set[PeerId]()
        """Volunteers that have said that they leave."""
        self._closing = False
        self._proposal: Step | None = None
        self._rejoin: Step | None = None

    # For the trainer and the shell.

    @property
    def state(self) -> OuterState:
        """The state from which this peer trains."""
        return self._states[self.head].state

    @property
    def root(self) -> str:
        """The root of that state's checkpoint, or "" if it was not reported yet."""
        return self._states[self.head].root

    @property
    def computed_states(self) -> Mapping[str, OuterState]:
        """The states that this peer has computed or fetched, by the roots of their checkpoints."""
        return {each.root: each.state for each in self._states.values() if each.root}

    def stated(self, peer: PeerId, step: str, root: str) -> None:
        """Record the root of the state from which a peer trains, which comes after `step`.

        Other peers may fetch the state that this peer reports of itself.
        """
        if peer == self.own:
            if step not in self._states:
                return
            self._states[step].root = root
        self.ledger.state(peer, step, root)

    def roster(self, base: str) -> frozenset[PeerId]:
        """Return the peers that take part in the round after the step `base`: those that signed
        the step, those with an update, and those that signed a next step."""
        found = set(self.ledger.signers(base))
        if base == genesis(self.terms.id):
            found |= self._here
        for step in self.ledger.children(base):
            found |= self.ledger.signers(step.id)
        found |= {peer for peer, offer in self._offers.items() if offer.base == base}
        return frozenset(found)

    def closes_at(self) -> float | None:
        """Return when the current round closes at the latest, or None if no update is offered."""
        return None if self._opened is None else self._opened + self.terms.patience

    def live_roots(self) -> set[str]:
        """Return the roots of the updates that may still be needed."""
        return set(self.updates)

    # Facts of peers.

    def here(self, peer: PeerId) -> None:
        """Record that a peer takes part. The first round waits for it."""
        self.departed.discard(peer)
        if len(self._here) < MAX_PEERS:
            self._here.add(peer)

    def left(self, peer: PeerId) -> None:
        """Record that a peer no longer takes part. No round waits for it.

        Its signatures still count, and majorities still count it as a peer. Otherwise peers that
        sign and leave could be a majority of those that stay.
        """
        self._here.discard(peer)
        if len(self.departed) < 4 * MAX_PEERS:
            self.departed.add(peer)

    def offered(self, peer: PeerId, offer: Offer, now: float) -> None:
        """Record the offer of a peer. Its first offer on a state counts."""
        before = self._offers.get(peer)
        if not 1 <= offer.tokens <= MAX_TOKENS or (before and before.base == offer.base):
            return
        if before is None and len(self._offers) >= 2 * MAX_PEERS:
            return
        stale = self.ledger.get(offer.base)
        if offer.base != self.head and stale is not None and stale.round < self.state.round:
            self.refusals[offer.root] = BadUpdate("stale-base", "an update is on an earlier state")
        self._offers[peer] = offer
        if offer.base == self.head and self._opened is None:
            self._opened = now

    def signed(self, peer: PeerId, step: Step) -> None:
        """Record a peer's signature."""
        self.ledger.sign(peer, step)

    def contributed(self, root: str, update: Known, tokens: int, now: float) -> Offer:
        """Record this peer's own update on `state`, as others decode it. Return its offer."""
        offer = Offer(self.state.round + 1, self.head, root, tokens)
        self._own_root = root
        self.updates[root] = replace(update, good=True)
        self._offers.pop(self.own, None)
        self.offered(self.own, offer, now)
        return offer

    # Reports on actions.

    def decoded(self, root: str, update: Known) -> None:
        """Record an update that was fetched and decoded."""
        self.updates.setdefault(root, update)
        self._asked.pop(root, None)

    def refused(self, root: str, error: BadUpdate) -> None:
        """Refuse an update that does not decode. No step may apply it."""
        self.refusals[root] = error
        self._malformed.add(root)
        self._asked.pop(root, None)

    def unfetched(self, root: str, now: float) -> None:
        """Retry a fetch later."""
        self._asked[root] = now + RETRY_SECONDS
        self._vain.add(root)

    def judged(self, root: str, *, good: bool) -> None:
        """Record the verdict by held-out loss."""
        self._judging.discard(root)
        self._asked.pop(_judgement(root), None)  # the same update may be on offer in a later round
        known = self.updates.get(root)
        if known is not None and known.good is None:
            self.updates[root] = replace(known, good=good)
            if not good:
                self.refusals[root] = BadUpdate("loss", "an update raises the held-out loss")

    def unjudged(self, root: str, now: float) -> None:
        """Retry a judgement later."""
        self._judging.discard(root)
        self._asked[_judgement(root)] = now + RETRY_SECONDS

    def computed(self, step: Step, state: OuterState) -> None:
        """Record the state after a step."""
        self._states[step.id] = _Computed(state, "")
        self._asked.pop(step.id, None)

    def restored(self, step: Step, state: OuterState, root: str) -> None:
        """Record the fetched state after a step.

        Raises BadUpdate `bad-state` if it is of another round.
        """
        if state.round != step.round:
            raise BadUpdate("bad-state", "a state is of another round than its step")
        if step.id in self._states:
            if step.id != self.head:
                return  # this peer has gone on meanwhile
            # The states that it has computed from its own one are wrong, too.
            later = [key for key, each in self._states.items() if each.state.round > state.round]
            for key in later:
                del self._states[key]
        self._states[step.id] = _Computed(state, root)
        self._asked.pop(root, None)
        self._rejoin = step

    # Decisions.

    def poll(self, now: float) -> list[Action]:
        """Return the actions that are due now."""
        self._closing = self._is_closing(now)
        return [*self._advance(now), *self._fetches(now), *self._judgements(now)]

    def next_poll(self, now: float) -> float:
        """Return when `poll` must be called again, if nothing is reported before."""
        times = [at for at in self._asked.values() if now < at < math.inf]
        if (closing := self.closes_at()) is not None:
            times += [closing, self._judges_alone_at()]
        times.extend(at + self.terms.settle for at in self._signed_at.values())
        return min([time for time in times if time > now], default=now + RETRY_SECONDS)

    def _ask(self, key: str, now: float) -> bool:
        """Return whether something must be requested now, and note that it was."""
        if self._asked.get(key, now) > now:
            return False
        self._asked[key] = math.inf
        return True

    def _on_head(self) -> list[tuple[PeerId, Offer]]:
        return [(peer, each) for peer, each in self._offers.items() if each.base == self.head]

    def _fetches(self, now: float) -> list[Action]:
        """Request the updates on offer for this round, as many as a step may have. So no group is
        so large that updates need more memory than is reserved for them."""
        found, offers = list[Action](), self._on_head()
        taken = {each.root for _, each in offers if self._is_taken(each.root)}
        for peer, offer in offers:
            if len(taken) >= MAX_PEERS:
                break
            known = offer.root in self.updates or offer.root in self._malformed
            if not known and self._ask(offer.root, now):
                taken.add(offer.root)
                found.append(FetchUpdate(offer.root, (peer,)))
        return found

    def _is_taken(self, root: str) -> bool:
        """Return whether an update is here or being fetched."""
        return root in self.updates or math.isinf(self._asked.get(root, 0.0))

    def _judgements(self, now: float) -> list[Action]:
        """Request verdicts on the updates of this round.

        They are judged beside this peer's own update, which counts double. Early in training, when
        almost every change lowers the loss, even a reversed update does that alone, but not beside
        an honest one. A peer that is late judges them alone, so that it has verdicts when the round
        closes.
        """
        found = list[Action]()
        own = self._own_update()
        if own is None and now < self._judges_alone_at():
            return found
        for peer, offer in self._on_head():
            known = self.updates.get(offer.root)
            if known is None or known.good is not None or offer.root in self._judging:
                continue
            if known.norm > self._norm_limit():
                continue  # it is refused anyway, unless the median rises
            if not self._ask(_judgement(offer.root), now):
                continue
            self._judging.add(offer.root)
            strict = peer in self.state.points
            found.append(JudgeUpdate(offer.root, peer, self.state, known, strict, own))
        return found

    def _own_update(self) -> Known | None:
        """Return this peer's update of this round, or None if it has delivered none."""
        offer = dict(self._on_head()).get(self.own)
        return None if offer is None else self.updates.get(offer.root)

    def _judges_alone_at(self) -> float:
        """Return when this peer judges the others' updates although it has none of its own."""
        return math.inf if self._opened is None else self._opened + self.terms.patience / 2

    def _norm_limit(self) -> float:
        """Return the largest norm that this peer accepts in this round."""
        roots = dict.fromkeys(offer.root for _, offer in self._on_head())
        norms = [self.updates[root].norm for root in roots if root in self.updates]
        return REFUSED_NORM * lower_median(norms) if norms else math.inf

    def _entries(self) -> list[PeerUpdate]:
        """Return this peer's verdicts on the updates of this round, as far as it has them."""
        found, limit = dict[str, PeerUpdate](), self._norm_limit()
        for peer, offer in sorted(self._on_head(), key=lambda each: public_key_of(each[0])):
            known = self.updates.get(offer.root)
            large = known is not None and known.norm > limit
            if large:
                self.refusals[offer.root] = BadUpdate("norm", "an update is too large")
            bad = large or self._objects_to(offer.root)
            if offer.root not in found and (bad or (known is not None and known.good)):
                found[offer.root] = PeerUpdate(peer, offer.root, offer.tokens, refused=bad)
        return list(found.values())[:MAX_PEERS]

    def _is_closing(self, now: float) -> bool:
        """Return whether this peer stops waiting for further updates of this round."""
        closing = self.closes_at()
        if closing is None or self._judging:
            return False
        entries = self._entries()
        if sum(not entry.refused for entry in entries) < self.terms.least:
            return False
        waited = self.roster(self.head) - self.departed
        return now >= closing or waited <= {entry.peer for entry in entries}

    def _is_majority(self, step: Step) -> bool:
        """Return whether most peers of a round have signed this step of it, or a later one."""
        return 2 * len(self.ledger.supporters(step.id)) > len(self.roster(step.base))

    def _advance(self, now: float) -> list[Action]:
        """Follow the chosen steps, or close the round."""
        if self._rejoin is not None:
            if self._rejoin.id != self.head or self.own not in dict(self._on_head()):
                return [self._adopt(self._rejoin, now)]
            self._rejoin = None  # this peer has delivered, and its update stays in the round
        if lost := self._behind():
            return self._fetch_state(lost, now)
        if (astray := self._astray()) is not None:
            self.diverged = self.head
            return [astray] if self._ask(astray.root, now) else []
        path = self.ledger.choose(self._anchor, self._may_follow)
        if path and path[-1].id != self.head:
            found = self._follow(path, now)
            if found or not self._is_stranded(path):
                return found
        if not self._closing:
            return []
        if self._proposal is None or self._proposal.base != self.head:
            entries, number = self._entries(), self.state.round + 1
            self._proposal = step_of(self.terms.id, self.head, number, entries)
        return self._follow([self._proposal], now)

    def _is_stranded(self, path: list[Step]) -> bool:
        """Return whether a path needs a state that no peer delivers. This peer then goes on alone,
        and tries again from time to time: the peers that have the state may never come back."""
        if any(step.id in self._states for step in path[-_COMPUTED - 1 :]):
            return False
        roots = {root for step in path for root, _ in self.ledger.stated(step.id)}
        return not roots or bool(roots & self._vain)

    def _astray(self) -> FetchState | None:
        """Return what to fetch if most signers of the last step have another state after it."""
        step, signers = self.ledger.get(self.head), self.ledger.signers(self.head)
        for root, peers in self.ledger.stated(self.head)[:1]:
            own = self._states[self.head].root
            if step is not None and own not in ("", root) and 2 * len(peers) > len(signers):
                return FetchState(root, step, tuple(sorted(peers)))
        return None

    def _behind(self) -> list[Step]:
        """Return the steps of a history that this peer lacks the beginning of, if that has
        more followers than this peer's own; of equal ones, the one with the lowest peer id counts.
        """
        anchor = self.ledger.get(self._anchor)
        own = {self._anchor} if anchor is None else {self._anchor, self.ledger.origin(anchor)}
        followers: dict[str, set[PeerId]] = {"": set()}
        for peer, step in self.ledger.latest().items():
            origin = self.ledger.origin(step)
            followers.setdefault("" if origin in own else origin, set()).add(peer)
        best = min(followers, key=lambda each: (-len(followers[each]), sorted(followers[each])))
        return self.ledger.choose(best, lambda step: True) if best else []

    def _may_follow(self, step: Step) -> bool:
        """Return whether this peer may take a step that others have signed.

        A step of its own open round, and a step with an update that this peer refused, need the
        signatures of most peers. Of other steps, the ledger's order decides.
        """
        if step.id in self.refusals:
            return False
        if step.id in self._states or self.own in self.ledger.signers(step.id):
            return True
        if self._is_majority(step):
            return True
        if any(self._objects_to(entry.root) for entry in step.accepted):
            return False
        return step.base != self.head or (self._closing and self._agrees(step))

    def _objects_to(self, root: str) -> bool:
        """Return whether this peer has refused an update for what it contains."""
        known = self.updates.get(root)
        return root in self._malformed or (known is not None and known.good is False)

    def _agrees(self, step: Step) -> bool:
        """Return whether this peer accepts all updates of a step, and the step has at least half of
        those that this peer would accept."""
        good = {entry.root for entry in self._entries() if not entry.refused}
        theirs = {entry.root for entry in step.accepted}
        return theirs <= good and 2 * len(theirs) >= len(good)

    def _follow(self, path: list[Step], now: float) -> list[Action]:
        """Compute, sign or adopt a step of a path, whichever is next."""
        known = max((at for at, step in enumerate(path) if step.id in self._states), default=-1)
        if known == len(path) - 1:
            return self._settle(path[-1], now)
        if len(path) - 1 - known > _COMPUTED or path[known + 1].base not in self._states:
            return self._fetch_state(path, now)
        return self._reach(path[known + 1 :], now)

    def _reach(self, path: list[Step], now: float) -> list[Action]:
        """Request what is missing for the state after the first step of a path, whose base this
        peer has. Once nothing is missing, sign the step, and have the state computed."""
        step = path[0]
        missing = [each for each in step.accepted if each.root not in self.updates]
        if any(each.root in self._vain for each in missing):
            return self._fetch_state(path, now)
        if (error := self._breach(step)) is not None:
            self.refusals[step.id] = error
            return []
        if missing:
            signers = sorted(self.ledger.signers(step.id) - {self.own})
            wanted = [each for each in missing if self._ask(each.root, now)]
            return [FetchUpdate(each.root, (*signers, each.peer)) for each in wanted]
        if not self._ask(step.id, now):
            return []
        updates = {each.root: self.updates[each.root] for each in step.accepted}
        compute = ComputeState(step, self._states[step.base].state, updates)
        return [*self._sign(step, now), compute]

    def _sign(self, step: Step, now: float) -> list[Action]:
        """Sign a step, unless this peer has."""
        if not self.ledger.sign(self.own, step):
            return []
        self._signed_at[step.id] = now
        return [Sign(step)]

    def _fetch_state(self, path: list[Step], now: float) -> list[Action]:
        """Request the latest state of a path that peers have stated."""
        for step in reversed(path):
            for root, peers in self.ledger.stated(step.id)[:1]:
                if self._states.get(step.id) is None and peers - {self.own}:
                    found = FetchState(root, step, tuple(sorted(peers - {self.own})))
                    return [found] if self._ask(root, now) else []
        return []

    def _breach(self, step: Step) -> BadUpdate | None:
        """Return which of the rules on which all peers agree a step breaks, as far as it is known.

        The held-out loss is not one of them, because each peer measures its own.
        """
        entries = step.accepted
        if any(entry.root in self._malformed for entry in entries):
            return BadUpdate("bad-step", "a step applies an update that is malformed")
        norms = [self.updates[e.root].norm for e in entries if e.root in self.updates]
        if len(norms) == len(entries) and max(norms) > REFUSED_NORM * lower_median(norms):
            return BadUpdate("bad-step", "a step applies an update that is too large")
        return None

    def _settle(self, step: Step, now: float) -> list[Action]:
        """Adopt a step that was computed, once most peers have signed it or the others had time
        to. A step that this peer goes back to is signed now."""
        if signed := self._sign(step, now):
            return signed
        signed_at = self._signed_at.get(step.id, now)
        if step.id != self.head and (
            self._is_majority(step) or now >= signed_at + self.terms.settle
        ):
            return [self._adopt(step, now)]
        return []

    def _adopt(self, step: Step, now: float) -> Adopted:
        """Make the state after a step the one from which this peer trains."""
        jumped = self._rejoin is not None
        self.head, self._rejoin, self._proposal = step.id, None, None
        if self.diverged not in (step.id, step.base):
            self.diverged = None
        self._states.move_to_end(step.id)
        chain = self._chain(step)
        self._anchor = step.id if jumped else chain[-1].base
        self._forget(chain)
        self._opened = now if self._on_head() else None
        included = any(entry.root == self._own_root for each in chain for entry in each.accepted)
        return Adopted(step.id, self.state, included)

    def _chain(self, step: Step) -> list[Step]:
        """Return a step and those before it, up to WINDOW."""
        chain = [step]
        while len(chain) < WINDOW and (before := self.ledger.get(chain[-1].base)) is not None:
            chain.append(before)
        return chain

    def _forget(self, chain: list[Step]) -> None:
        """Drop what no peer needs any more."""
        self.ledger.prune(chain[-1].round)
        while len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)
        recent = dict.fromkeys(step.base for step in chain[:STATES_KEPT])
        steps = [step for base in recent for step in self.ledger.children(base)]
        live = {entry.root for step in steps for entry in step.entries}
        live |= {offer.root for _, offer in self._on_head()}
        self.updates = {root: each for root, each in self.updates.items() if root in live}
        self._vain &= live | {root for step in steps for root, _ in self.ledger.stated(step.id)}
        self._malformed &= live
        self._judging &= live
        known = live | {step.id for step in steps}
        self.refusals = {key: each for key, each in self.refusals.items() if key in known}
        self._signed_at = {key: at for key, at in self._signed_at.items() if key in self.ledger}
        self._asked = {key: at for key, at in self._asked.items() if math.isinf(at)}


def _judgement(root: str) -> str:
    """Return the key under which it is noted that an update is being judged."""
    return f"judge {root}"


_COMPUTED = 2  # steps that are computed one after the other; beyond, the state is fetched
