"""Schedules of the UDP checks of one round. The NATs of both sides decide which is used.

No I/O. The terms *hard side*, *easy side* and *birthday search* are explained in `predict.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ...host.datagrams import Datagrams, Place
from . import defaults
from .candidates import Candidate, CandidateKind, CandidateTransport
from .checks import Checks
from .needs import Socket
from .offer import PunchOffer
from .predict import random_ports, sequence

SPRAY_S: Final = 0.0007
"""Time between two checks of a birthday search, in seconds."""
FIRST_SHOTS: Final = 6 / 7
"""Fraction of the easy side's checks that it sends before the hard side begins. It sends the rest
after that.

A router may spoil a port if a packet arrives there before the side behind the router has sent
(docs/spec/punch.md, section 4). For each part of the checks, another side sends first, so that one
part avoids this. The first part is larger, because more easy sides than hard sides have such a
router.
"""
OPEN_AFTER_S: Final = 0.95
"""Time in the round at which the hard side begins to send from its sockets, in seconds."""
AGAIN_S: Final = 1.4
"""Time from the first check of each of the hard side's sockets to its second check, in seconds."""
REST_AFTER_S: Final = 1.4
"""Time in the round at which the easy side begins to send the rest of its checks, in seconds."""
COUNT_AFTER_S: Final = 0.3
"""Time for which a hard side whose NAT allocates ports sequentially lets the peer send first, in
seconds."""
FOLLOW_S: Final = 0.002
"""Time between two checks of predicted ports, in seconds."""
STEPS: Final = 24
"""Ports that each side checks if both NATs allocate ports sequentially, a count."""


def ordinary(checks: Checks[Socket], remote: Sequence[Candidate], at: float) -> None:
    """Schedule repeated checks of all the peer's addresses, from the node's UDP port.

    The checks begin at the time `at`.
    """
    for each in remote:
        checks.pair(None, each.place, at=at, lan=each.kind is CandidateKind.LAN)


@dataclass(frozen=True, slots=True)
class Comb:
    """Newly opened sockets of both sides for the comb (see `comb`). Either list may be empty."""

    mine: Sequence[Datagrams]
    """New sockets of this side. If there are none, the socket of its UDP port is used."""
    theirs: Sequence[Place | None]
    """Addresses at which the peer's new sockets are seen; None for an unseen socket."""
    main: Place | None
    """Address of the peer's UDP port, which is used if the peer has too few new sockets."""


def comb(checks: Checks[Socket], pairs: Comb, at: float, step: float, *, first: bool) -> None:
    """Schedule checks of the comb: each new socket of this side checks one new socket of the peer.

    If a packet arrives at a router before the side behind it has sent, the router may spoil the
    port (docs/spec/punch.md, section 4). The right order depends on the routers, and on the
    difference between the clocks of the two sides. The comb therefore tries several orders, one for
    each pair. The pairs begin `step` seconds apart, from the time `at` on. One side goes through
    the pairs forwards (`first` is True), and the other side backwards. With seven pairs, one side
    begins six steps earlier in the first pair, and the other side does so in the last pair.
    """
    mine, theirs = pairs.mine, pairs.theirs
    count = max(len(mine), len(theirs))
    for i in range(count):
        socket: Socket = mine[i] if i < len(mine) else None
        place = theirs[i] if i < len(theirs) else pairs.main
        if place is not None:
            checks.pair(socket, place, at=at + step * (i if first else count - 1 - i))


def targets(remote: Sequence[Candidate]) -> list[Place]:
    """Return the peer's IPv4 addresses for UDP that can be reached from outside its network."""
    return [
        each.place
        for each in remote
        if each.transport is CandidateTransport.UDP
        and each.kind in (CandidateKind.OBSERVED, CandidateKind.PUBLIC, CandidateKind.MAPPED)
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
    """Schedule the easy side's part of a birthday search: `count` checks to random ports of `ip`.

    Most of them begin at the time `at`, the rest after the hard side has begun to send.
    """
    first = int(count * FIRST_SHOTS)
    for i, port in enumerate(random_ports(entropy, count)):
        begin, shot = (at, i) if i < first else (at + REST_AFTER_S, i - first)
        checks.shot(socket, (ip, port), at=begin + shot * SPRAY_S)


def open_many(
    checks: Checks[Socket], sockets: Sequence[Datagrams], place: Place, at: float
) -> None:
    """Schedule the hard side's part of a birthday search.

    Each of the `sockets` sends two checks to `place`, the address of the easy side.
    """
    for i, socket in enumerate(sockets):
        for begin in (at, at + AGAIN_S):
            checks.shot(socket, place, at=begin + i * SPRAY_S)


def follow(checks: Checks[Socket], theirs: PunchOffer, at: float) -> None:
    """Schedule two checks to each port that the peer's NAT will allocate next.

    `theirs.counting` describes this NAT, which allocates ports sequentially.
    """
    counting = theirs.counting
    if counting is None:
        return
    for i, port in enumerate(sequence(counting.last, counting.step)):
        for begin in (at, at + 2 * COUNT_AFTER_S):
            checks.shot(None, (counting.ip, port), at=begin + i * FOLLOW_S)


def walk(checks: Checks[Socket], theirs: PunchOffer, at: float) -> None:
    """Schedule checks of the ports that the peer's NAT will allocate next, in order.

    Here the NATs of both sides allocate ports sequentially. Each check makes our own NAT allocate
    its next port, too. Both sides therefore advance by one port at a time, and a pair of ports
    works once both have sent the same number of checks.
    """
    counting = theirs.counting
    if counting is None:
        return
    for port in sequence(counting.last, counting.step, STEPS):
        checks.pair(None, (counting.ip, port), at=at)


def places(remote: Sequence[Candidate], transport: CandidateTransport) -> list[Place]:
    """Return the addresses of all candidates of one transport, without duplicates."""
    return list(dict.fromkeys(each.place for each in remote if each.transport is transport))


def comb_step(round_: int) -> float:
    """Return the time between the beginnings of two pairs of the comb, in seconds.

    In the third round the time is longer, which allows for a larger difference between the clocks.
    """
    return defaults.COMB_STEP_S * (1.0 + 0.6 * max(0, round_ - 2))
