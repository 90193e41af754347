"""Services of this node for the measurements of its peers: Binding responses and dial-backs."""

from collections.abc import Callable, Iterable
from typing import Protocol

import trio

from ...errors import HostError
from ...guard import Guard
from ...host.datagrams import Datagrams, Place
from ...host.seam import Host
from ...link.calls import Call, Handler, Reply
from . import stun
from .dialler import Dialler, SeenAt
from .looking import StunPort
from .observer import Responder
from .offers import Offer
from .stun import Message


class Handles(Protocol):
    """Part of the endpoint's interface that this module uses."""

    def handle(self, method: str, handler: Handler) -> None: ...


class Volunteer:
    """Server of `reach.observe`, `reach.dialback` and Binding requests (docs/spec/reach.md).

    If `willing` is False, it only replies to `reach.observe`, with an empty offer.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Handles,
        udp: StunPort | None,
        seen_at: SeenAt,
        willing: bool,
        outside: Callable[[], Iterable[str]] = tuple,
        guard: Guard | None = None,
    ) -> None:
        self._host = host
        self._guard = guard or Guard()
        self._udp = udp
        self._willing = willing
        self._responder = Responder()
        self._second: Datagrams | None = None
        endpoint.handle("reach.observe", self._on_observe)
        if willing:
            endpoint.handle("reach.dialback", Dialler(host, seen_at, outside).serve)

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
