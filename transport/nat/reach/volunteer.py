"""Services of a node for other nodes' measurements: tells where it sees them, and dials back.

A reply to a Binding request must not amplify an attack. It is never larger than its request, goes
to the address that the request came from, and contains only that address. Replies are rate-limited
by source and in all.
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
from .offers import Offer
from .stun import Kind, Message


class Handles(Protocol):
    """Part of the endpoint's interface that this module uses."""

    def handle(self, method: str, handler: Handler) -> None: ...


class Volunteer:
    """Server of `reach.observe`, `reach.dialback` and Binding requests (docs/spec/reach.md).

    `dialler` makes the dial-backs. Without it this node offers nothing and does nothing.
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

    def answer(self, data: bytes, message: Message, source: Place) -> bytes | None:
        """Return the reply to a Binding request, or None if there is none to send.

        `message` was decoded from the datagram `data`.
        """
        if not self._willing:
            return None
        return self._responder.answer(data, message, source, self._host.now())

    def _on_observe(self, _: Call) -> Reply:
        if not self._willing:
            return Reply(Offer().header)
        ports = [self._udp.port] if self._udp is not None else []
        ports += [self._second.port] if self._second is not None else []
        return Reply(Offer(tuple(ports), dials=True).header)


class Responder:
    """Responder to Binding requests."""

    def __init__(self, rates: SourceRates | None = None) -> None:
        self.answered = 0
        self.refused = 0
        if rates is None:
            each = Rate(defaults.ANSWER_BURST, defaults.ANSWERS_PER_S)
            rates = SourceRates(each, Rate(defaults.ALL_ANSWERS_BURST, defaults.ALL_ANSWERS_PER_S))
        self._rates = rates

    def answer(self, data: bytes, message: Message, source: Place, now: float) -> bytes | None:
        """Return the reply to a datagram that was decoded as `message`, or None.

        Requests with a user name or an integrity attribute are not meant for it: they are checks of
        hole punching (RFC 8445) on the same port.
        """
        if message.kind is not Kind.REQUEST or message.username or message.integrity:
            return None
        if not self._fits(data, source) or not self._rates.take(source[0], now):
            self.refused += 1
            return None
        if message.unknown:
            answer = stun.encode(stun.refuse_unknown(message))
        else:
            success = Message(Kind.SUCCESS, message.transaction, mapped=source)
            answer = stun.encode(success)
        if _is_larger(answer, data):
            self.refused += 1
            return None
        self.answered += 1
        return answer

    def _fits(self, data: bytes, source: Place) -> bool:
        """Whether a request can be answered. Checked first, so that others use up no rate."""
        return len(data) >= defaults.SMALLEST_ANSWER_BYTES and source[1] > 0


def _is_larger(answer: bytes, request: bytes) -> bool:
    return len(answer) > len(request)
