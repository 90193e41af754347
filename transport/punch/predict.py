"""Ports that a NAT will give: which attempt makes sense between two NATs, and with which ports.

A *hard* side gets another outer port for each peer (RFC 4787: address-dependent mapping, or worse;
"symmetric"). The *easy* side's port is known. A hard side is reached where the other lets any
port in; where it does not, the port has to be guessed:

- A NAT that counts is asked twice or more in a row; the next ports follow (`sequence`).
- A NAT that draws is met by a birthday search (RFC 5128 3.4 calls it impractical for one socket):
  the hard side opens N sockets, each sending to the easy side's port, and so has N ports of the
  M = 64,512 that its NAT draws from open towards it; the easy side sends to k ports at random. The
  chance that none of k different ports is one of the N is the product over i < k of
  (M - N - i) / (M - i), at most (1 - N/M)^k. With N = 256 and k = 1,400: 99.6 % meet, and no
  address gets more than the 1,500 datagrams that the budget allows.
- Two hard sides that both draw would need N * k of about M * M = 4e9 for the same; that is not
  attempted (`symmetric-both`). Two that both count walk through their ports in step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, Self

from ..reach.reachability import Behaviour, Pattern, Reachability
from . import defaults


@dataclass(frozen=True, slots=True)
class Nat:
    """What one side knows of what is in front of it. `preserves`: the outer port is the inner
    one where that is free. `counts`: outer ports follow each other. `udp`: any gets out."""

    mapping: Behaviour = Behaviour.UNKNOWN
    filtering: Behaviour = Behaviour.UNKNOWN
    preserves: bool = False
    counts: bool = False
    udp: bool = True

    @property
    def hard(self) -> bool:
        """Whether a peer meets another port than others have seen."""
        return self.mapping.symmetric

    @property
    def strict(self) -> bool:
        """Whether a peer gets in only from the port that was sent to. The unknown counts as
        strict: it is what most homes have."""
        return self.filtering in (Behaviour.ADDRESS_AND_PORT_DEPENDENT, Behaviour.UNKNOWN)

    @classmethod
    def of(cls, verdict: Reachability) -> Self:
        """From what was measured."""
        kind, pattern = verdict.udp, verdict.udp.allocation.pattern
        return cls(
            kind.mapping,
            kind.filtering,
            preserves=pattern is Pattern.PRESERVING or kind.mapping is Behaviour.NONE,
            counts=pattern is Pattern.SEQUENTIAL,
            udp=kind.blocked is not True,
        )


class Plan(StrEnum):
    """What one side does in a round, beside ordinary checks."""

    CHECKS = "checks"  # nothing else is needed
    COUNT = "count"  # we are hard, and our NAT counts: tell the peer where it stands
    FOLLOW = "follow"  # the peer's NAT counts: try the next ports
    STEP = "step"  # both NATs count: walk in step
    OPEN = "open"  # we are hard: open many sockets
    SPRAY = "spray"  # the peer is hard: try many ports
    HOPELESS = "symmetric-both"
    SPARED = "search-spared"  # only a search would do, and the path is not worth one
    BLOCKED = "udp-blocked"


def plan(mine: Nat, theirs: Nat, *, search: bool = True) -> Plan:
    """What our side does. The other side, asked the same with both turned round, fits to it.
    Without `search` no birthday search is made.

    A hard side's port is not known to the other: so its own check has to come through, past
    the other's filter, before there is one back.
    """
    if not (mine.udp and theirs.udp):
        return Plan.BLOCKED
    if mine.hard and theirs.hard:
        if _meet_though_hard(mine, theirs):
            return Plan.CHECKS
        return Plan.STEP if mine.counts and theirs.counts else Plan.HOPELESS
    if mine.hard and theirs.strict:
        return Plan.COUNT if mine.counts else Plan.OPEN if search else Plan.SPARED
    if theirs.hard and mine.strict:
        return Plan.FOLLOW if theirs.counts else Plan.SPRAY if search else Plan.SPARED
    return Plan.CHECKS


def _meet_though_hard(one: Nat, other: Nat) -> bool:
    """Two hard sides, unpredicted. One must let everybody in at the port that observers saw, the
    other must then let in an answer from another port than that; and one must have the same
    port for all ports of its peer, or no answer ever comes from where was asked."""
    nats = one, other
    return (
        any(nat.filtering is Behaviour.ENDPOINT_INDEPENDENT for nat in nats)
        and not any(nat.strict for nat in nats)
        and any(nat.mapping is Behaviour.ADDRESS_DEPENDENT for nat in nats)
    )


def step_of(ports: Sequence[int]) -> int | None:
    """The step of a NAT that counts, from ports that it gave one after the other to one socket
    (different destinations); None where they do not follow each other.

    Flows of others take ports in between, so a step may be a multiple; the smallest is taken.
    """
    steps = [b - a for a, b in pairwise(ports)]
    if not steps or not all(steps) or len({step > 0 for step in steps}) > 1:
        return None
    if any(abs(step) > defaults.DELTA for step in steps):
        return None
    return min(steps, key=abs)


def sequence(last: int, step: int, count: int = defaults.SEQUENCE) -> list[int]:
    """The next `count` ports after `last` of a NAT that counts; those in range."""
    low, size = 65536 - defaults.NAT_PORTS, defaults.NAT_PORTS
    return [low + (last + step * i - low) % size for i in range(1, count + 1)]


def meets(sockets: int, probes: int, ports: int = defaults.NAT_PORTS) -> float:
    """The probability that a birthday search succeeds, nothing being lost."""
    missed = 1.0
    for i in range(min(probes, ports)):
        missed *= max(0, ports - sockets - i) / (ports - i)
    return 1.0 - missed


_WORD: Final = 4  # bytes of entropy a port


def random_ports(entropy: Callable[[int], bytes], count: int) -> Iterator[int]:
    """`count` different ports from 1024 up, drawn evenly."""
    low, size = 65536 - defaults.NAT_PORTS, defaults.NAT_PORTS
    drawn: set[int] = set()
    while len(drawn) < min(count, size):
        pool = entropy(_WORD * 64)
        for at in range(0, len(pool), _WORD):
            port = low + int.from_bytes(pool[at : at + _WORD]) % size
            if port not in drawn and len(drawn) < count:
                drawn.add(port)
                yield port
