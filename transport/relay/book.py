"""Reservations and circuits of a relay, with their limits. No I/O.

One book serves peers with a lane (service.py) and peers that use libp2p's circuit relay v2. A node
that cannot be dialled makes a reservation, and a peer opens a circuit to reach that node. A request
can be refused with these codes:

`not-a-relay`: this node does not relay, or not now. `relayed`: the asker itself is linked through a
relay. `subnet-full`, `full`: no further reservation fits. `no-reservation`: the target has none.
`self`: source and target are the same. `crossing`: the target has just opened a circuit to the
source. `too-many-circuits`: a limit of one peer, of strangers, or of all circuits is reached.

A member is a peer that this node knows for some time (standing.py) or that belongs to its private
group; any other peer is a stranger. When reservations or circuits are scarce, members precede
strangers, and members of longer standing precede newer ones. No number of new identities can
therefore displace the earlier ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ..lane.shaper import Flow, Shaper, TrafficDirection
from ..limits import Sources
from .defaults import CODES_COUNTED, CROSSING_S, MEMBER_WEIGHT, PIECE_COST, RelayLimits
from .limiter import CircuitShare, RelayLimiter

EXPIRED: Final = "expired"  # code of a circuit that has reached its deadline
LEAST_PAUSE_S: Final = 0.0005
"""Shortest pause before the node's bandwidth caps are queried again, in seconds."""


@dataclass(slots=True)
class Reservation:
    """A peer that may be reached through this relay until `expires`, a time on the caller's
    clock."""

    peer: str
    ip: str
    expires: float
    member: bool
    since: float = 0.0  # time at which the peer became a member
    circuits: int = 0  # open circuits to the peer, a count


@dataclass(frozen=True, slots=True)
class Asker:
    """A peer that asks for a reservation or a circuit.

    `ip` is the address at which the relay itself sees the peer. `since` is the time at which the
    peer became a member; it decides the precedence among members and is None for a stranger.
    `relayed` means that the peer's link to this node goes through another relay.
    """

    peer: str
    ip: str
    since: float | None = None
    relayed: bool = False

    @property
    def member(self) -> bool:
        """Whether the peer is a member."""
        return self.since is not None


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits of a circuit. Times are on the caller's clock."""

    opened: float
    since: float
    """Time at which the source became a member; 0 for a stranger."""
    deadline: float
    """Time at which the circuit must end."""
    stranger: str | None
    """The source's IP address if either end is a stranger, otherwise None."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of a relay's work.

    `relayed` are the bytes carried since the start. `spent` are the bytes charged to the rate,
    which include headers. `rate` is in bytes per second. `refused` maps each code to the number of
    refusals.
    """

    reservations: int
    circuits: int
    stranger_circuits: int
    relayed: int
    spent: int
    rate: int
    refused: dict[str, int]


