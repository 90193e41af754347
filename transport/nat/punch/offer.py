"""Encoding of the offer that begins a round of hole punching, and of the reply to it.

docs/spec/punch.md, section 1, describes the fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...defaults import LOW_PORT
from ...host.datagrams import Place
from ...networks import plain_ip
from ..reach.reachability import Behaviour
from . import candidates, defaults
from .candidates import Candidate
from .predict import NatProfile

_MOST_RTT_S: Final = 10.0  # longest round trip that is accepted
_BEHAVIOURS: Final = {str(each): each for each in Behaviour}


@dataclass(frozen=True, slots=True)
class Counting:
    """State of a NAT that allocates ports sequentially."""

    ip: str  # its outer IP address
    last: int  # the port that it allocated last
    step: int  # difference between one port and the next


@dataclass(frozen=True, slots=True)
class PunchOffer:
    """Data that one side sends to the other before a round, in an offer or in the reply to one."""

    name: bytes  # of the attempt
    round: int  # counted from 1
    secret: bytes
    """Key with which the other side signs the checks that it sends to this side."""
    nat: NatProfile
    candidates: Sequence[Candidate] = ()
    comb: Sequence[Place | None] = ()
    """Addresses at which this side's sockets of the comb are seen, in order; None for a socket that
    no observer has seen."""
    counting: Counting | None = None
    rtt: float = 0.0
    """Round trip of the link in seconds, as measured by the offering side."""
    search: Place | None = None
    """Address from which this side makes a birthday search. None if it would use its UDP port."""
    thrifty: bool = False
    """Whether the offering side wants no birthday search."""
    busy: bool = False
    """Whether this side makes no birthday search in this round."""

    @property
    def places(self) -> list[Place]:
        """The addresses of the comb, without the sockets that no observer has seen."""
        return [place for place in self.comb if place is not None]


def encode(offer: PunchOffer) -> dict[str, object]:
    """Encode an offer as the header of the call `punch.offer`, or of its reply."""
    nat = offer.nat
    header: dict[str, object] = {
        "a": offer.name,
        "r": offer.round,
        "k": offer.secret,
        "n": [str(nat.mapping), str(nat.filtering), nat.preserves, nat.counts, nat.udp],
        "c": candidates.encode(offer.candidates),
        "t": offer.rtt,
    }
    if offer.comb:
        header["b"] = [None if place is None else [*place] for place in offer.comb]
    if offer.counting is not None:
        header["s"] = [offer.counting.ip, offer.counting.last, offer.counting.step]
    if offer.search is not None:
        header["f"] = [*offer.search]
    if offer.thrifty:
        header["l"] = True
    if offer.busy:
        header["w"] = True
    return header


def decode(header: Mapping[str, object]) -> PunchOffer | None:
    """Decode a peer's offer, or its reply to one.

    Returns None if a field is missing, has a wrong type or is out of bounds.
    """
    name, number, secret = header.get("a"), header.get("r"), header.get("k")
    if not isinstance(name, bytes) or len(name) != defaults.ATTEMPT_BYTES:
        return None
    if not isinstance(secret, bytes) or len(secret) != defaults.SECRET_BYTES:
        return None
    if type(number) is not int or not 1 <= number <= 255:
        return None
    nat, found = _nat(header.get("n")), candidates.decode(header.get("c"))
    comb, rtt = _comb(header.get("b", [])), _seconds(header.get("t"))
    if nat is None or found is None or comb is None or rtt is None:
        return None
    thrifty, busy = header.get("l", False), header.get("w", False)
    if type(thrifty) is not bool or type(busy) is not bool:
        return None
    offer = PunchOffer(
        name, number, secret, nat, found, comb, None, rtt, thrifty=thrifty, busy=busy
    )
    if "f" in header:
        offer = replace(offer, search=_place(header["f"]))
        if offer.search is None or offer.search[1] < LOW_PORT:
            return None
    if "s" not in header:
        return offer
    counting = _counting(header["s"])
    return None if counting is None else replace(offer, counting=counting)


def _nat(value: object) -> NatProfile | None:
    if not isinstance(value, list) or len(value) != 5:
        return None
    mapping, filtering, *flags = value
    if not isinstance(mapping, str) or not isinstance(filtering, str):
        return None
    if mapping not in _BEHAVIOURS or filtering not in _BEHAVIOURS:
        return None
    if not all(type(flag) is bool for flag in flags):
        return None
    preserves, counts, udp = flags
    return NatProfile(_BEHAVIOURS[mapping], _BEHAVIOURS[filtering], preserves, counts, udp)


def _seconds(value: object) -> float | None:
    """Return a number of seconds. Return None if `value` is anything but a number from 0 to
    `_MOST_RTT_S`."""
    if type(value) not in (int, float) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MOST_RTT_S else None


def _place(value: object) -> Place | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    ip, port = value
    if not isinstance(ip, str) or type(port) is not int or not 0 < port < 65536:
        return None
    plain = plain_ip(ip)
    return None if plain is None else (plain, port)


def _comb(value: object) -> list[Place | None] | None:
    if not isinstance(value, list) or len(value) > defaults.COMB:
        return None
    found: list[Place | None] = []
    for item in value:
        place = None if item is None else _place(item)
        if item is not None and place is None:
            return None
        found.append(place)
    return found


def _counting(value: object) -> Counting | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    ip, last, step = value
    place = _place([ip, last])
    if place is None or type(step) is not int or not 1 <= abs(step) <= defaults.DELTA:
        return None
    return Counting(*place, step)
