"""Prediction of NAT ports: chooses the plan for two NATs, and the ports to try.

A *hard* side gets another outer port for each peer (RFC 4787: address-dependent mapping, or worse;
"symmetric"). The *easy* side's port is known. A hard side is reached if the other side accepts any
port. If it does not, the port has to be guessed:

- A counting NAT is asked at least twice in a row. The next ports follow (`sequence`).
- A random NAT is met by a birthday search (RFC 5128 3.4 calls it impractical for one socket). The
hard side opens N sockets, each sending to the easy side's port. So N of the M = 64,512 ports that
its NAT picks from are open towards the easy side, which sends to k random ports. The chance that
none of k different ports is one of the N is the product over i < k of (M - N - i) / (M - i), at
most (1 - N/M)^k. With N = 256 and k = 1,400, 99.6 % meet, and no address gets more than the 1,500
datagrams that the budget allows.
- Two hard sides with random ports would need N * k of about M * M = 4e9 for the same. That is not
attempted (`symmetric-both`). Two counting sides walk through their ports in step.
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
    """One side's knowledge of its NAT. `preserves`: the outer port equals the inner one if that is
    free. `counts`: outer ports are consecutive. `udp`: any UDP gets out."""

    mapping: Behaviour = Behaviour.UNKNOWN
    filtering: Behaviour = Behaviour.UNKNOWN
    preserves: bool = False
    counts: bool = False
    udp: bool = True

    @property
    def hard(self) -> bool:
        """Whether a peer sees another port than other peers have seen."""
        return self.mapping.symmetric

    @property
    def strict(self) -> bool:
        """Whether a peer gets in only from the port that was sent to. Unknown filtering counts as
        strict, because most homes have that."""
        return self.filtering in (Behaviour.ADDRESS_AND_PORT_DEPENDENT, Behaviour.UNKNOWN)

    @classmethod
    def of(cls, verdict: Reachability) -> Self:
        """Return the NAT that was measured."""
        kind, pattern = verdict.udp, verdict.udp.allocation.pattern
        return cls(
            kind.mapping,
            kind.filtering,
            preserves=pattern is Pattern.PRESERVING or kind.mapping is Behaviour.NONE,
            counts=pattern is Pattern.SEQUENTIAL,
            udp=kind.blocked is not True,
        )


class Plan(StrEnum):
    """What one side does in a round besides ordinary checks."""

    CHECKS = "checks"  # nothing else is needed
    COUNT = "count"  # we are hard and our NAT counts: tell the peer its current port
    FOLLOW = "follow"  # the peer's NAT counts: try the next ports
    STEP = "step"  # both NATs count: walk in step
    OPEN = "open"  # we are hard: open many sockets
    SPRAY = "spray"  # the peer is hard: try many ports
    HOPELESS = "symmetric-both"
    SPARED = "search-spared"  # only a search would help, and the path is not worth one
    BLOCKED = "udp-blocked"


def plan(mine: Nat, theirs: Nat, *, search: bool = True) -> Plan:
    """Return our side's plan. The other side computes the matching one, with both swapped.
    Without `search` no birthday search is made.

    A hard side's port is not known to the other side. So its own check has to pass the other's
    filter before a reply can come back.
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
    """Whether two hard sides meet without prediction. One must accept any sender at the port that
    observers saw. The other must accept a reply from another port than that. And one must use the
    same port for all ports of its peer, or no reply ever comes from the address asked."""
    nats = one, other
    return (
        any(nat.filtering is Behaviour.ENDPOINT_INDEPENDENT for nat in nats)
        and not any(nat.strict for nat in nats)
        and any(nat.mapping is Behaviour.ADDRESS_DEPENDENT for nat in nats)
    )


def step_of(ports: Sequence[int]) -> int | None:
    """Return the step of a counting NAT from ports that it gave successively to one socket (for
    different destinations). None if they are not successive.

    Other flows take ports in between, so a step may be a multiple. The smallest is returned.
    """
    steps = [b - a for a, b in pairwise(ports)]
    if not steps or not all(steps) or len({step > 0 for step in steps}) > 1:
        return None
    if any(abs(step) > defaults.DELTA for step in steps):
        return None
    return min(steps, key=abs)


def sequence(last: int, step: int, count: int = defaults.SEQUENCE) -> list[int]:
    """Return the next `count` ports of a counting NAT after `last`, wrapped into its range."""
    low, size = 65536 - defaults.NAT_PORTS, defaults.NAT_PORTS
    return [low + (last + step * i - low) % size for i in range(1, count + 1)]


_WORD: Final = 4  # bytes of entropy for each port


def random_ports(entropy: Callable[[int], bytes], count: int) -> Iterator[int]:
    """Yield `count` different ports from 1024 up, uniformly distributed."""
    low, size = 65536 - defaults.NAT_PORTS, defaults.NAT_PORTS
    drawn: set[int] = set()
    while len(drawn) < min(count, size):
        pool = entropy(_WORD * 64)
        for at in range(0, len(pool), _WORD):
            port = low + int.from_bytes(pool[at : at + _WORD]) % size
            if port not in drawn and len(drawn) < count:
                drawn.add(port)
                yield port
