"""Prediction of NAT ports: chooses the plan for two NATs, and the ports to try.

The *hard* side is behind a symmetric NAT, which gives it another outer port for each peer (RFC
4787: address-dependent mapping, or address- and port-dependent mapping). The *easy* side is behind
another kind of NAT, and its outer port is known. If the easy side's filter accepts any port of the
hard side's address, the checks of the hard side arrive, and show its port. Otherwise the easy side
has to guess that port:

- The hard side's NAT allocates ports sequentially (a *counting* NAT). The hard side asks several
  observers in a row. The ports that they see show which ports are next (`sequence`).
- The NAT allocates random ports. The two sides make a *birthday search* (RFC 5128, section 3.4,
  calls this impractical for a single socket). The hard side opens N sockets, and sends from each of
  them to the easy side's port. N of the M = 64,512 ports from which its NAT chooses are then open
  to the easy side. The easy side sends to k different random ports. The probability that it misses
  all N is the product of (M - N - i) / (M - i) over i < k, which is at most (1 - N/M)^k. With
  N = 256 and k = 1,400, 99.6 % of the searches succeed. No address then receives more than 1,500
  datagrams, which the budget allows.
- Both sides are hard. With random ports, N * k would have to be about M * M = 4e9. That is not
  attempted (`symmetric-both`). If both NATs are counting NATs, both sides go through their ports in
  step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, Self

from ..reach.reachability import Behaviour, Pattern, Reachability
from . import defaults


@dataclass(frozen=True, slots=True)
class NatProfile:
    """Description of one side's NAT, as far as that side knows it."""

    mapping: Behaviour = Behaviour.UNKNOWN
    filtering: Behaviour = Behaviour.UNKNOWN
    preserves: bool = False  # whether the outer port equals the inner port if that is free
    counts: bool = False  # whether ports are allocated sequentially
    udp: bool = True  # False if UDP is blocked

    @property
    def hard(self) -> bool:
        """Whether the NAT is symmetric: each peer sees another outer port."""
        return self.mapping.symmetric

    @property
    def strict(self) -> bool:
        """Whether the filter accepts datagrams only from addresses and ports that were sent to.

        If the filtering is unknown, this is True, because most home routers filter in this way.
        """
        return self.filtering in (Behaviour.ADDRESS_AND_PORT_DEPENDENT, Behaviour.UNKNOWN)

    @classmethod
    def of(cls, verdict: Reachability) -> Self:
        """Return the description that follows from a reachability measurement."""
        kind, pattern = verdict.udp, verdict.udp.allocation.pattern
        return cls(
            kind.mapping,
            kind.filtering,
            preserves=pattern is Pattern.PRESERVING or kind.mapping is Behaviour.NONE,
            counts=pattern is Pattern.SEQUENTIAL,
            udp=kind.blocked is not True,
        )


class PredictionPlan(StrEnum):
    """Action of one side in a round, besides ordinary checks."""

    CHECKS = "checks"  # nothing else is needed
    COUNT = "count"  # we are behind a counting NAT: tell the peer its latest port
    FOLLOW = "follow"  # the peer is behind a counting NAT: check its next ports
    STEP = "step"  # both sides are behind counting NATs: check each other's next ports in step
    OPEN = "open"  # we are the hard side of a birthday search: open many sockets
    SPRAY = "spray"  # we are the easy side of a birthday search: try many ports
    HOPELESS = "symmetric-both"  # both sides are hard, and ports are not sequential
    SPARED = "search-spared"  # only a birthday search would help, and none is wanted
    BLOCKED = "udp-blocked"  # UDP is blocked on one side


def plan(mine: NatProfile, theirs: NatProfile, *, search: bool = True) -> PredictionPlan:
    """Return the plan of our side. The peer computes the matching plan with both NATs swapped.

    If `search` is False, the plan is never a birthday search. Prediction is needed only if one side
    is hard and the filter of the other side is strict. That filter rejects the checks of the hard
    side, because they come from an unknown port.
    """
    if not (mine.udp and theirs.udp):
        return PredictionPlan.BLOCKED
    if mine.hard and theirs.hard:
        if _meet_though_hard(mine, theirs):
            return PredictionPlan.CHECKS
        return PredictionPlan.STEP if mine.counts and theirs.counts else PredictionPlan.HOPELESS
    if mine.hard and theirs.strict:
        return (
            PredictionPlan.COUNT
            if mine.counts
            else PredictionPlan.OPEN
            if search
            else PredictionPlan.SPARED
        )
    if theirs.hard and mine.strict:
        return (
            PredictionPlan.FOLLOW
            if theirs.counts
            else PredictionPlan.SPRAY
            if search
            else PredictionPlan.SPARED
        )
    return PredictionPlan.CHECKS


def _meet_though_hard(one: NatProfile, other: NatProfile) -> bool:
    """Return whether two hard sides can get a path without prediction.

    Three conditions must hold. The filter of one side accepts any sender, so that checks to the
    port that observers saw arrive. The other side accepts a reply from another port than that one.
    And the NAT of one side uses the same outer port for all ports of the peer; otherwise no reply
    would ever come from the address that was asked.
    """
    nats = one, other
    return (
        any(nat.filtering is Behaviour.ENDPOINT_INDEPENDENT for nat in nats)
        and not any(nat.strict for nat in nats)
        and any(nat.mapping is Behaviour.ADDRESS_DEPENDENT for nat in nats)
    )


def step_of(ports: Sequence[int]) -> int | None:
    """Return the step of a counting NAT, or None if `ports` do not fit such a NAT.

    `ports` are the outer ports that the NAT has allocated to one socket for different destinations,
    in order. Other connections may have been given ports in between, so a difference may be a
    multiple of the step. The smallest difference is returned.
    """
    steps = [b - a for a, b in pairwise(ports)]
    if not steps or not all(steps) or len({step > 0 for step in steps}) > 1:
        return None
    if any(abs(step) > defaults.DELTA for step in steps):
        return None
    return min(steps, key=abs)


def sequence(last: int, step: int, count: int = defaults.SEQUENCE) -> list[int]:
    """Return the next `count` ports of a counting NAT after `last`.

    Ports beyond 65535 continue at 1024, and those below 1024 at 65535.
    """
    low, size = 65536 - defaults.NAT_PORTS, defaults.NAT_PORTS
    return [low + (last + step * i - low) % size for i in range(1, count + 1)]


_WORD: Final = 4  # bytes of entropy for each port


def random_ports(entropy: Callable[[int], bytes], count: int) -> Iterator[int]:
    """Yield `count` different random ports from 1024 to 65535, uniformly distributed."""
    low, size = 65536 - defaults.NAT_PORTS, defaults.NAT_PORTS
    drawn: set[int] = set()
    while len(drawn) < min(count, size):
        pool = entropy(_WORD * 64)
        for at in range(0, len(pool), _WORD):
            port = low + int.from_bytes(pool[at : at + _WORD]) % size
            if port not in drawn and len(drawn) < count:
                drawn.add(port)
                yield port
