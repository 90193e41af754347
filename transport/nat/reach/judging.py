"""Judgement of a NAT from the reports of observers. Pure; one liar among three changes nothing.

An observer can lie about what it saw, so a mapping is judged by the majority of observers at
different IP addresses. A datagram from an unexpected source cannot be faked: it has passed the
filter. So filtering is judged by which datagrams passed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from ...host.datagrams import Place
from . import defaults
from .reachability import Allocation, Behaviour, Pattern

View = tuple[Place | None, Place | None]
"""Where one observer saw a socket of ours, at the observer's first and second port."""


def mapping_of(views: Mapping[str, View], own: Iterable[Place]) -> Behaviour:
    """Return the mapping (RFC 5780, 4.3). `views` are by the observer's IP address; `own` are the
    socket's addresses."""
    seen = {ip: first for ip, (first, _) in views.items() if first is not None}
    two = [(first == second) for first, second in views.values() if first and second]
    same, differ = two.count(True), two.count(False)
    agreed = consensus(seen.values())
    if agreed is not None and (len(seen) > 1 or agreed in own):
        return Behaviour.NONE if agreed in own else Behaviour.ENDPOINT_INDEPENDENT
    if len(seen) < 2:  # a single address cannot show a dependence on it
        return Behaviour.ADDRESS_AND_PORT_DEPENDENT if differ else Behaviour.UNKNOWN
    # Without a second port this is unknown. The stricter one promises nothing that is not so.
    return Behaviour.ADDRESS_DEPENDENT if same > differ else Behaviour.ADDRESS_AND_PORT_DEPENDENT


def consensus(seen: Iterable[Place]) -> Place | None:
    """Return the address that more than half of the observers saw, or None."""
    votes = Counter(seen)
    if not votes:
        return None
    place, count = votes.most_common(1)[0]
    return place if 2 * count > votes.total() else None


def filtering_of(strangers: Sequence[bool], known: Sequence[bool]) -> Behaviour:
    """Return the filtering (RFC 5780, 4.4). `strangers` says, for each peer that the socket never
    sent to and that says it has sent, whether its datagram passed. `known` says the same for
    datagrams from another port of peers that were sent to."""
    if any(strangers):
        return Behaviour.ENDPOINT_INDEPENDENT
    if any(known):
        return Behaviour.ADDRESS_DEPENDENT if strangers else Behaviour.UNKNOWN
    return Behaviour.ADDRESS_AND_PORT_DEPENDENT if known else Behaviour.UNKNOWN


def allocation_of(made: Sequence[tuple[int, int]]) -> Allocation:
    """Return the allocation from (inner port, outer port) of new mappings, in order of creation."""
    if not made:
        return Allocation()
    if 2 * sum(inner == outer for inner, outer in made) > len(made):
        return Allocation(Pattern.PRESERVING)
    if len(made) < 3:
        return Allocation()
    step = _line([outer for _, outer in made])
    return Allocation(Pattern.SEQUENTIAL, step) if step else Allocation(Pattern.RANDOM)


def _line(ports: Sequence[int]) -> int:
    """Return the step of the line on which most ports lie, or 0 if there is none.

    Each pair of ports defines a line, and the one with most ports near it wins, so that a few
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
    """Return the distance from port a to port b, by the shorter way around."""
    return (b - a + 32768) % 65536 - 32768


def public_ip_of(seen: Iterable[Place]) -> str | None:
    """Return the IP address at which more than half of the observers saw us, or None."""
    agreed = consensus((ip, 0) for ip, _ in seen)
    return agreed[0] if agreed else None
