"""Encoding of the offer that starts a punching round, and of its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...defaults import LOW_PORT
from ...host.datagrams import Place
from ...networks import plain_ip
from ..reach.reachability import Behaviour
from . import candidates, defaults
from .candidates import Candidate
from .predict import Nat

_MOST_RTT_S: Final = 10.0
_BEHAVIOURS: Final = {str(each): each for each in Behaviour}


@dataclass(frozen=True, slots=True)
class Counting:
    """State of a counting NAT: the last outer port of our IP address, and its step."""

    ip: str
    last: int
    step: int


@dataclass(frozen=True, slots=True)
class Offer:
    """One side's part of a round.

    `secret` signs what the other side sends to this one. `comb` are the outer addresses of fresh
    sockets, in order, None for one that was not seen. `rtt` is the link's round trip in seconds,
    as measured by the offering side. `search` is the source of this side's search, None if that
    is its port itself. `thrifty`: the offering side wants no search. `busy`: this side makes no
    search in this round, because others are running here.
    """

    name: bytes
    round: int
    secret: bytes
    nat: Nat
    candidates: Sequence[Candidate] = ()
    comb: Sequence[Place | None] = ()
    counting: Counting | None = None
    rtt: float = 0.0
    search: Place | None = None
    thrifty: bool = False
    busy: bool = False

    @property
    def places(self) -> list[Place]:
        """The addresses of the comb that were seen."""
        return [place for place in self.comb if place is not None]


def encode(offer: Offer) -> dict[str, object]:
    """Return the header of a call, or of its reply."""
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


def decode(header: Mapping[str, object]) -> Offer | None:
    """Decode a peer's offer or answer. None if anything has a wrong type or is out of bounds."""
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
    offer = Offer(name, number, secret, nat, found, comb, None, rtt, thrifty=thrifty, busy=busy)
    if "f" in header:
        offer = replace(offer, search=_place(header["f"]))
        if offer.search is None or offer.search[1] < LOW_PORT:
            return None
    if "s" not in header:
        return offer
    counting = _counting(header["s"])
    return None if counting is None else replace(offer, counting=counting)


def _nat(value: object) -> Nat | None:
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
    return Nat(_BEHAVIOURS[mapping], _BEHAVIOURS[filtering], preserves, counts, udp)


def _seconds(value: object) -> float | None:
    """Return a number of seconds if it is within bounds; NaN is not."""
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