class Circuit:
    """A circuit between two peers, with its counts. Created by `RelayBook.open_circuit`.

    Each byte is received once and sent once, and both are charged to the node's bandwidth caps.
    """

    def __init__(
        self,
        book: "RelayBook",
        source: str,
        target: Reservation,
        terms: Terms,
        share: CircuitShare,
    ) -> None:
        self.source = source
        self.target = target.peer
        self.opened = terms.opened
        self.since = terms.since
        self.deadline = terms.deadline
        self.stranger = terms.stranger
        self.carried = 0
        self.reservation = target
        self._book = book
        self._share = share
        self._open = True
        self._again = 0.0  # seconds until the node's bandwidth caps may allow more
        self._on_cut: Callable[[], None] | None = None

    @property
    def open(self) -> bool:
        """Whether the circuit has not been closed."""
        return self._open

    def room(self, now: float) -> int:
        """Return how many bytes may be moved now.

        If the result is 0, the circuit has ended (`over`), or bytes may be moved after `pause`.
        """
        if self.over(now):
            return 0
        found = self._share.room(now)
        if found and self._book.shaper is not None:
            found = self._under_caps(self._book.shaper, found, now)
        return found

    def _under_caps(self, shaper: Shaper, most: int, now: float) -> int:
        """Return how many of `most` bytes the node's bandwidth caps allow now."""
        self._again = 0.0
        for direction in TrafficDirection:
            room = shaper.room(direction, Flow.RELAY, self, now, most)
            if not room:
                at = shaper.next_at(direction, Flow.RELAY, self, now)
                self._again = max(self._again, at - now, LEAST_PAUSE_S)
            most = min(most, room)
        return most

    def spend(self, n: int, now: float) -> bool:
        """Count `n` moved bytes. Return False if the circuit has ended; the caller must then close
        it."""
        if self.over(now):
            return False
        self.carried += n
        self._share.spend(n + PIECE_COST)
        self._book.count(n)
        if self._book.shaper is not None:
            for direction in TrafficDirection:
                self._book.shaper.spend(direction, Flow.RELAY, n, now)
        return True

    def pause(self) -> float:
        """Return the seconds after which to call `room` again."""
        return self._again or self._share.pause()

    def over(self, now: float) -> bool:
        """Return whether the circuit has been closed or has reached its deadline."""
        return not self._open or now >= self.deadline

    def on_cut(self, callback: Callable[[], None]) -> None:
        """Set the callback that is called when the circuit is closed in favour of another one."""
        self._on_cut = callback

    def cut(self) -> None:
        """Close the circuit in favour of another one."""
        self.close()
        if self._on_cut is not None:
            self._on_cut()

    def close(self) -> None:
        """Release everything that the circuit occupies. May be called repeatedly."""
        if self._open:
            self._open = False
            self._share.leave()
            if self._book.shaper is not None:
                self._book.shaper.leave(self)
            self._book.forget(self)


