"""Volunteers that average their training, in virtual time: the real `Rounds`, with a network of
delays and partitions. What they train is the caller's.

A fact of one peer reaches each other peer later, and only while no partition separates them. As
with real feeds, only the latest value of each fact arrives after a partition. Updates and states
are fetched from any reachable peer that has them.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Protocol

from shoal.state.views.tuning import StateFact
from shoal.tasks.tuning.averaging.actions import (
    Adopted,
    ComputeState,
    FetchState,
    FetchUpdate,
    JudgeUpdate,
    Known,
    Sign,
)
from shoal.tasks.tuning.averaging.aggregate import norm_of
from shoal.tasks.tuning.averaging.codecs import Feedback, Vector, decode
from shoal.tasks.tuning.averaging.defaults import SIGNED, WINDOW
from shoal.tasks.tuning.averaging.errors import BadUpdate
from shoal.tasks.tuning.averaging.outer import OuterState, decode_state
from shoal.tasks.tuning.averaging.parcels import parcel_of
from shoal.tasks.tuning.averaging.rounds import Rounds
from shoal.tasks.tuning.averaging.steps import Offer, Step
from shoal.tasks.tuning.averaging.terms import RunTerms
from shoal.transport.identity import Identity, PeerId


class Trainer(Protocol):
    """What one volunteer trains."""

    def train(self, state: OuterState) -> tuple[Vector, int]:
        """Return the values after the inner steps, and the tokens that they took."""
        ...

    def loss(self, values: Vector) -> float:
        """Return the held-out loss that this volunteer measures."""
        ...


Fact = Offer | Step | StateFact


@dataclass(slots=True, eq=False)
class Volunteer:
    """One peer. `spoil` changes its encoded updates before they are sent, if it is an attacker."""

    peer: PeerId
    rounds: Rounds
    trainer: Trainer
    feedback: Feedback
    seconds: float  # that its inner steps take
    spoil: Callable[[bytes], bytes] | None = None
    sent: bytes = b""
    training: str = ""  # the state on which it trains
    facts: dict[str, Fact] = field(default_factory=dict)
    alive: bool = True
    adopted: list[str] = field(default_factory=list)
    fetched: int = 0  # bytes
    waking: int = 0  # number of the next poll that is planned
    before: tuple[OuterState, Known | None, float] | None = None
    """The state and the own update to which updates are compared, and the loss with them."""


def peer_number(number: int) -> PeerId:
    """Return the id of a volunteer."""
    return Identity.from_seed(number.to_bytes(32)).peer


class Volunteers:
    """The volunteers of one run."""

    def __init__(self, terms: RunTerms, start: OuterState, seed: int, delay: float = 0.3) -> None:
        self.terms = terms
        self.now = 0.0
        self.members: dict[PeerId, Volunteer] = {}
        self.sides: list[Set[PeerId]] = []
        """The sides of a partition. Empty if there is none."""
        self.states: dict[str, OuterState] = {}
        """By the id of the step after which they come: what was adopted by any volunteer."""
        self._start = start
        self._random = Random(seed)
        self._delay = delay
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._blobs: dict[str, bytes] = {}
        self._held: dict[str, set[PeerId]] = {}
        self._late: list[tuple[PeerId, PeerId, str]] = []  # facts that a partition holds back

    def join(
        self,
        number: int,
        trainer: Trainer,
        seconds: float = 10.0,
        spoil: Callable[[bytes], bytes] | None = None,
    ) -> Volunteer:
        """Add a volunteer, which first learns what the others have published."""
        peer = peer_number(number)
        rounds = Rounds(self.terms, peer, self._start)
        feedback = Feedback(self.terms.codec, self.terms.values)
        member = self.members[peer] = Volunteer(peer, rounds, trainer, feedback, seconds, spoil)
        for other in self.live():
            if other is not member:
                other.rounds.here(peer)
                rounds.here(other.peer)
            for key in other.facts:
                self._deliver(other.peer, peer, key)
        self.at(3 * self._delay, lambda: self._begin(member))
        return member

    def leave(self, member: Volunteer) -> None:
        """End a volunteer. Its facts stay in the replicas of the others."""
        member.alive = False
        for holders in self._held.values():
            holders.discard(member.peer)

    def live(self) -> list[Volunteer]:
        """Return the volunteers that have not left."""
        return [member for member in self.members.values() if member.alive]

    def part(self, *sides: Set[PeerId]) -> None:
        """Separate sides from each other."""
        self.sides = list(sides)

    def heal(self) -> None:
        """End the partition."""
        self.sides = []
        late, self._late = self._late, []
        for author, reader, key in late:
            self._later(lambda a=author, r=reader, k=key: self._deliver(a, r, k))  # type: ignore[misc]

    def at(self, seconds: float, run: Callable[[], None]) -> None:
        """Run a function later."""
        heappush(self._events, (self.now + seconds, next(self._numbers), run))

    def run(self, until: float | Callable[[], bool], most: float = 1e6) -> None:
        """Pass virtual time until a moment, or until a condition holds."""
        while self._events:
            at, _, event = self._events[0]
            if at > most or (at > until if isinstance(until, int | float) else until()):
                return
            heappop(self._events)
            self.now = at
            event()

    # Messages.

    def _later(self, run: Callable[[], None]) -> None:
        self.at(self._random.expovariate(1 / self._delay), run)

    def _reach(self, one: PeerId, two: PeerId) -> bool:
        return not self.sides or any({one, two} <= side for side in self.sides)

    def _publish(self, member: Volunteer, key: str, fact: Fact) -> None:
        member.facts[key] = fact
        for other in self.live():
            if other is not member:
                self._later(lambda o=other: self._deliver(member.peer, o.peer, key))  # type: ignore[misc]

    def _deliver(self, author: PeerId, reader: PeerId, key: str) -> None:
        member, fact = self.members[reader], self.members[author].facts[key]
        if not self._reach(author, reader):
            self._late.append((author, reader, key))
            return
        if isinstance(fact, Offer):
            member.rounds.offered(author, fact, self.now)
        elif isinstance(fact, Step):
            member.rounds.signed(author, fact)
        else:
            member.rounds.stated(author, fact.step, fact.root)
        self._poll(member)

    def _keep(self, member: Volunteer, data: bytes) -> str:
        root = parcel_of(data).root
        self._blobs[root] = data
        self._held.setdefault(root, set()).add(member.peer)
        return root

    def _found(self, member: Volunteer, root: str, peers: tuple[PeerId, ...]) -> bytes | None:
        for peer in peers:
            if peer in self._held.get(root, ()) and self._reach(member.peer, peer):
                member.fetched += len(self._blobs[root])
                self._held[root].add(member.peer)
                return self._blobs[root]
        return None

    # One volunteer.

    def _poll(self, member: Volunteer) -> None:
        if not member.alive:
            return
        for action in member.rounds.poll(self.now):
            match action:
                case FetchUpdate() | FetchState():
                    self._later(lambda a=action: self._fetch(member, a))  # type: ignore[misc]
                case JudgeUpdate():
                    self._later(lambda a=action: self._judge(member, a))  # type: ignore[misc]
                case ComputeState():
                    self._later(lambda a=action: self._compute(member, a))  # type: ignore[misc]
                case Sign():
                    self._sign(member, action)
                case Adopted():
                    self._adopted(member, action)
        due = member.rounds.next_poll(self.now)
        member.waking = next(self._numbers)
        self.at(max(due - self.now, 0.01), lambda n=member.waking: self._wake(member, n))  # type: ignore[misc]

    def _wake(self, member: Volunteer, number: int) -> None:
        """Poll a volunteer, unless that happened since the wake was planned."""
        if member.waking == number:
            self._poll(member)

    def _fetch(self, member: Volunteer, action: FetchUpdate | FetchState) -> None:
        data = self._found(member, action.root, action.peers)
        rounds = member.rounds
        if data is None:
            rounds.unfetched(action.root, self.now)
        elif isinstance(action, FetchState):
            state = decode_state(data, self.terms.values, self.terms.rule)
            rounds.restored(action.step, state, action.root)
            self._state(member, action.step.id, action.root)
        else:
            try:
                vector = decode(self.terms.codec, self.terms.values, data)
                rounds.decoded(action.root, Known(vector, norm_of(vector)))
            except BadUpdate as error:
                rounds.refused(action.root, error)
        self._poll(member)

    def _judge(self, member: Volunteer, action: JudgeUpdate) -> None:
        known = member.before
        if known is None or known[0] is not action.state or known[1] is not action.own:
            loss = member.trainer.loss(action.without())
            member.before = known = action.state, action.own, loss
        after = member.trainer.loss(action.with_it())
        member.rounds.judged(action.root, good=action.is_harmless(known[2], after))
        self._poll(member)

    def _compute(self, member: Volunteer, action: ComputeState) -> None:
        member.rounds.computed(action.step, action.run(self.terms))
        self._poll(member)

    def _state(self, member: Volunteer, step: str, root: str) -> None:
        """Publish the root of the state after a step."""
        if step == member.rounds.head:
            member.rounds.stated(member.peer, step, root)
            self._publish(member, "state", StateFact(step, root))

    def _sign(self, member: Volunteer, action: Sign) -> None:
        slot = action.step.round % WINDOW
        places = [f"{slot}/{each}" for each in range(SIGNED)]
        of_round = [
            key
            for key in places
            if isinstance(fact := member.facts.get(key), Step) and fact.round == action.step.round
        ]
        free = [key for key in places if key not in of_round]
        if free:
            self._publish(member, free[0], action.step)

    def _adopted(self, member: Volunteer, action: Adopted) -> None:
        if member.sent and not action.included:
            member.feedback.lost(member.sent)
        member.sent = b""
        member.adopted.append(action.head)
        self.states[action.head] = action.state
        self._state(member, action.head, self._keep(member, action.state.encode()))
        self._begin(member)

    def _begin(self, member: Volunteer) -> None:
        """Train on the current state, unless that is going on."""
        head = member.rounds.head
        if not member.alive or member.training == head:
            return
        member.training = head
        jitter = self._random.uniform(0.9, 1.1)
        self.at(member.seconds * jitter, lambda: self._trained(member, head))

    def _trained(self, member: Volunteer, head: str) -> None:
        if not member.alive or member.rounds.head != head:
            return
        base = member.rounds.state
        values, tokens = member.trainer.train(base)
        member.sent = member.feedback.encode(base.values - values)
        data = member.spoil(member.sent) if member.spoil else member.sent
        root = self._keep(member, data)
        try:
            vector = decode(self.terms.codec, self.terms.values, data)
        except BadUpdate:
            vector = base.values * 0  # an attacker does not need its own update
        known = Known(vector, norm_of(vector))
        offer = member.rounds.contributed(root, known, tokens, self.now)
        self._publish(member, "offer", offer)
        self._poll(member)


def sides_of(members: Mapping[PeerId, Volunteer], *groups: range) -> Iterator[Set[PeerId]]:
    """Yield the peers of each group of numbers."""
    for group in groups:
        yield {peer_number(number) for number in group} & set(members)
