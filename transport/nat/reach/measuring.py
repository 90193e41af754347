"""One measurement of how others reach this node, with all questions to peers that it needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import trio

from ...errors import HostError
from ...guard import Guard
from ...host.datagrams import Place
from ...host.seam import Host
from ...networks import CARRIER, is_public, parse_ip
from . import asking, defaults
from .dialback import Awaited, Wanted
from .linkedpeers import LinkedPeers
from .natkind import Request
from .offers import LinkedPeer, observers, spread
from .probing import classify
from .reachability import Answer, Behaviour, Dialled, Ipv6, Reachability, UdpKind


@dataclass(frozen=True, slots=True)
class Mapped:
    """Result of port mapping: outer addresses of our TCP and UDP port, and the router's own outer
    IP address as the router reports it."""

    tcp: Place | None = None
    udp: Place | None = None
    wan: str | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """This node's ports, and what its router forwards to them. `udp` is None if it has no UDP
    port."""

    tcp: int
    udp: int | None
    mapped: Mapped


class Measurement:
    """One measurement. It asks `linked` peers, whose dial-backs arrive at `awaited`."""

    def __init__(
        self,
        host: Host,
        linked: LinkedPeers,
        awaited: Awaited,
        *,
        ports: Ports,
        guard: Guard,
        bought: dict[tuple[str, Place], Dialled],
    ) -> None:
        """`bought` has the results of dial-backs that this node paid for."""
        self._host = host
        self._guard = guard
        self._linked = linked
        self._awaited = awaited
        self._ports = ports
        self._mapped = ports.mapped
        self._bought = bought
        self._own = tuple(item.address for item in host.interfaces())

    async def classify(self, known: Sequence[LinkedPeer]) -> UdpKind:
        """Return what the NAT does with UDP."""

        async def ask_back(request: Request) -> bool:
            link = self._linked.link(request.peer)
            wanted = Wanted("udp", request.place, request.nonce)
            return link is not None and await asking.ask(link, wanted)

        try:
            return await classify(self._host, observers(known), self._own, ask_back)
        except HostError:  # no socket is available, so nothing is known
            return UdpKind()

    async def complete(self, so_far: Reachability, known: Sequence[LinkedPeer]) -> Reachability:
        """Have all addresses dialled, and add the results and conclusions."""
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
            for ip in {place[0] for _, place in places if not free[place]}:
                paid = [key for key in places if key[1][0] == ip and not free[key[1]]]
                nursery.start_soon(self._buy, paid, able, found)
        dialled = tuple(found[key] for key in places if key in found)
        return replace(so_far, dialled=dialled, cgn=self._cgn(so_far), ipv6=self._ipv6(dialled))

    def _places(self, so_far: Reachability) -> Iterator[tuple[str, Place]]:
        """Yield addresses to try: the router's ports, where peers see us, and our own."""
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
        """Have one address dialled back by a peer that does not see this node there.

        Each dial-back costs a payment of some 50 kB. So one peer is asked for each transport, a
        failure skips the transports left, and `bought` keeps the results.
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
            if found[key].answer is not Answer.REACHED:
                return

    async def _dial(
        self, transport: str, place: Place, able: Sequence[LinkedPeer], at_once: int
    ) -> list[bool]:
        """Return the results of dial-backs by the first few peers that sent any."""
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

    def _judge(self, place: Place, answers: Sequence[bool], filtering: Behaviour) -> Answer:
        """Judge an address. All peers that dial back are linked, so the NAT knows them. If its
        filter accepts known peers, only a forwarded port proves that strangers get in."""
        if not answers:
            return Answer.UNKNOWN
        if not any(answers):
            return Answer.NOT_REACHED
        forwarded = place in (self._mapped.tcp, self._mapped.udp)
        if filtering is Behaviour.ADDRESS_DEPENDENT and not forwarded and ":" not in place[0]:
            return Answer.REACHED_BY_KNOWN
        return Answer.REACHED

    def _cgn(self, so_far: Reachability) -> bool | None:
        """Whether the router's outer address is inside another NAT."""
        wan = self._mapped.wan
        if wan is not None:
            outside = so_far.udp.public_ip or (so_far.tcp_place or (None, 0))[0]
            return True if not is_public(wan) else None if outside is None else wan != outside
        if any(parse_ip(ip) in CARRIER for ip in self._own if ":" not in ip):
            return True
        return False if so_far.udp.mapping is Behaviour.NONE else None

    def _ipv6(self, dialled: Sequence[Dialled]) -> Ipv6:
        if not any(":" in ip and is_public(ip) for ip in self._own):
            return Ipv6.NONE
        answers = {item.answer for item in dialled if ":" in item.place[0]}
        if Answer.REACHED in answers:
            return Ipv6.OPEN
        return Ipv6.FILTERED if Answer.NOT_REACHED in answers else Ipv6.UNKNOWN


def _seeing(place: Place, able: Sequence[LinkedPeer]) -> list[LinkedPeer]:
    """Return the peers that are likely to see this node at an address, and dial it without pay."""
    six = ":" in place[0]
    return [each for each in able if any((":" in ip) == six for ip in (each.ip, *each.others))]
