"""Services of this node for the measurements of its peers: Binding responses and dial-backs.

A Binding response tells a peer the address at which this node sees it. An attacker can forge the
source of a request, so the replies must not amplify an attack. A reply is never larger than its
request. It goes to the request's source, and contains only that address. The rate of replies is
limited, per source network and in total.
"""

from typing import Protocol

import trio

from ...errors import HostError
from ...guard import Guard
from ...host.datagrams import Datagrams, Place
from ...host.seam import Host
from ...link.calls import Call, Handler, Reply
from ...rates import Rate, SourceRates
from . import defaults, stun
from .dialler import Dialler
from .looking import StunPort
from .offers import ObserverOffer
from .stun import MessageClass, StunMessage


class Handles(Protocol):
    """Part of the endpoint's interface that this module uses."""

    def handle(self, method: str, handler: Handler) -> None: ...


class ReachVolunteer:
    """Server of `reach.observe`, `reach.dialback` and Binding requests (docs/spec/reach.md).

    `dialler` makes the dial-backs. If it is None, this node is no volunteer: it only replies to
    `reach.observe`, with an empty offer.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Handles,
        udp: StunPort | None,
        dialler: Dialler | None,
        guard: Guard | None = None,
    ) -> None:
        self._host = host
        self._guard = guard or Guard()
        self._udp = udp
        self._willing = dialler is not None
        self._responder = Responder()
        self._second: Datagrams | None = None
        endpoint.handle("reach.observe", self._on_observe)
        if dialler is not None:
            endpoint.handle("reach.dialback", dialler.serve)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer Binding requests on a second UDP port, until cancelled.

        A peer that asks both ports learns whether its NAT's mapping depends on the destination
        port. The second port is optional: if no socket is available, this returns at once.
        """
        if not self._willing or self._udp is None:
            task_status.started()
            return
        try:
            self._second = await self._host.datagrams("0.0.0.0", 0)
        except HostError:
            task_status.started()
            return
        task_status.started()
        try:
            await self._serve(self._second)
        finally:
            self._second.close()
            self._second = None

    async def _serve(self, socket: Datagrams) -> None:
        while True:
            for data, source in await socket.receive():
                with self._guard.around(source):
                    message = stun.decode(data)
                    answer = self.answer(data, message, source) if message is not None else None
                    if answer is not None:
                        socket.send(answer, source)

    def answer(self, data: bytes, message: StunMessage, source: Place) -> bytes | None:
        """Return the reply to a Binding request, or None if there is none to send.

        `message` was decoded from the datagram `data`.
        """
        if not self._willing:
            return None
        return self._responder.answer(data, message, source, self._host.now())

    def _on_observe(self, _: Call) -> Reply:
        if not self._willing:
            return Reply(ObserverOffer().header)
        ports = [self._udp.port] if self._udp is not None else []
        ports += [self._second.port] if self._second is not None else []
        return Reply(ObserverOffer(tuple(ports), dials=True).header)


class Responder:
    """Rate-limited responder to Binding requests. Counts `answered` and `refused` requests."""

    def __init__(self, rates: SourceRates | None = None) -> None:
        """`rates` limits the replies. If it is None, the limits of `defaults` apply."""
        self.answered = 0
        self.refused = 0
        if rates is None:
            each = Rate(defaults.ANSWER_BURST, defaults.ANSWERS_PER_S)
            rates = SourceRates(each, Rate(defaults.ALL_ANSWERS_BURST, defaults.ALL_ANSWERS_PER_S))
        self._rates = rates

    def answer(self, data: bytes, message: StunMessage, source: Place, now: float) -> bytes | None:
        """Return the reply to `message`, which was decoded from the datagram `data`.

        Returns None if no reply is due, or if a limit forbids it. Requests with a user name or an
        integrity attribute get no reply here: they are connectivity checks of hole punching (RFC
        8445), which uses the same port.
        """
        if message.kind is not MessageClass.REQUEST or message.username or message.integrity:
            return None
        if not self._fits(data, source) or not self._rates.take(source[0], now):
            self.refused += 1
            return None
        if message.unknown:
            answer = stun.encode(stun.refuse_unknown(message))
        else:
            success = StunMessage(MessageClass.SUCCESS, message.transaction, mapped=source)
            answer = stun.encode(success)
        if is_larger(answer, data):
            self.refused += 1
            return None
        self.answered += 1
        return answer

    def _fits(self, data: bytes, source: Place) -> bool:
        """Return whether a request can be answered: it is large enough and its port is not 0.

        This check precedes the rate limiter, so that invalid requests do not use up tokens.
        """
        return len(data) >= defaults.SMALLEST_ANSWER_BYTES and source[1] > 0


def is_larger(answer: bytes, request: bytes) -> bool:
    """Return whether an answer has more bytes than its request, and so would amplify a flood."""
    return len(answer) > len(request)
