"""Before a round: where this side is seen right now, from its port and from fresh sockets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from ..datagrams import Datagrams, Place
from ..reach.judging import consensus
from ..reach.reachability import Behaviour
from ..reach.stun import Message
from . import defaults
from .candidates import Candidate, Kind, Transport
from .needs import Own, Socket, Tools, Udp
from .observe import Asking
from .offer import Counting
from .predict import Nat, step_of
from .sockets import Sockets

_OBSERVERS: Final = 4
_COMB_OBSERVERS: Final = 2


@dataclass(frozen=True, slots=True)
class Prepared:
    """One side's part of a round, before it is told. `fresh` are the sockets of `comb`, `aside` is
    the one for a search, which will be seen at `search`; `busy`: no search can be made now."""

    nat: Nat
    candidates: Sequence[Candidate]
    comb: Sequence[Place | None] = ()
    counting: Counting | None = None
    fresh: Sequence[Datagrams] = field(default=(), repr=False)
    aside: Datagrams | None = field(default=None, repr=False)
    search: Place | None = None
    busy: bool = False


class Observing:
    """Asks observers over the UDP port."""

    def __init__(self, tools: Tools, udp: Udp) -> None:
        self._tools = tools
        self._udp = udp
        self._asking: dict[Asking[Socket], trio.Event] = {}

    def receive(self, message: Message, source: Place, socket: Socket) -> bool:
        """Take a STUN answer; False where it is nobody's here. `socket` None: the port's own."""
        for asking, changed in self._asking.items():
            if asking.receive(message, source, socket):
                if asking.done:
                    changed.set()
                return True
        return False

    async def ask(self, questions: Sequence[tuple[Socket, Place]]) -> Asking[Socket]:
        """Where observers see these sockets, as far as they answer within a second."""
        host = self._tools.host
        asking = Asking(questions, now=host.now(), entropy=host.entropy)
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


def is_stale(own: Own, now: float, limits: defaults.PunchLimits) -> bool:
    """Whether the own port may be seen elsewhere by now, or never was by several. A NAT that
    counts has gone on, one that draws forgets an idle port; one that preserves ports does neither
    harm."""
    if not own.nat.udp:
        return False  # no observer would hear of it
    if own.nat.mapping is Behaviour.UNKNOWN or (own.nat.hard and own.nat.counts):
        return True
    if own.nat.preserves or own.nat.mapping is Behaviour.NONE:
        return False
    return own.seen_at is None or now - own.seen_at > limits.fresh_s


def renewed(own: Own, views: Sequence[Place], latest: Sequence[Place] = ()) -> Prepared:
    """What observers see now, put in place of what was known; the NAT's kind with it, where the
    views say more than `own` does. `views` are of the own port by different observers, `latest` of
    a socket to which nobody had talked before: only such a one shows where a NAT stands that
    counts, as an older one has ports of earlier times."""
    if not views:
        return Prepared(own.nat, own.candidates)
    nat, counting = own.nat, None
    agreed = consensus(views)
    if len(set(views)) > 1 and (nat.hard or agreed is None):
        step = step_of([port for _, port in latest]) if len({ip for ip, _ in latest}) == 1 else None
        hard = nat.mapping if nat.hard else Behaviour.ADDRESS_AND_PORT_DEPENDENT
        nat = replace(nat, mapping=hard, preserves=False, counts=step is not None)
        counting = Counting(*latest[-1], step) if step is not None else None
    elif nat.hard:
        nat = replace(nat, counts=False)  # one view says nothing of a step
    elif nat.mapping is Behaviour.UNKNOWN and len(views) > 1:
        nat = replace(nat, mapping=Behaviour.ENDPOINT_INDEPENDENT)
    known = [
        each
        for each in own.candidates
        if each.kind is not Kind.OBSERVED or each.transport is not Transport.UDP
    ]
    local = {each.place[0] for each in known if each.kind is Kind.PUBLIC}
    seen = [
        Candidate(place, Kind.OBSERVED, Transport.UDP)
        for place in dict.fromkeys([*([agreed] if agreed else ()), *views])
        if place[0] not in local
    ]
    return Prepared(nat, [*seen[:2], *known], counting=counting)


async def prepare(
    own: Own, observing: Observing | None, sockets: Sockets | None, *, look: bool, comb: bool
) -> Prepared:
    """With `look` the own port is observed anew, with `comb` fresh sockets are opened as well."""
    if observing is None or sockets is None or not own.observers:
        return Prepared(own.nat, own.candidates)
    fresh = await sockets.open(defaults.COMB) if comb else []
    probes: list[Socket] = []
    if look:
        unclear = own.nat.hard or own.nat.mapping is Behaviour.UNKNOWN
        probes = [None, *(await sockets.open(1) if unclear else ())]
    questions = [(socket, place) for socket in probes for place in own.observers[:_OBSERVERS]]
    for socket in fresh:
        questions += [(socket, place) for place in own.observers[:_COMB_OBSERVERS]]
    if not questions:
        return Prepared(own.nat, own.candidates)
    asking = await observing.ask(questions)
    latest = asking.seen(probes[1]) if len(probes) > 1 else ()
    found = renewed(own, asking.seen(None), latest)
    if not fresh:
        return found
    seen = [asking.seen(socket) for socket in fresh]
    return replace(found, comb=[views[0] if views else None for views in seen], fresh=fresh)


async def set_aside(mine: Prepared, sockets: Sockets | None) -> Prepared:
    """With a socket for a search, where the NAT keeps port numbers, so that nobody need be asked
    where it will be seen. The port's own may be spoiled: what some peer sent too early has a router
    that answers for itself lead all new flows of the port elsewhere (docs/spec/punch.md)."""
    nat = mine.nat
    seen = [
        each.place[0]
        for each in mine.candidates
        if each.kind is Kind.OBSERVED
        and each.transport is Transport.UDP
        and ":" not in each.place[0]
    ]
    if sockets is None or nat.hard or not nat.preserves or not nat.strict or not seen:
        return mine
    for socket in await sockets.open(1):
        return replace(mine, aside=socket, search=(seen[0], socket.port))
    return mine
