"""Preparation of a round: finds out where observers see this side's sockets now.

For *hard side* and *birthday search* see `predict.py`, for *comb* see `schedule.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from ...host.datagrams import Datagrams, Place
from ..reach.judging import consensus
from ..reach.reachability import Behaviour
from ..reach.stun import StunMessage
from . import defaults
from .candidates import Candidate, CandidateKind, CandidateTransport
from .needs import OwnNat, Socket, Tools, Udp
from .observe import ObserverQuestions
from .offer import Counting
from .predict import NatProfile, step_of
from .sockets import Sockets

_OBSERVERS: Final = 4  # observers that are asked about the UDP port, a count
_COMB_OBSERVERS: Final = 2  # observers that are asked about each socket of the comb, a count


@dataclass(frozen=True, slots=True)
class PreparedRound:
    """One side's preparation of a round. `PunchOffer` explains the fields that are sent."""

    nat: NatProfile
    candidates: Sequence[Candidate]
    comb: Sequence[Place | None] = ()
    counting: Counting | None = None
    fresh: Sequence[Datagrams] = field(default=(), repr=False)  # the sockets of the comb
    aside: Datagrams | None = field(default=None, repr=False)  # the socket for a birthday search
    search: Place | None = None  # the address at which `aside` will be seen
    busy: bool = False


class Observing:
    """Client of observers, for all attempts: asks where they see sockets of this node."""

    def __init__(self, tools: Tools, udp: Udp) -> None:
        self._tools = tools
        self._udp = udp
        self._asking: dict[ObserverQuestions[Socket], trio.Event] = {}

    def receive(self, message: StunMessage, source: Place, socket: Socket) -> bool:
        """Process a STUN message that arrived at `socket`; None means the node's UDP port.

        Returns False if it does not reply to an open request.
        """
        for asking, changed in self._asking.items():
            if asking.receive(message, source, socket):
                if asking.done:
                    changed.set()
                return True
        return False

    async def ask(self, questions: Sequence[tuple[Socket, Place]]) -> ObserverQuestions[Socket]:
        """Ask about each pair (socket, observer's address), for at most `observe_s` seconds.

        Returns the requests with the replies that have arrived.
        """
        host = self._tools.host
        asking = ObserverQuestions(questions, now=host.now(), entropy=host.entropy)
        answered = self._asking[asking] = trio.Event()
        try:
            with trio.move_on_after(self._tools.limits.observe_s):
                while not asking.done:
                    for send in asking.take(host.now()):
                        self._udp.send(send.data, send.to, send.socket)
                    with trio.move_on_at(asking.due):
                        await answered.wait()
        finally:
            del self._asking[asking]
        return asking


def is_stale(own: OwnNat, now: float, limits: defaults.PunchLimits) -> bool:
    """Return whether observers must be asked again where they see this node's UDP port.

    That is so if the NAT's kind is unknown, or if the NAT allocates ports sequentially and has
    therefore reached other ports. Other NATs forget the mapping of an idle port, so they must be
    asked again if the last observation is older than `fresh_s` seconds. The exception is a NAT that
    preserves ports, because it would create the same mapping again.
    """
    if not own.nat.udp:
        return False  # no observer would receive the request
    if own.nat.mapping is Behaviour.UNKNOWN or (own.nat.hard and own.nat.counts):
        return True
    if own.nat.preserves or own.nat.mapping is Behaviour.NONE:
        return False
    return own.seen_at is None or now - own.seen_at > limits.fresh_s


def renewed(own: OwnNat, views: Sequence[Place], latest: Sequence[Place] = ()) -> PreparedRound:
    """Return this node's candidates and its NAT's kind, updated by what observers see now.

    `views` are the addresses at which different observers see the node's UDP port, and `latest`
    those of a new socket. If the NAT allocates ports sequentially, only a new socket shows which
    port is next, because the UDP port may have an old mapping. The NAT's kind changes only if the
    views contradict or complete the measured one.
    """
    if not views:
        return PreparedRound(own.nat, own.candidates)
    nat, counting = own.nat, None
    agreed = consensus(views)
    if len(set(views)) > 1 and (nat.hard or agreed is None):
        step = step_of([port for _, port in latest]) if len({ip for ip, _ in latest}) == 1 else None
        hard = nat.mapping if nat.hard else Behaviour.ADDRESS_AND_PORT_DEPENDENT
        nat = replace(nat, mapping=hard, preserves=False, counts=step is not None)
        counting = Counting(*latest[-1], step) if step is not None else None
    elif nat.hard:
        nat = replace(nat, counts=False)  # one view does not show a step
    elif nat.mapping is Behaviour.UNKNOWN and len(views) > 1:
        nat = replace(nat, mapping=Behaviour.ENDPOINT_INDEPENDENT)
    known = [
        each
        for each in own.candidates
        if each.kind is not CandidateKind.OBSERVED or each.transport is not CandidateTransport.UDP
    ]
    local = {each.place[0] for each in known if each.kind is CandidateKind.PUBLIC}
    seen = [
        Candidate(place, CandidateKind.OBSERVED, CandidateTransport.UDP)
        for place in dict.fromkeys([*([agreed] if agreed else ()), *views])
        if place[0] not in local
    ]
    return PreparedRound(nat, [*seen[:2], *known], counting=counting)


async def prepare(
    own: OwnNat, observing: Observing | None, sockets: Sockets | None, *, look: bool, comb: bool
) -> PreparedRound:
    """Prepare a round.

    If `look` is True, asks observers where they see the UDP port now. If `comb` is True, opens the
    sockets of the comb, and asks about these as well.
    """
    if observing is None or sockets is None or not own.observers:
        return PreparedRound(own.nat, own.candidates)
    fresh = await sockets.open(defaults.COMB) if comb else []
    probes: list[Socket] = []
    if look:
        unclear = own.nat.hard or own.nat.mapping is Behaviour.UNKNOWN
        probes = [None, *(await sockets.open(1) if unclear else ())]
    questions = [(socket, place) for socket in probes for place in own.observers[:_OBSERVERS]]
    for socket in fresh:
        questions += [(socket, place) for place in own.observers[:_COMB_OBSERVERS]]
    if not questions:
        return PreparedRound(own.nat, own.candidates)
    asking = await observing.ask(questions)
    latest = asking.seen(probes[1]) if len(probes) > 1 else ()
    found = renewed(own, asking.seen(None), latest)
    if not fresh:
        return found
    seen = [asking.seen(socket) for socket in fresh]
    return replace(found, comb=[views[0] if views else None for views in seen], fresh=fresh)


async def set_aside(mine: PreparedRound, sockets: Sockets | None) -> PreparedRound:
    """Open a socket for a birthday search, and return `mine` with this socket.

    The search needs it because the node's UDP port may be spoiled: if a packet of an earlier peer
    arrived too early, some routers map all new flows of the port to another outer port
    (docs/spec/punch.md, section 5).

    Returns `mine` unchanged in three cases: the NAT does not preserve ports, so that the outer port
    of the new socket would be unknown; this side does not need such a socket; or none can be
    opened.
    """
    nat = mine.nat
    seen = [
        each.place[0]
        for each in mine.candidates
        if each.kind is CandidateKind.OBSERVED
        and each.transport is CandidateTransport.UDP
        and ":" not in each.place[0]
    ]
    if sockets is None or nat.hard or not nat.preserves or not nat.strict or not seen:
        return mine
    for socket in await sockets.open(1):
        return replace(mine, aside=socket, search=(seen[0], socket.port))
    return mine
