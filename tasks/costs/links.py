"""Rates of links to peers, from what `transport/` measures."""

import math
from typing import Final

from ...transport.bytestream import PathKind
from ...transport.link.status import LinkStatus
from .rates import RATE_LEAST, LinkRates

UNKNOWN_TRIP_S: Final = 0.1
"""Round trip before the first measurement."""
MESSAGE_S: Final = 0.0005
"""Seconds in which both ends handle a message: encryption, framing, and two tasks that wake up."""
LOSS_MOST: Final = 0.5
TRIP_MOST_S: Final = 60.0
_RATES: Final = {  # byte/s of paths whose rate was not measured
    PathKind.LOOPBACK: 500e6,
    PathKind.LAN: 50e6,
    PathKind.RELAYED: 48e3,  # members' part of the 64 kB/s that a relay lends to all its circuits
}
HOME_RATE: Final = 2.5e6
"""Byte/s of a path between homes whose rate was not measured: 20 Mbit/s, as homes send."""


_NEAR_S: Final = 0.02  # seconds between two peers, at least: the line of a home adds 10 ms


def link_rates(status: LinkStatus) -> LinkRates:
    """Return the rates of a link as this node has measured them. The kind of the path stands for
    unknown ones."""
    trip = UNKNOWN_TRIP_S if status.rtt is None else min(max(0.0, status.rtt), TRIP_MOST_S)
    rate = max(status.rate, RATE_LEAST) if status.rate > 0.0 else _usual_rate(status.path)
    loss = status.loss if status.loss > 0.0 else 0.0  # false for NaN
    return LinkRates(trip, rate, min(loss, LOSS_MOST), MESSAGE_S)


def between(one: LinkRates, other: LinkRates) -> LinkRates:
    """Return the likely rates of the link between two peers, given this node's links to both."""
    rates = [each.rate for each in (one, other) if each.rate]
    return LinkRates(
        trip_between(one.round_trip_s, other.round_trip_s),
        min(rates, default=0.0),
        max(one.loss, other.loss),
        max(one.message_s, other.message_s),
    )


def trip_between(one_s: float, other_s: float) -> float:
    """Return the likely round trip between two peers in seconds, given those to both.

    The difference and the sum of the two bound it (triangle inequality). Their geometric mean has
    the least error on measured round trips (docs/adr/0056).
    """
    most = one_s + other_s
    least = max(abs(one_s - other_s), min(_NEAR_S, most))
    return math.sqrt(least * most)


def trip_within(low_s: float, high_s: float) -> float:
    """Return the likely round trip between two peers in seconds, given the bounds that round trips
    to several third peers set.

    The middle errs by 15 % between homes in Europe, and is seldom much too short: the best of many
    chains is mostly one that was guessed too short (docs/adr/0086).
    """
    return (min(max(low_s, _NEAR_S), high_s) + high_s) / 2


def _usual_rate(kind: str) -> float:
    return next((rate for each, rate in _RATES.items() if each == kind), HOME_RATE)