class RelayBook:
    """Reservations at this relay, and open circuits.

    A peer is named by any constant text, such as its peer id. `shaper` enforces the node's
    bandwidth caps, in which relaying is one traffic class; None if there are none. Times are
    seconds on the caller's clock.
    """

    def __init__(self, limits: RelayLimits, now: float = 0.0, shaper: Shaper | None = None) -> None:
        self.limits = limits
        self.reachable = False
        """Whether other nodes are known to reach this one, so that it can relay for them."""
        self.shaper = shaper
        self._reservations: dict[str, Reservation] = {}  # the oldest first
        self._sources = Sources(limits.reservations_per_subnet, limits.reservations)
        self._circuits: dict[Circuit, None] = {}
        self._per_peer: Counter[str] = Counter()
        self._per_pair: Counter[tuple[str, str]] = Counter()  # circuits by (source, target)
        # Circuits with a stranger at either end: their number, and their sources by network.
        self._strangers = 0
        self._stranger_sources = Sources(
            limits.stranger_circuits_per_subnet, limits.stranger_circuits
        )
        self._limiter = RelayLimiter(limits.rate, now)
        self._relayed = 0
        self._pieces = 0
        self._refused: Counter[str] = Counter()

    @property
    def lends(self) -> bool:
        """Whether this node relays now."""
        return self.limits.rate > 0 and (self.limits.volunteer or self.reachable)

    def reserve(self, asker: Asker, now: float) -> Reservation | str:
        """Grant or renew a reservation. Return it, or the code with which the request is
        refused."""
        if (code := self._unwilling(asker.relayed)) is not None:
            return self._refuse(code)
        self._expire(now)
        peer, ip = asker.peer, asker.ip
        held = self._reservations.get(peer)
        if held is None or held.ip != ip:
            code = self._find_place(asker, held)
            if code is not None:
                return self._refuse(code)
        if held is None:
            held = self._reservations[peer] = Reservation(peer, ip, now, asker.member)
            self._sources.add(ip)
        elif held.ip != ip:
            self._sources.remove(held.ip)
            held.ip = ip
            self._sources.add(ip)
        held.expires = now + self.limits.reservation_s
        held.member, held.since = asker.member, asker.since or 0.0
        return held

    def holds(self, peer: str, now: float) -> bool:
        """Return whether a peer has a reservation."""
        held = self._reservations.get(peer)
        return held is not None and held.expires > now

    def release(self, peer: str) -> None:
        """Remove a reservation. Open circuits continue."""
        held = self._reservations.pop(peer, None)
        if held is not None:
            self._sources.remove(held.ip)

    def open_circuit(
        self, asker: Asker, target: str, now: float, *, visited: bool = False
    ) -> Circuit | str:
        """Open a circuit from `asker` to `target`. Return it, or the code with which it is refused.

        The target needs a reservation, unless both peers are members and the target is linked to
        this relay. Set `visited` if the target is such a linked member. The relay asks the target
        later whether it accepts the circuit.
        """
        if (code := self._unwilling(asker.relayed)) is not None:
            return self._refuse(code)
        self._expire(now)
        source, since = asker.peer, asker.since or 0.0
        held = self._reservations.get(target)
        if held is None and visited and asker.member:
            held = Reservation(target, "", now, member=True)
        if source == target:
            return self._refuse("self")
        if held is None:
            return self._refuse("no-reservation")
        trusted = asker.member and held.member
        stranger = None if trusted else asker.ip
        if self.crosses(source, target, now):
            return self._refuse("crossing")
        if not self._make_room(source, target, stranger, since, now):
            return self._refuse("too-many-circuits")
        limits = self.limits
        deadline = now + (limits.member_s if trusted else limits.stranger_s)
        share = self._limiter.join(MEMBER_WEIGHT if trusted else 1)
        terms = Terms(now, since, deadline, stranger)
        circuit = Circuit(self, source, held, terms, share)
        self._enter(circuit)
        return circuit

    def crosses(self, source: str, target: str, now: float) -> bool:
        """Return whether the target has just opened a circuit to the source.

        In that case both peers have dialled at the same time, and one circuit is enough.
        """
        if not self._per_pair[target, source]:
            return False
        return any(
            (each.source, each.target) == (target, source) and now < each.opened + CROSSING_S
            for each in self._circuits
        )

    def circuits(self) -> Iterator[Circuit]:
        """Return an iterator over the open circuits."""
        return iter(list(self._circuits))

    def figures(self) -> Figures:
        """Return the counts of this relay's work, for display."""
        return Figures(
            reservations=len(self._reservations),
            circuits=len(self._circuits),
            stranger_circuits=self._strangers,
            relayed=self._relayed,
            spent=self._relayed + self._pieces * PIECE_COST,
            rate=self.limits.rate,
            refused=dict(self._refused),
        )

    # Callbacks of circuits.

    def count(self, size: int) -> None:
        """Add `size` bytes that a circuit has carried to the counts."""
        self._relayed += size
        self._pieces += 1

    def forget(self, circuit: Circuit) -> None:
        """Remove a circuit that has been closed."""
        del self._circuits[circuit]
        circuit.reservation.circuits -= 1
        if circuit.stranger is not None:
            self._strangers -= 1
            self._stranger_sources.remove(circuit.stranger)
        self._per_pair[circuit.source, circuit.target] -= 1
        if not self._per_pair[circuit.source, circuit.target]:
            del self._per_pair[circuit.source, circuit.target]
        for peer in (circuit.source, circuit.target):
            self._per_peer[peer] -= 1
            if not self._per_peer[peer]:
                del self._per_peer[peer]

    # Internals.

    def _enter(self, circuit: Circuit) -> None:
        """Register an open circuit."""
        self._circuits[circuit] = None
        circuit.reservation.circuits += 1
        if circuit.stranger is not None:
            self._strangers += 1
            self._stranger_sources.add(circuit.stranger)
        self._per_peer.update((circuit.source, circuit.target))
        self._per_pair[circuit.source, circuit.target] += 1

    def _unwilling(self, relayed: bool) -> str | None:
        """Return the code of a refusal that does not depend on the limits, or None: `not-a-relay`
        if this node does not relay now, `relayed` if the peer is linked through another relay."""
        if not self.lends:
            return "not-a-relay"
        return "relayed" if relayed else None

    def _refuse(self, code: str) -> str:
        """Count a refusal by its code, and return the code."""
        if code in self._refused or len(self._refused) < CODES_COUNTED:
            self._refused[code] += 1
        return code

    def _make_room(
        self, source: str, target: str, stranger: str | None, since: float, now: float
    ) -> bool:
        """Return whether one more circuit fits, after closing one of lower precedence if necessary.

        `stranger` is the source's IP address if either end is a stranger, otherwise None. Strangers
        get at most half of a peer's circuits, so that they cannot lock members out. If the circuits
        of strangers are full, the oldest of them is closed.
        """
        limits = self.limits
        if self._per_pair[source, target] >= limits.circuits_per_pair:
            return False
        if stranger is not None:
            per_peer = limits.circuits_per_peer // 2
            if max(self._per_peer[source], self._per_peer[target]) >= per_peer:
                return False
            if not self._stranger_sources.fits(stranger):
                return False
            full = self._strangers >= limits.stranger_circuits
            return (not full and len(self._circuits) < limits.circuits) or self._cut_stranger(now)
        for peer in (source, target):
            mine = (each for each in self._circuits if peer in (each.source, each.target))
            if self._per_peer[peer] >= limits.circuits_per_peer and not self._cut(mine, since):
                return False
        return len(self._circuits) < limits.circuits or self._cut(self._circuits, since)

    def _cut_stranger(self, now: float) -> bool:
        """Close the oldest circuit of a stranger that has had its minimum time. Return whether
        there was one."""
        for each in self._circuits:
            if each.stranger is not None and now >= each.opened + self.limits.stranger_turn_s:
                each.cut()
                return True
        return False

    def _cut(self, among: Iterable[Circuit], since: float) -> bool:
        """Close one circuit in `among` in favour of a peer that became a member at `since`.

        A stranger's circuit is closed first. If there is none, the circuit of the newest member is
        closed, provided that this member is newer than `since`. Returns False if no circuit was
        closed.
        """
        last = max(
            among,
            key=lambda each: (each.stranger is not None, each.since, -each.opened),
            default=None,
        )
        if last is None or (last.stranger is None and last.since <= since):
            return False
        last.cut()
        return True

    def _expire(self, now: float) -> None:
        """Remove reservations that were not renewed in time."""
        over = [held.peer for held in self._reservations.values() if held.expires <= now]
        for peer in over:
            self.release(peer)

    def _find_place(self, asker: Asker, held: Reservation | None) -> str | None:
        """Ensure that one more reservation fits, by ending an unused one if necessary.

        Returns None if it fits, or the code of the refusal.
        """
        crowded = not self._sources.fits(asker.ip, without=held.ip if held is not None else "")
        if crowded and not self._push_out(asker, asker.ip):
            return "subnet-full"
        full = held is None and len(self._reservations) >= self.limits.reservations
        if full and not self._push_out(asker, None):
            return "full"
        return None

    def _push_out(self, asker: Asker, ip: str | None) -> bool:
        """End a reservation without a circuit in favour of a member. Return whether there was one.

        A stranger's reservation ends first, then that of the newest member, if newer than the
        asker. `ip`, if given, is the asker's address: only a reservation is ended without which one
        from that address fits.
        """
        if asker.since is None:
            return False
        idle = [
            held
            for held in self._reservations.values()
            if not held.circuits
            and held.peer != asker.peer
            and (ip is None or self._sources.fits(ip, without=held.ip))
        ]
        last = max(idle, key=lambda held: (not held.member, held.since * held.member), default=None)
        if last is None or (last.member and last.since <= asker.since):
            return False
        self.release(last.peer)
        return True
