"""From what observers said to what a NAT does. Pure; one liar among three changes nothing.

An observer can lie about what it saw, so a mapping is judged by the majority of observers at
different IP addresses. What arrives from somewhere it was not asked to come from cannot be
lied about: it passed the filter. So filtering is judged by what passed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from ..datagrams import Place
from . import defaults
from .reachability import Allocation, Behaviour, Pattern

View = tuple[Place | None, Place | None]
"""Where one observer saw a socket of ours come from, at its first and at its second port."""


def mapping_of(views: Mapping[str, View], own: Iterable[Place]) -> Behaviour:
    """RFC 5780, 4.3. `views` by the observer's IP address, `own` are the socket's addresses."""
    seen = {ip: first for ip, (first, _) in views.items() if first is not None}
    two = [(first == second) for first, second in views.values() if first and second]
    same, differ = two.count(True), two.count(False)
    agreed = consensus(seen.values())
    if agreed is not None and (len(seen) > 1 or agreed in own):
        return Behaviour.NONE if agreed in own else Behaviour.ENDPOINT_INDEPENDENT
    if len(seen) < 2:  # one address cannot tell a dependence on it
        return Behaviour.ADDRESS_AND_PORT_DEPENDENT if differ else Behaviour.UNKNOWN
    # Without a second port nobody knows; the stricter one promises nothing that is not so.
    return Behaviour.ADDRESS_DEPENDENT if same > differ else Behaviour.ADDRESS_AND_PORT_DEPENDENT


def consensus(seen: Iterable[Place]) -> Place | None:
    """The place that more than half of the observers saw."""
    votes = Counter(seen)
    if not votes:
        return None
    place, count = votes.most_common(1)[0]
    return place if 2 * count > votes.total() else None


def filtering_of(strangers: Sequence[bool], known: Sequence[bool]) -> Behaviour:
    """RFC 5780, 4.4: from whom datagrams passed. `strangers`: for each peer that was never sent to
    and says it has sent, whether that came; `known`: the same from another port of peers
    that were sent to."""
    if any(strangers):
        return Behaviour.ENDPOINT_INDEPENDENT
    if any(known):
        return Behaviour.ADDRESS_DEPENDENT if strangers else Behaviour.UNKNOWN
    return Behaviour.ADDRESS_AND_PORT_DEPENDENT if known else Behaviour.UNKNOWN


def allocation_of(made: Sequence[tuple[int, int]]) -> Allocation:
    """From (inner port, outer port) of new mappings, in the order of their making."""
    if not made:
        return Allocation()
    if 2 * sum(inner == outer for inner, outer in made) > len(made):
        return Allocation(Pattern.PRESERVING)
    if len(made) < 3:
        return Allocation()
    step = _line([outer for _, outer in made])
    return Allocation(Pattern.SEQUENTIAL, step) if step else Allocation(Pattern.RANDOM)


def _line(ports: Sequence[int]) -> int:
    """The step of the line on which most ports lie; 0 where they lie on none.

    Each pair draws a line, and the one with most ports near it counts, so that a few ports
    that somebody lied about move nothing. 8 ports make 28 pairs.
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
    """From port a to port b by the shorter way around."""
    return (b - a + 32768) % 65536 - 32768


def public_ip_of(seen: Iterable[Place]) -> str | None:
    """The IP address at which more than half of the observers saw us."""
    agreed = consensus((ip, 0) for ip, _ in seen)
    return agreed[0] if agreed else None
