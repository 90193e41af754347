"""One measurement of how peers can reach this node, with all requests to peers that it needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import trio

from ...errors import HostError
from ...guard import Guard
from ...host.datagrams import Place
from ...host.seam import Host
from ...networks import CARRIER, is_public, parse_ip
from . import asking, defaults
from .dialback import Awaited, WantedDialBack
from .linkedpeers import LinkedPeers
from .natkind import NatRequest
from .offers import LinkedPeer, observers, spread
from .probing import classify
from .reachability import Behaviour, DialBackResult, Dialled, Ipv6, Reachability, UdpKind


@dataclass(frozen=True, slots=True)
class Mapped:
    """Result of port mapping, as the router reports it. A field is None if the router did not
    report it."""

    tcp: Place | None = None  # outer address that leads to our TCP port
    udp: Place | None = None  # outer address that leads to our UDP port
    wan: str | None = None  # outer IP address of the router


@dataclass(frozen=True, slots=True)
class NodePorts:
    """This node's ports, and the router's mappings to them. `udp` is None if it has no UDP port."""

    tcp: int
    udp: int | None
    mapped: Mapped


class Measurement:
    """One measurement, made with the help of the peers in `linked`.

    Their dial-backs are reported to `awaited`.
    """

    def __init__(
        self,
        host: Host,
        linked: LinkedPeers,
        awaited: Awaited,
        *,
        ports: NodePorts,
        guard: Guard,
        bought: dict[tuple[str, Place], Dialled],
    ) -> None:
        """`ports` are this node's ports and the router's mappings to them.

        `bought` maps (transport, address) to the result of a paid dial-back to that address. The
        measurement reuses these results, and adds its own.
        """
        self._host = host
        self._guard = guard
        self._linked = linked
        self._awaited = awaited
        self._ports = ports
        self._mapped = ports.mapped
        self._bought = bought
        self._own = tuple(item.address for item in host.interfaces())

    async def classify(self, known: Sequence[LinkedPeer]) -> UdpKind:
        """Find out how the NAT treats UDP, with the help of the peers in `known`."""

        async def ask_back(request: NatRequest) -> bool:
            link = self._linked.link(request.peer)
            wanted = WantedDialBack("udp", request.place, request.nonce)
            return link is not None and await asking.ask(link, wanted)

        try:
            return await classify(self._host, observers(known), self._own, ask_back)
        except HostError:  # no socket is available, so nothing is known
            return UdpKind()

    async def complete(self, so_far: Reachability, known: Sequence[LinkedPeer]) -> Reachability:
        """Have peers dial all addresses of this node, and return `so_far` with the results.

        `known` are the peers that may be asked.
        """
        places = list(dict.fromkeys(self._places(so_far)))[: defaults.OWN_PLACES]
        found: dict[tuple[str, Place], Dialled] = {}
        able = spread([each for each in known if each.offer.dials and is_public(each.ip)])
        free = {place: _seeing(place, able) for _, place in places}

        async def try_out(transport: str, place: Place) -> None:
            answers = await self._dial(transport, place, free[place], defaults.DIALLERS)
            answer = self._judge(place, answers, so_far.udp.filtering)
            found[transport, place] = Dialled(transport, place, answer, len(answers))

        async with trio.open_nursery() as nursery:
            for transport, place in places:
                if free[place]:
                    nursery.start_soon(try_out, transport, place)
            for ip in dict.fromkeys(place[0] for _, place in places if not free[place]):
                paid = [key for key in places if key[1][0] == ip and not free[key[1]]]
                nursery.start_soon(self._buy, paid, able, found)
        dialled = tuple(found[key] for key in places if key in found)
        return replace(so_far, dialled=dialled, cgn=self._cgn(so_far), ipv6=self._ipv6(dialled))

    def _places(self, so_far: Reachability) -> Iterator[tuple[str, Place]]:
        """Yield (transport, address) of all addresses that peers shall dial.

        These are the ports that the router forwards, the addresses at which most observers see this
        node's ports, and the public addresses of this machine.
        """
        if self._mapped.tcp is not None and is_public(self._mapped.tcp[0]):
            yield "tcp", self._mapped.tcp
        if self._mapped.udp is not None and is_public(self._mapped.udp[0]):
            yield "udp", self._mapped.udp
        if so_far.tcp_place is not None and not so_far.tcp_mapping.symmetric:
            yield "tcp", so_far.tcp_place
        if so_far.udp_place is not None and not so_far.udp.mapping.symmetric:
            yield "udp", so_far.udp_place
        for ip in sorted(filter(is_public, self._own), key=len):  # IPv4 first
            yield "tcp", (ip, self._ports.tcp)
            if self._ports.udp is not None:
                yield "udp", (ip, self._ports.udp)

    async def _buy(
        self,
        places: Sequence[tuple[str, Place]],
        able: Sequence[LinkedPeer],
        found: dict[tuple[str, Place], Dialled],
    ) -> None:
        """Have peers dial an IP address at which they do not see this node, and pay for it.

        `places` are (transport, address) with this IP address. A payment has 30 to 100 kB. To pay
        rarely, only one peer dials for each transport, the other transports are skipped after a
        failure, and `bought` caches the results.
        """
        for key in places:
            if key not in self._bought:
                answers = await self._dial(*key, able, 1)
                answer = self._judge(key[1], answers, Behaviour.UNKNOWN)
                found[key] = Dialled(*key, answer, len(answers))
                if not answers:
                    return
                self._bought[key] = found[key]
            found[key] = self._bought[key]
            if found[key].answer is not DialBackResult.REACHED:
                return

    async def _dial(
        self, transport: str, place: Place, able: Sequence[LinkedPeer], at_once: int
    ) -> list[bool]:
        """Ask peers to dial an address, until at least one of them has dialled.

        Asks the peers in `able` in turn, `at_once` at a time. Returns for each peer that has
        dialled whether its dial-back arrived.
        """
        answers: list[bool] = []

        async def ask(each: LinkedPeer) -> None:
            link = self._linked.link(each.peer)
            if link is None:
                return
            answer = await asking.dialled_back(self._host, link, self._awaited, transport, place)
            if answer is not None:
                answers.append(answer)

        while able and not answers:
            async with trio.open_nursery() as nursery:
                for each in able[:at_once]:
                    self._guard.start(nursery, each.peer, ask, each)
            able = able[at_once:]
        return answers

    def _judge(self, place: Place, answers: Sequence[bool], filtering: Behaviour) -> DialBackResult:
        """Return the result for one address from the dial-backs to it.

        All peers that dial back are linked, so this node has sent to their IP addresses. If the
        NAT's filter accepts datagrams from such addresses, a dial-back proves nothing about other
        peers, except at a port that the router forwards.
        """
        if not answers:
            return DialBackResult.UNKNOWN
        if not any(answers):
            return DialBackResult.NOT_REACHED
        forwarded = place in (self._mapped.tcp, self._mapped.udp)
        if filtering is Behaviour.ADDRESS_DEPENDENT and not forwarded and ":" not in place[0]:
            return DialBackResult.REACHED_BY_KNOWN
        return DialBackResult.REACHED

    def _cgn(self, so_far: Reachability) -> bool | None:
        """Return whether the router is itself behind another NAT; None if this is unknown."""
        wan = self._mapped.wan
        if wan is not None:
            outside = so_far.udp.public_ip or (so_far.tcp_place or (None, 0))[0]
            return True if not is_public(wan) else None if outside is None else wan != outside
        if any(parse_ip(ip) in CARRIER for ip in self._own if ":" not in ip):
            return True
        return False if so_far.udp.mapping is Behaviour.NONE else None

    def _ipv6(self, dialled: Sequence[Dialled]) -> Ipv6:
        """Return whether this node can be reached over IPv6, from the results of the dial-backs."""
        if not any(":" in ip and is_public(ip) for ip in self._own):
            return Ipv6.NONE
        answers = {item.answer for item in dialled if ":" in item.place[0]}
        if DialBackResult.REACHED in answers:
            return Ipv6.OPEN
        return Ipv6.FILTERED if DialBackResult.NOT_REACHED in answers else Ipv6.UNKNOWN


def _seeing(place: Place, able: Sequence[LinkedPeer]) -> list[LinkedPeer]:
    """Return the peers in `able` that are likely to see this node at the address `place`.

    These are the peers that this node sees over the same IP version. They dial the address without
    payment.
    """
    six = ":" in place[0]
    return [each for each in able if any((":" in ip) == six for ip in (each.ip, *each.others))]
