"""Classification of the NAT in front of this node, from what peers see.

The method is that of RFC 5780, but the servers are ordinary peers, the observers. This node opens
new sockets, to which no peer has ever sent. The first socket asks all observers at which address
they see it, each other socket asks one observer. The replies show how the NAT maps addresses.

Then this node asks peers over their links to send a datagram to an address that was seen. If the
socket has sent to the peer before, the peer uses another port; the datagram shows whether the NAT's
filter accepts any port of a known IP address. If the socket has never sent to the peer (a
*stranger*), the datagram shows whether the filter accepts any IP address.

The `Classifier` does no I/O. Its inputs are times and datagrams. Its outputs are `NatProbe` (a
datagram to send) and `NatRequest` (a peer to ask).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import inf

from ...host.datagrams import Place
from ...identity import PeerId
from . import defaults, stun
from .judging import (
    View,
    allocation_of,
    consensus,
    filtering_of,
    mapping_of,
    public_ip_of,
)
from .reachability import Behaviour, UdpKind
from .stun import MessageClass, StunMessage


@dataclass(frozen=True, slots=True)
class Observer:
    """A peer that answers Binding requests, at one or two ports of its IP address."""

    peer: PeerId
    ip: str
    ports: tuple[int, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """The addresses at which the peer answers, one or two."""
        return tuple((self.ip, port) for port in self.ports[:2])


@dataclass(frozen=True, slots=True)
class NatProbe:
    """A datagram to send from one of the sockets."""

    socket: int  # index among the ports that the `Classifier` was given
    data: bytes
    to: Place


@dataclass(frozen=True, slots=True)
class NatRequest:
    """A request for a dial-back, to be sent over the link to `peer`.

    The peer shall send `nonce` to the address `place` from a new port of its own.
    """

    peer: PeerId
    place: Place
    nonce: bytes


@dataclass(slots=True)
class _Question:
    """One Binding request, which is repeated until a reply arrives or all tries are used up."""

    socket: int
    observer: Observer
    to: Place
    data: bytes
    due: float  # time of the next sending
    sent: int = 0  # tries, plus one after the last wait has ended
    seen: Place | None = None  # the address in the reply

    @property
    def open(self) -> bool:
        """Whether the request still waits for a reply."""
        return self.seen is None and self.sent <= len(defaults.RETRY_S)


@dataclass(slots=True)
class _Back:
    """One requested dial-back."""

    socket: int
    peer: PeerId
    stranger: bool  # whether the socket has never sent to that peer
    until: float = inf  # when to stop waiting for it; infinite once the wait has ended
    sent: bool = False  # whether the peer reports that it has sent the dial-back
    passed: bool = False  # whether it arrived and proves that the filter let it pass


@dataclass(slots=True)
class _Socket:
    """State of one of our sockets: its local port, and the addresses to which it has sent."""

    port: int
    places: set[Place] = field(default_factory=set)


class Classifier:
    """One classification of the NAT.

    `ports` are the local ports of `PROBE_SOCKETS` new sockets. `own` are the IP addresses of this
    machine. Of several `observers` at one IP address, only the first is used.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        ports: Sequence[int],
        own: Collection[str],
        *,
        entropy: Callable[[int], bytes],
        now: float,
    ) -> None:
        self._observers = _apart(observers)[: defaults.OBSERVERS]
        self._own = frozenset(own)
        self._entropy = entropy
        self._sockets = [_Socket(port) for port in ports]
        self._questions: dict[bytes, _Question] = {}
        self._backs: dict[bytes, _Back] = {}
        self._requests: list[NatRequest] = []
        self._asked_back: set[int] = set()  # sockets whose dial-backs have been requested
        self._plan(now)

    def _plan(self, now: float) -> None:
        """Plan all Binding requests.

        The first socket asks all first ports, then all second ports. Then each other socket asks
        one observer. The order matters because the NAT's outer ports are compared in this order.
        """
        first = [(0, each, each.places[0]) for each in self._observers]
        second = [(0, each, place) for each in self._observers for place in each.places[1:]]
        single = [
            (socket, each, each.places[0])
            for socket, each in zip(range(1, len(self._sockets)), self._observers, strict=False)
        ]
        for number, (socket, observer, to) in enumerate([*first, *second, *single]):
            transaction = self._entropy(stun.TRANSACTION_BYTES)
            data = stun.request(transaction)
            due = now + number * defaults.PROBE_GAP_S
            self._questions[transaction] = _Question(socket, observer, to, data, due)
            self._sockets[socket].places.add(to)

    # Time.

    @property
    def done(self) -> bool:
        """Whether all requests and dial-backs have succeeded or have been abandoned."""
        settled = len(self._asked_back) == len(self._sockets)
        return settled and self.wake_at == inf and not self._requests

    @property
    def wake_at(self) -> float:
        """The time at which to call `poll` next. Infinite if it has nothing more to do."""
        dues = [each.due for each in self._questions.values() if each.open]
        waits = [each.until for each in self._backs.values() if not each.passed]
        return min([*dues, *waits], default=inf)

    def poll(self, now: float) -> list[NatProbe | NatRequest]:
        """Return what to send now. Call this at `wake_at`, and after each received event."""
        found: list[NatProbe | NatRequest] = [
            ask for each in self._questions.values() if (ask := self._repeat(each, now))
        ]
        self._ask_back(now)
        for nonce in [n for n, back in self._backs.items() if back.until <= now]:
            self._backs[nonce].until = inf
        found += self._requests
        self._requests.clear()
        return found

    def _repeat(self, question: _Question, now: float) -> NatProbe | None:
        """Return the datagram of a Binding request if it must be sent now, or None."""
        if not question.open or question.due > now:
            return None
        question.sent += 1
        if question.sent > len(defaults.RETRY_S):  # the last wait has ended
            return None
        question.due = now + defaults.RETRY_S[question.sent - 1]
        return NatProbe(question.socket, question.data, question.to)

    # Received datagrams.

    def on_datagram(self, socket: int, data: bytes, source: Place) -> None:
        """Process a datagram that arrived at one of the sockets.

        Drops it unless it is a reply to a Binding request, or a requested dial-back.
        """
        message = stun.decode(data)
        if message is None:
            return
        if message.kind is MessageClass.SUCCESS:
            self._on_answer(socket, message, source)
        elif message.kind is MessageClass.INDICATION and message.nonce is not None:
            self._on_back(socket, message.nonce, source)

    def _on_answer(self, socket: int, message: StunMessage, source: Place) -> None:
        question = self._questions.get(message.transaction)
        if question is None or not self._is_from(question, socket, source):
            return
        if question.seen is None and message.mapped is not None and message.mapped[1]:
            question.seen = message.mapped

    def _is_from(self, question: _Question, socket: int, source: Place) -> bool:
        """Return whether a reply came to the asking socket from the address that was asked.

        Otherwise another host could forge the reply.
        """
        return question.socket == socket and question.to == source

    def _on_back(self, socket: int, nonce: bytes, source: Place) -> None:
        back = self._backs.get(nonce)
        if back is not None and back.socket == socket and self._passes_anew(back, source):
            back.passed = True

    def _passes_anew(self, back: _Back, source: Place) -> bool:
        """Return whether the source of a dial-back proves something about the NAT's filter.

        A datagram from an address to which the socket has sent proves nothing, because every filter
        accepts it.
        """
        places = self._sockets[back.socket].places
        if back.stranger:
            return source[0] not in {ip for ip, _ in places}
        return source not in places

    def on_sent(self, nonce: bytes, now: float, *, sent: bool) -> None:
        """Record whether the peer reports that it has sent the dial-back with this nonce."""
        back = self._backs.get(nonce)
        if back is not None:
            back.sent = sent
            back.until = now + defaults.STRAGGLER_S if sent else now

    # Dial-backs.

    def _ask_back(self, now: float) -> None:
        """Request dial-backs to each socket whose Binding requests are all settled.

        Before that, it is not known at which address the socket is seen.
        """
        for socket in range(len(self._sockets)):
            mine = [each for each in self._questions.values() if each.socket == socket]
            if socket in self._asked_back or any(each.open for each in mine):
                continue
            self._asked_back.add(socket)
            answered = [each for each in mine if each.seen is not None]
            if socket == 0:
                self._ask_known(answered, now)
            elif answered:
                self._ask_strangers(socket, answered[0], now)

    def _ask_known(self, answered: list[_Question], now: float) -> None:
        """Request a dial-back to the first socket from each observer that has replied to it."""
        asked = set()
        for question in answered:
            if question.observer.peer not in asked:
                asked.add(question.observer.peer)
                self._request(0, question.observer.peer, question.seen, now, stranger=False)

    def _ask_strangers(self, socket: int, question: _Question, now: float) -> None:
        """Request dial-backs to a socket from peers to which it has never sent.

        Different sockets ask different peers. If a datagram arrives from a peer to which the socket
        has never sent, this proves that the filter accepts any IP address.
        """
        others = [each for each in self._observers if each.ip != question.observer.ip]
        for observer in others[socket % max(len(others), 1) :][: defaults.STRANGERS]:
            self._request(socket, observer.peer, question.seen, now, stranger=True)

    def _request(
        self, socket: int, peer: PeerId, place: Place | None, now: float, *, stranger: bool
    ) -> None:
        """Append a request to `peer` for a dial-back to `place`. Do nothing if `place` is None."""
        if place is None:
            return
        nonce = self._entropy(defaults.NONCE_BYTES)
        until = now + defaults.DIALBACK_S
        self._backs[nonce] = _Back(socket, peer, stranger, until)
        self._requests.append(NatRequest(peer, place, nonce))

    # Results.

    def result(self) -> UdpKind:
        """Return the classification from all replies so far. It is complete once `done` is True."""
        views = self._views()
        seen = [first for first, _ in views.values() if first is not None]
        own = {(ip, self._sockets[0].port) for ip in self._own}
        mapping = mapping_of(views, own)
        made = self._made(mapping)
        blocked = self._blocked(len(views))
        return UdpKind(
            mapping=mapping,
            filtering=Behaviour.UNKNOWN if blocked else self._filtering(),
            allocation=allocation_of(made),
            blocked=blocked,
            asked=len(views),
            answered=len(seen),
            public_ip=public_ip_of(seen),
            ports=tuple(outer for _, outer in made),
            dissenters=self._dissenters(mapping),
        )

    def _blocked(self, asked: int) -> bool | None:
        """Return whether UDP is blocked, or None if there is no evidence.

        If no observer replies, UDP counts as blocked only if at least two were `asked`: a single
        one may be down.
        """
        if any(each.seen is not None for each in self._questions.values()):
            return False
        return True if asked > 1 else None

    def _views(self) -> dict[str, View]:
        """Return at which addresses the first socket was seen, by the observer's IP address."""
        seen = {each.to: each.seen for each in self._questions.values() if each.socket == 0}
        return {
            each.ip: (seen.get(each.places[0]), seen.get(each.places[-1]))
            if len(each.places) == 2
            else (seen.get(each.places[0]), None)
            for each in self._observers
        }

    def _filtering(self) -> Behaviour:
        """Judge the filter by the dial-backs that arrived or that peers report as sent."""
        told = [back for back in self._backs.values() if back.sent or back.passed]
        return filtering_of(
            [back.passed for back in told if back.stranger],
            [back.passed for back in told if not back.stranger],
        )

    def _made(self, mapping: Behaviour) -> list[tuple[int, int]]:
        """Return (inner port, outer port) of each new NAT mapping, in the order of creation.

        The first socket asked several observers. Depending on the kind of `mapping`, the NAT
        created one mapping for the socket, one for each IP address, or one for each address and
        port. If observers differ about one mapping, the majority counts. Dissenters are left out.
        """
        groups: dict[tuple[int, object], list[Place]] = {}
        dissenters = self._dissenters(mapping)
        for each in self._questions.values():
            if each.seen is not None and each.observer.peer not in dissenters:
                key = each.socket, _depends(mapping, each.to)
                groups.setdefault(key, []).append(each.seen)
        return [
            (self._sockets[socket].port, (consensus(seen) or seen[0])[1])
            for (socket, _), seen in groups.items()
        ]

    def _dissenters(self, mapping: Behaviour) -> tuple[PeerId, ...]:
        """Return the observers that contradict the majority about the first socket's address.

        There are none if fewer than three were asked, or if the NAT shows each of them another
        address.
        """
        views = self._views()
        seen = {each.peer: views[each.ip][0] for each in self._observers}
        agreed = consensus(place for place in seen.values() if place is not None)
        if mapping.symmetric or agreed is None or len(seen) < 3:
            return ()
        return tuple(peer for peer, place in seen.items() if place not in (None, agreed))


def _depends(mapping: Behaviour, to: Place) -> object:
    """Return the part of the destination `to` on which the NAT's mapping depends, or None if it
    depends on no part."""
    if mapping is Behaviour.ADDRESS_AND_PORT_DEPENDENT:
        return to
    return to[0] if mapping is Behaviour.ADDRESS_DEPENDENT else None


def _apart(observers: Sequence[Observer]) -> list[Observer]:
    """Return the first observer with a port for each IP address, in the given order."""
    found: dict[str, Observer] = {}
    for each in observers:
        if each.ports:
            found.setdefault(each.ip, each)
    return list(found.values())
