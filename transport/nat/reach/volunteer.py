"""Services of a node for other nodes' measurements: tells where it sees them, and dials back."""

from typing import Protocol

import trio

from ...errors import HostError
from ...guard import Guard
from ...host.datagrams import Datagrams, Place
from ...host.seam import Host
from ...link.calls import Call, Handler, Reply
from . import stun
from .dialler import Dialler
from .looking import StunPort
from .observer import Responder
from .offers import Offer
from .stun import Message


class Handles(Protocol):
    """The endpoint, as far as this module needs it."""

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
        """Serve a second port, which shows askers what a mapping depends on. The port is optional:
        if there is no socket for it, it is left out."""
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
        """Return the reply to a Binding request on the node's UDP port, or None."""
        if not self._willing:
            return None
        return self._responder.answer(data, message, source, self._host.now())

    def _on_observe(self, _: Call) -> Reply:
        if not self._willing:
            return Reply(Offer().header)
        ports = [self._udp.port] if self._udp is not None else []
        ports += [self._second.port] if self._second is not None else []
        return Reply(Offer(tuple(ports), dials=True).header)
