"""Conclusions about a NAT from the reports of observers. No I/O.

An observer can lie about where it sees a socket. The NAT's mapping is therefore judged by the
majority of observers at different IP addresses, so that one false report among three changes
nothing. The NAT's filtering is judged by the datagrams that arrived, because a datagram that has
passed the filter is proof.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from ...host.datagrams import Place
from . import defaults
from .reachability import Allocation, Behaviour, Pattern

View = tuple[Place | None, Place | None]
"""The addresses at which the first and the second port of one observer saw a socket of ours. An
address is None if the observer does not have that port, or if the port did not reply."""


def mapping_of(views: Mapping[str, View], own: Iterable[Place]) -> Behaviour:
    """Return the kind of a NAT's mapping, from the addresses at which one socket was seen.

    `views` maps each observer's IP address to its view. `own` are the local addresses of the
    socket. The method is that of RFC 5780, section 4.3.
    """
    seen = {ip: first for ip, (first, _) in views.items() if first is not None}
    two = [(first == second) for first, second in views.values() if first and second]
    same, differ = two.count(True), two.count(False)
    agreed = consensus(seen.values())
    if agreed is not None and (len(seen) > 1 or agreed in own):
        return Behaviour.NONE if agreed in own else Behaviour.ENDPOINT_INDEPENDENT
    if len(seen) < 2:  # one IP address cannot show whether the mapping depends on it
        return Behaviour.ADDRESS_AND_PORT_DEPENDENT if differ else Behaviour.UNKNOWN
    # If no observer has a second port, the kind is unknown. The stricter kind is the safe choice.
    return Behaviour.ADDRESS_DEPENDENT if same > differ else Behaviour.ADDRESS_AND_PORT_DEPENDENT


def consensus(seen: Iterable[Place]) -> Place | None:
    """Return the address that makes up more than half of `seen`; None if there is no majority."""
    votes = Counter(seen)
    if not votes:
        return None
    place, count = votes.most_common(1)[0]
    return place if 2 * count > votes.total() else None


def filtering_of(strangers: Sequence[bool], known: Sequence[bool]) -> Behaviour:
    """Return the kind of a NAT's filtering, from the datagrams that peers sent to a socket.

    Each element says whether one datagram passed the NAT. `strangers` are datagrams of peers to
    which the socket had never sent. `known` are datagrams of peers to which it had sent, but from
    another port of theirs. The method is that of RFC 5780, section 4.4.
    """
    if any(strangers):
        return Behaviour.ENDPOINT_INDEPENDENT
    if any(known):
        return Behaviour.ADDRESS_DEPENDENT if strangers else Behaviour.UNKNOWN
    return Behaviour.ADDRESS_AND_PORT_DEPENDENT if known else Behaviour.UNKNOWN


def allocation_of(made: Sequence[tuple[int, int]]) -> Allocation:
    """Return how a NAT allocates outer ports.

    `made` has (inner port, outer port) of new mappings in the order of their creation.
    """
    if not made:
        return Allocation()
    if 2 * sum(inner == outer for inner, outer in made) > len(made):
        return Allocation(Pattern.PRESERVING)
    if len(made) < 3:
        return Allocation()
    step = _line([outer for _, outer in made])
    return Allocation(Pattern.SEQUENTIAL, step) if step else Allocation(Pattern.RANDOM)


def _line(ports: Sequence[int]) -> int:
    """Return the step of the straight line on which most ports lie, or 0 if there is no such line.

    Each pair of ports defines a line. The line with the most ports near it wins, so that a few
    false ports change nothing. 8 ports make 28 pairs.
    """
    best: tuple[int, int] = 0, 0
    for a, b in combinations(range(len(ports)), 2):
        step = round(_apart(ports[a], ports[b]) / (b - a))
        if not 1 <= abs(step) <= defaults.LINE_STEP_PORTS:
            continue
        off = [_apart(ports[a] + step * (i - a), port) for i, port in enumerate(ports)]
        near = sum(abs(ports_off) <= defaults.LINE_PORTS for ports_off in off)
        best = max(best, (near, step))
    enough = max(min(4, len(ports)), defaults.LINE_SHARE * len(ports))
    return best[1] if best[0] >= enough else 0


def _apart(a: int, b: int) -> int:
    """Return the signed distance from port `a` to port `b`, the shorter way round modulo 65,536."""
    return (b - a + 32768) % 65536 - 32768


def public_ip_of(seen: Iterable[Place]) -> str | None:
    """Return the IP address that makes up more than half of `seen`, or None."""
    agreed = consensus((ip, 0) for ip, _ in seen)
    return agreed[0] if agreed else None
