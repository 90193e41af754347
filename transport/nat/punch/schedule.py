"""Schedule of one round's checks, which depends on the NATs of both sides. No I/O."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ...host.datagrams import Datagrams, Place
from . import defaults
from .candidates import Candidate, Kind, Transport
from .checks import Checks
from .needs import Socket
from .offer import Offer
from .predict import random_ports, sequence

SPRAY_S: Final = 0.0007
"""Time between two shots of a birthday search, in seconds."""
FIRST_SHOTS: Final = 6 / 7
"""Fraction of the easy side's shots that leave before the hard side's sockets begin; the rest
leaves after. A router on either side may remember a packet that came too early
(docs/spec/punch.md), so each side is the first once. More easy sides than hard sides have such a
router."""
OPEN_AFTER_S: Final = 0.95
"""When the hard side's sockets begin, in seconds."""
AGAIN_S: Final = 1.4
"""Time from the first shot of one of those sockets to its second, in seconds."""
REST_AFTER_S: Final = 1.4
"""When the rest of the easy side's shots begins, in seconds."""
COUNT_AFTER_S: Final = 0.3
"""How long the hard side with a counting NAT lets the other be the first, in seconds."""
FOLLOW_S: Final = 0.002
STEPS: Final = 24
"""Pairs of ports that two counting NATs walk through, a count."""


def ordinary(checks: Checks[Socket], remote: Sequence[Candidate], at: float) -> None:
    """Check every address from the port's own socket."""
    for each in remote:
        checks.pair(None, each.place, at=at, lan=each.kind is Kind.LAN)


@dataclass(frozen=True, slots=True)
class Comb:
    """Fresh sockets of both sides, of which each of `mine` is paired with one of `theirs`. A side
    without fresh sockets uses its port's own, whose address `main` the other side knows."""

    mine: Sequence[Datagrams]
    theirs: Sequence[Place | None]
    main: Place | None


def comb(checks: Checks[Socket], pairs: Comb, at: float, step: float, *, first: bool) -> None:
    """Check pairs of fresh sockets one after the other. The two sides use opposite orders.

    So in the first pair one side is early by six steps, and in the last pair the other side is. A
    packet that comes too early may spoil a port (docs/spec/punch.md). Unless the clocks
    are too far apart, no packet comes too early in at least one pair.
    """
    mine, theirs = pairs.mine, pairs.theirs
    count = max(len(mine), len(theirs))
    for i in range(count):
        socket: Socket = mine[i] if i < len(mine) else None
        place = theirs[i] if i < len(theirs) else pairs.main
        if place is not None:
            checks.pair(socket, place, at=at + step * (i if first else count - 1 - i))


def targets(remote: Sequence[Candidate]) -> list[Place]:
    """Return the public IPv4 addresses at which the peer's UDP port is seen from outside."""
    return [
        each.place
        for each in remote
        if each.transport is Transport.UDP
        and each.kind in (Kind.OBSERVED, Kind.PUBLIC, Kind.MAPPED)
        and ":" not in each.place[0]
    ]


def spray(
    checks: Checks[Socket],
    socket: Socket,
    ip: str,
    count: int,
    entropy: Callable[[int], bytes],
    at: float,
) -> None:
    """Send to random ports of the hard side: most now, the rest when its sockets are open."""
    first = int(count * FIRST_SHOTS)
    for i, port in enumerate(random_ports(entropy, count)):
        begin, shot = (at, i) if i < first else (at + REST_AFTER_S, i - first)
        checks.shot(socket, (ip, port), at=begin + shot * SPRAY_S)


def open_many(
    checks: Checks[Socket], sockets: Sequence[Datagrams], place: Place, at: float
) -> None:
    """Send from many sockets to the easy side's port, twice."""
    for i, socket in enumerate(sockets):
        for begin in (at, at + AGAIN_S):
            checks.shot(socket, place, at=begin + i * SPRAY_S)


def follow(checks: Checks[Socket], theirs: Offer, at: float) -> None:
    """Send twice to the ports that the peer's NAT will use next."""
    counting = theirs.counting
    if counting is None:
        return
    for i, port in enumerate(sequence(counting.last, counting.step)):
        for begin in (at, at + 2 * COUNT_AFTER_S):
            checks.shot(None, (counting.ip, port), at=begin + i * FOLLOW_S)


def walk(checks: Checks[Socket], theirs: Offer, at: float) -> None:
    """Check the ports that the peer's NAT will use next, in order.

    Each packet also uses up the next port of our own NAT. So both sides advance by one port at a
    time, and they meet once both have sent equally many packets.
    """
    counting = theirs.counting
    if counting is None:
        return
    for port in sequence(counting.last, counting.step, STEPS):
        checks.pair(None, (counting.ip, port), at=at)


def places(remote: Sequence[Candidate], transport: Transport) -> list[Place]:
    """Return the addresses of one transport without duplicates."""
    return list(dict.fromkeys(each.place for each in remote if each.transport is transport))


def comb_step(round_: int) -> float:
    """Return the seconds between two pairs of `comb`. Later rounds allow for larger differences
    of the clocks."""
    return defaults.COMB_STEP_S * (1.0 + 0.6 * max(0, round_ - 2))
