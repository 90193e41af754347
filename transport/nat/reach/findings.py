"""Findings about this node's connection to the internet, as sentences for its owner.

`shoal doctor` shows them. Every finding is based on a measurement by this node or on reports of
peers. If too few peers have reported, one finding says so. This module does no I/O.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from . import defaults
from .reachability import Behaviour, DialBackResult, Dialled, Ipv6, Pattern, Reachability


@dataclass(frozen=True, slots=True)
class ReachFinding:
    """A fact about this node's connection to the internet."""

    code: str  # for programs
    sentence: str  # for people
    hint: str = ""  # what the owner could change; "" if no change is needed


class Strategy(StrEnum):
    """Method by which this node and a peer can get a path to each other. The best come first."""

    LAN = "lan"
    PUBLIC = "public"  # this node's own public address
    MAPPED = "mapped"  # a port that this node's router forwards
    TCP_PUNCH = "tcp-punch"
    UDP_PUNCH = "udp-punch"
    PREDICTION = "prediction"  # UDP hole punching with predicted ports
    RELAY = "relay"
    TCP_443 = "tcp-443"  # a relay on TCP port 443


@dataclass(frozen=True, slots=True)
class PortMap:
    """Result of port mapping. Both fields are "" if no router answered."""

    protocol: str = ""  # "PCP", "NAT-PMP" or "UPnP" if the router mapped a port
    refused: str = ""  # the reason if the router refused


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts from which all findings are derived."""

    reach: Reachability
    port: int  # this node's port for TCP and UDP
    portmap: PortMap | None = None  # None if port mapping was not tried
    worked: Collection[Strategy] = ()  # strategies that have made a link since the node's start
    failed: Collection[Strategy] = ()  # strategies that were tried and never made one
    relays: int = 0  # nodes that offer to relay, a count
    relays_443: int = 0  # those of them that listen on TCP port 443
    linked: int = 0  # linked peers, a count


def findings(now: Situation) -> list[ReachFinding]:
    """Return all findings, the most important first."""
    return [
        *_few_peers(now),
        *_public(now),
        *_nat(now),
        *_udp(now),
        *_portmap(now),
        *_cgn(now),
        *_ipv6(now),
        *_strategies(now),
    ]


def _few_peers(now: Situation) -> Iterator[ReachFinding]:
    have = now.reach.udp.asked if now.reach.udp.blocked else now.reach.observers
    missing = max(2 - have, 0)
    if missing:
        peers = "one more peer is" if missing == 1 else "two more peers are"
        hint = "leave the node running; it measures again when it has more links"
        if now.linked > max(have, 1):
            peers = (
                f"{now.linked} peers are linked, but {have or 'none'} of them can say how this "
                "node looks from outside its own network; two such peers are"
            )
            hint = "link with peers on other networks (`shoal invite`); it measures again then"
        yield ReachFinding(
            "too-few-peers",
            f"{peers} needed to tell what kind of router is in the way: this is measured by peers, "
            "no central service is asked",
            hint,
        )
    elif have < defaults.ENOUGH_OBSERVERS and not now.reach.udp.blocked:
        yield ReachFinding(
            "two-witnesses",
            "only two peers told what they see, so if one of them is wrong this is wrong too",
        )


def _public(now: Situation) -> Iterator[ReachFinding]:
    reach, port = now.reach, now.port
    if reach.public:
        ways = sorted({item.transport.upper() for item in _by(reach, DialBackResult.REACHED)})
        yield ReachFinding(
            "public", f"strangers can connect to this node by {' and '.join(ways)} without help"
        )
        if ways == ["UDP"] or (ways == ["TCP"] and reach.udp.blocked is False):
            other = "TCP" if ways == ["UDP"] else "UDP"
            yield ReachFinding(
                "half-open",
                f"but not by {other}",
                f"open {other} port {port} to this machine as well",
            )
    elif reach.public is False and reach.udp.mapping is Behaviour.NONE:
        yield ReachFinding(
            "firewalled",
            "this machine has a public address, but a firewall keeps strangers out",
            f"allow incoming TCP and UDP port {port} in the firewall",
        )
    elif reach.public is None:
        yield ReachFinding(
            "public-unknown", "no peer has tried yet whether it can connect to this node"
        )


def _by(reach: Reachability, answer: DialBackResult) -> list[Dialled]:
    return [item for item in reach.dialled if item.answer is answer]


_MAPPINGS = {
    Behaviour.ENDPOINT_INDEPENDENT: "the router gives this node one outer port, which all peers "
    "see alike, so two such nodes can punch through to each other (endpoint-independent mapping)",
    Behaviour.ADDRESS_DEPENDENT: "the router gives this node another outer port for every peer "
    '(address-dependent mapping, "symmetric")',
    Behaviour.ADDRESS_AND_PORT_DEPENDENT: "the router gives this node another outer port for every "
    'connection (address- and port-dependent mapping, "symmetric")',
}
_FILTERINGS = {
    Behaviour.ENDPOINT_INDEPENDENT: "once this node has sent anything, any computer may answer "
    '(endpoint-independent filtering, "full cone")',
    Behaviour.ADDRESS_DEPENDENT: "only computers that this node has sent to may answer "
    '(address-dependent filtering, "restricted cone")',
    Behaviour.ADDRESS_AND_PORT_DEPENDENT: "only the very port that this node has sent to may "
    'answer (address- and port-dependent filtering, "port-restricted")',
}
_PATTERNS = {
    Pattern.PRESERVING: "it keeps port numbers where it can (port preservation)",
    Pattern.RANDOM: "its port numbers cannot be foreseen (random allocation)",
}


def _nat(now: Situation) -> Iterator[ReachFinding]:
    kind = now.reach.udp
    if kind.mapping is Behaviour.NONE:
        yield ReachFinding("no-nat", "no router translates this machine's address (no NAT)")
        return
    hint = "" if now.reach.public else f"forward TCP and UDP port {now.port} to this machine"
    if kind.mapping in _MAPPINGS:
        symmetric = kind.mapping.symmetric
        yield ReachFinding(
            "nat-symmetric" if symmetric else "nat-easy",
            _MAPPINGS[kind.mapping],
            hint if symmetric else "",
        )
        if kind.filtering in _FILTERINGS:
            yield ReachFinding("nat-filter", _FILTERINGS[kind.filtering])
        if kind.allocation.pattern is Pattern.SEQUENTIAL:
            step = abs(kind.allocation.delta)
            yield ReachFinding(
                "nat-ports", f"its port numbers go up by about {step} (sequential allocation)"
            )
        elif kind.allocation.pattern in _PATTERNS:
            yield ReachFinding("nat-ports", _PATTERNS[kind.allocation.pattern])
    if kind.dissenters:
        count = len(kind.dissenters)
        yield ReachFinding(
            "dissent",
            f"{count} of {kind.answered} peers saw something else; the majority counts",
        )


def _udp(now: Situation) -> Iterator[ReachFinding]:
    if now.reach.udp.blocked:
        yield ReachFinding(
            "udp-blocked",
            "UDP does not get out of this network: no peer heard any, so only TCP is used",
            f"allow outgoing UDP in the firewall, from port {now.port}",
        )


def _portmap(now: Situation) -> Iterator[ReachFinding]:
    found, port = now.portmap, now.port
    by_hand = f"or forward TCP and UDP port {port} to this machine by hand"
    if found is None or now.reach.udp.mapping is Behaviour.NONE:
        return
    if found.protocol:
        yield ReachFinding("mapped", f"the router opened a port for this node ({found.protocol})")
        if now.reach.public is False:
            yield ReachFinding(
                "mapped-in-vain",
                "but strangers still cannot connect there",
                "look for a second router or a firewall in the way",
            )
    elif found.refused:
        yield ReachFinding(
            "map-refused",
            f"the router refused to open a port: {found.refused}",
            f"enable UPnP or NAT-PMP in the router, {by_hand}",
        )
    else:
        yield ReachFinding(
            "no-map",
            "no router answered to UPnP, NAT-PMP or PCP",
            f"enable UPnP or NAT-PMP in the router, {by_hand}",
        )


def _cgn(now: Situation) -> Iterator[ReachFinding]:
    if now.reach.cgn:
        yield ReachFinding(
            "double-nat",
            "a second router stands behind the first: the provider shares one public address among "
            "customers (carrier-grade NAT), or two routers are chained at home",
            "ask the provider for a public IPv4 address, or for IPv6; put a second router of your "
            "own into bridge mode",
        )


def _ipv6(now: Situation) -> Iterator[ReachFinding]:
    state, port = now.reach.ipv6, now.port
    if state is Ipv6.OPEN:
        yield ReachFinding("ipv6-open", "strangers can connect over IPv6")
    elif state is Ipv6.FILTERED:
        yield ReachFinding(
            "ipv6-filtered",
            "this machine has a public IPv6 address, but a firewall keeps strangers out",
            f"allow incoming TCP and UDP port {port} to this machine over IPv6 in the router",
        )
    elif state is Ipv6.NONE and now.reach.public is False:
        yield ReachFinding(
            "ipv6-none",
            "this machine has no public IPv6 address",
            "ask the provider for IPv6, or enable it in the router",
        )


# The strategies.


class Hope(StrEnum):
    """Prospect that a strategy works from this node."""

    WORKS = "works"  # it has made a link, or a measurement has proven it
    LIKELY = "likely"
    UNLIKELY = "unlikely"
    NO = "no"
    NOBODY = "nobody"  # it needs a relay, and none is known
    UNKNOWN = "unknown"


def dialer(now: Situation) -> dict[Strategy, Hope]:
    """Return how likely each strategy is to work.

    If a strategy was tried, its success or failure counts. Otherwise this predicts from the
    measurements.
    """
    reach = now.reach
    promised = {
        Strategy.LAN: Hope.UNKNOWN,
        Strategy.PUBLIC: _own_address(now),
        Strategy.MAPPED: _mapped(now),
        Strategy.TCP_PUNCH: _punch(reach.tcp_mapping),
        Strategy.UDP_PUNCH: Hope.NO if reach.udp.blocked else _punch(reach.udp.mapping),
        Strategy.PREDICTION: _prediction(reach),
        Strategy.RELAY: Hope.LIKELY if now.relays else Hope.NOBODY,
        Strategy.TCP_443: Hope.LIKELY if now.relays_443 else Hope.NOBODY,
    }
    seen = dict.fromkeys(now.failed, Hope.UNLIKELY) | dict.fromkeys(now.worked, Hope.WORKS)
    return promised | seen


def _hope(known: bool | None) -> Hope:
    """Convert a test result to a prospect. None means that there was no test."""
    return Hope.UNKNOWN if known is None else Hope.WORKS if known else Hope.NO


def _own_address(now: Situation) -> Hope:
    """Return the prospect of a dial to this node's own public address.

    If the router has mapped a port, peers that reached this node may have used that port. Their
    success does not show that its own address works.
    """
    if now.portmap is not None and now.portmap.protocol and now.reach.public:
        return Hope.WORKS if now.reach.udp.mapping is Behaviour.NONE else Hope.NO
    return _hope(now.reach.public)


def _mapped(now: Situation) -> Hope:
    if now.portmap is None:
        return Hope.UNKNOWN
    if not now.portmap.protocol or now.reach.cgn:
        return Hope.NO
    return Hope.LIKELY if now.reach.public is None else _hope(now.reach.public)


def _punch(mapping: Behaviour) -> Hope:
    if mapping is Behaviour.UNKNOWN:
        return Hope.UNKNOWN
    return Hope.UNLIKELY if mapping.symmetric else Hope.LIKELY


def _prediction(reach: Reachability) -> Hope:
    """Return the prospect of hole punching with predicted ports.

    Prediction is needed only if one of the two NATs is symmetric. If this node's NAT is symmetric
    and its ports are not sequential, prediction can succeed only with a peer whose NAT is not
    symmetric.
    """
    kind = reach.udp
    if kind.blocked:
        return Hope.NO
    if kind.mapping is Behaviour.UNKNOWN:
        return Hope.UNKNOWN
    sequential = kind.allocation.pattern is Pattern.SEQUENTIAL
    return Hope.LIKELY if sequential or not kind.mapping.symmetric else Hope.UNLIKELY


_NAMES = {
    Strategy.LAN: "the local network",
    Strategy.PUBLIC: "this node's own public address",
    Strategy.MAPPED: "a port opened by the router",
    Strategy.TCP_PUNCH: "TCP hole punching",
    Strategy.UDP_PUNCH: "UDP hole punching",
    Strategy.PREDICTION: "guessing the router's ports",
    Strategy.RELAY: "relays",
    Strategy.TCP_443: "relays on TCP port 443",
}
_WORDS = {
    Hope.WORKS: "works",
    Hope.LIKELY: "should work, and has not been needed yet",
    Hope.UNLIKELY: "seldom works from here",
    Hope.NO: "does not work from here",
    Hope.NOBODY: "none is known yet",
    Hope.UNKNOWN: "not known yet",
}


def _strategies(now: Situation) -> Iterator[ReachFinding]:
    for strategy, hope in dialer(now).items():
        yield ReachFinding(f"strategy-{strategy}", f"{_NAMES[strategy]}: {_WORDS[hope]}")
