"""Hole punching in its simplest form, and a table of the pairs of NATs between which it works.

The procedure is that of DCUtR (libp2p). Both peers know a relay, which has seen their outer
endpoints. It tells each peer the other's endpoint, timed so that both start at once; then their
probes cross. Each peer switches to the address from which it hears the other (RFC 8445's
peer-reflexive candidates).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from shoal.netsim.light import Sends
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.packet import Addr
from shoal.netsim.world import World

RELAY_PORT: Final = 3478
RETRY_S: Final = 1.0
TRIES: Final = 10
PROBES: Final = 10
PROBE_EVERY_S: Final = 0.2
AFTER_HEARD: Final = 3  # minimum of probes to an endpoint from which the other was heard

PUBLIC: Final = "public"
KINDS: Final = (
    PUBLIC,
    "eim-eif",
    "eim-adf",
    "eim-apdf",
    "linux-drop",
    "linux-accept",
    "adm-apdf",
    "apdm-apdf",
)
SKEWS_S: Final = (0.0, 0.15)
TABLE_S: Final = 3.5  # until every probe has been sent and has arrived
_LINK: Final = LinkSpec(up=PipeSpec(delay=0.02), down=PipeSpec(delay=0.02))


class Relay:
    """Server that sees each peer's outer endpoint and distance, and introduces the peers of a pair.

    For a pair in `skews`, side "b" is told that many seconds after side "a".
    """

    def __init__(self, skews: Mapping[int, float] | None = None) -> None:
        self.wake_at = inf
        self._skews = skews or {}
        self._asked: dict[tuple[int, str], tuple[float, Addr]] = {}
        self._ready: dict[int, dict[str, tuple[Addr, float]]] = {}  # endpoint, round trip
        self._due: list[tuple[float, bytes, Addr]] = []
        self._introduced: dict[int, float] = {}  # when both sides of a pair have been told

    def outer(self, pair: int, side: str) -> Addr | None:
        """Return a peer's outer endpoint; None if it was never heard."""
        asked = self._asked.get((pair, side))
        return asked[1] if asked is not None else None

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        word, number, side = data.decode().split(" ")
        pair = int(number)
        if word == "hello":
            self._asked[pair, side] = now, source
            return [(b"seen", source)]
        asked = self._asked.get((pair, side))
        if asked is None or asked[1] != source:
            return []
        both = self._ready.setdefault(pair, {})
        if side not in both:
            both[side] = source, now - asked[0]
            if len(both) == 2:
                self._introduce(now, pair, both)
        elif self._introduced.get(pair, inf) < now:  # it was lost
            other = both["b" if side == "a" else "a"][0]
            return [(_told(other), source)]
        return []

    def _introduce(self, now: float, pair: int, both: dict[str, tuple[Addr, float]]) -> None:
        """Tell both peers, the farther one first, so that both hear it at the same time."""
        (a, trip_a), (b, trip_b) = both["a"], both["b"]
        slowest = max(trip_a, trip_b)
        due_a = now + (slowest - trip_a) / 2
        due_b = now + (slowest - trip_b) / 2 + self._skews.get(pair, 0.0)
        self._due += [(due_a, _told(b), a), (due_b, _told(a), b)]
        self._due.sort()
        self._introduced[pair] = max(due_a, due_b)
        self.wake_at = self._due[0][0]

    def on_time(self, now: float) -> Sends:
        due = [item for item in self._due if item[0] <= now]
        self._due = self._due[len(due) :]
        self.wake_at = self._due[0][0] if self._due else inf
        return [(told, to) for _, told, to in due]


def _told(other: Addr) -> bytes:
    return f"peer {other[0]} {other[1]}".encode()


class Peer:
    """One side ("a" or "b") of a pair: asks the relay, then probes until it hears the other."""

    def __init__(self, relay: Addr, pair: int, side: str) -> None:
        self.heard = False
        self.wake_at = 0.0
        self._relay = relay
        self._who = f"{pair} {side}".encode()
        self._target: Addr | None = None
        self._left = TRIES

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        if source == self._relay:
            return self._from_relay(now, data)
        if data == b"probe":
            self.heard = True
            if self._target != source:  # the other's NAT chose another endpoint for us
                self._target, self._left = source, max(self._left, AFTER_HEARD)
                self.wake_at = min(self.wake_at, now)
        return []

    def _from_relay(self, now: float, data: bytes) -> Sends:
        if self._target is not None:
            return []
        if data == b"seen":
            return [(b"ready " + self._who, self._relay)]
        _, ip, port = data.decode().split(" ")
        self._target, self._left, self.wake_at = (ip, int(port)), PROBES, now
        return []

    def on_time(self, now: float) -> Sends:
        if not self._left:
            self.wake_at = inf
            return []
        self._left -= 1
        if self._target is None:
            self.wake_at = now + RETRY_S
            return [(b"hello " + self._who, self._relay)]
        self.wake_at = now + PROBE_EVERY_S
        return [(b"probe", self._target)]


@dataclass(frozen=True, slots=True)
class Pair:
    """Result of two peers behind gateways of two kinds; the second started `skew` seconds later.

    `outer` are their endpoints as the relay saw them.
    """

    kinds: tuple[str, str]
    skew: float
    connected: bool  # both have heard the other
    outer: tuple[Addr | None, Addr | None]


def truth_table(
    kinds: Sequence[str] = KINDS, skews: Sequence[float] = SKEWS_S, *, seed: int = 0
) -> tuple[list[Pair], World]:
    """Punch every kind with every kind, at every skew; return the results and the world.

    All pairs run at the same time and share only the relay.
    """
    world = World(seed=seed)
    cases = [((a, b), skew) for skew in skews for a in kinds for b in kinds]
    relay = Relay({number: skew for number, (_, skew) in enumerate(cases)})
    at = world.light("relay", relay, port=RELAY_PORT).address
    peers = [
        tuple(_peer(world, kind, number, side, at) for kind, side in zip(pair, "ab", strict=True))
        for number, (pair, _) in enumerate(cases)
    ]
    world.advance(TABLE_S)
    return [
        Pair(
            pair,
            skew,
            all(peer.heard for peer in peers[number]),
            (relay.outer(number, "a"), relay.outer(number, "b")),
        )
        for number, (pair, skew) in enumerate(cases)
    ], world


def _peer(world: World, kind: str, pair: int, side: str, relay: Addr) -> Peer:
    name = f"{pair}{side}"
    peer = Peer(relay, pair, side)
    if kind == PUBLIC:
        world.light(name, peer, link=_LINK)
    else:
        gateway = world.gateway(f"{name}/nat", kind, link=_LINK)
        world.light(name, peer, behind=gateway)
    return peer
