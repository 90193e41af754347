"""Carries session messages to a peer over its link, or to this same node without one."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from ..transport.calls import Call, Handler, Refusal, Reply
from ..transport.endpoint import Endpoint
from ..transport.errors import CallRefused, DialFailed, LinkClosed
from ..transport.frame import Priority
from ..transport.identity import PeerId
from ..transport.link import Link

Connect = Callable[[PeerId], Awaitable[object]]
"""Bring up the link to a peer. Raises DialFailed."""


class Courier:
    """What the stage and the gateway of one node share: their handlers, and the way out.

    A node may be the gateway of a session and several of its stages' neighbour at once; a
    message to itself calls the handler directly, with itself as the sender.
    """

    def __init__(self, endpoint: Endpoint, connect: Connect | None = None) -> None:
        """`connect` brings up a link to a live member that has none yet."""
        self._endpoint = endpoint
        self._connect = connect
        self._handlers: dict[str, Handler] = {}

    @property
    def peer(self) -> PeerId:
        return self._endpoint.peer

    def handle(self, method: str, handler: Handler) -> None:
        self._handlers[method] = handler
        self._endpoint.handle(method, handler)

    def on_link_lost(self, callback: Callable[[Link, str], None]) -> None:
        """`callback(link, code)` when a peer's link has ended for good."""
        self._endpoint.on_link_lost(callback)

    def on_link_quiet(self, callback: Callable[[Link], None]) -> None:
        """`callback(link)` when a peer has not been heard of for a while; it may come back."""
        self._endpoint.on_link_quiet(callback)

    def on_link_back(self, callback: Callable[[Link], None]) -> None:
        """`callback(link)` when a peer that was quiet is there again."""
        self._endpoint.on_link_back(callback)

    def hold_links(self, holder: Callable[[PeerId], bool]) -> None:
        """Keep the silent link to a peer for longer where `holder(peer)`."""
        self._endpoint.hold_links(holder)

    def watch_links(self, watcher: Callable[[PeerId], bool]) -> None:
        """Notice at once that a peer is silent, while `watcher(peer)` returns true."""
        self._endpoint.watch_links(watcher)

    def reaches(self, peer: PeerId) -> bool:
        """Whether something new may be sent there."""
        return peer == self.peer or (
            self._endpoint.link(peer) is not None and not self.is_quiet(peer)
        )

    async def meet(self, peer: PeerId) -> None:
        """See to a link with a peer where there is none, as far as that goes. In a large swarm a
        chain leads through members that are live but not linked with each other."""
        if self._connect is None or peer == self.peer or self._endpoint.link(peer) is not None:
            return
        with suppress(DialFailed):
            await self._connect(peer)

    def is_quiet(self, peer: PeerId) -> bool:
        """Whether there is a link to the peer, and nothing has been heard of it for a while."""
        link = self._endpoint.link(peer) if peer != self.peer else None
        return link is not None and link.quiet

    def post(
        self,
        peer: PeerId,
        method: str,
        header: Mapping[str, Any],
        payload: bytes | memoryview = b"",
        *,
        priority: Priority = Priority.ACTIVATION,
    ) -> None:
        """Send without waiting; raises LinkClosed where no link to the peer is alive.

        Only plain (inline) handlers are posted to.
        """
        if peer == self.peer:
            self._handlers[method](Call(peer, dict(header), payload))
        else:
            self._link(peer).post(method, header, payload, priority=priority)

    async def call(
        self, peer: PeerId, method: str, header: Mapping[str, Any], *, timeout: float
    ) -> Reply:
        """Ask and wait; raises CallRefused, LinkClosed."""
        if peer != self.peer:
            return await self._link(peer).call(method, header, timeout=timeout)
        answer = self._handlers[method](Call(peer, dict(header), b""))
        if isawaitable(answer):
            answer = await answer
        if isinstance(answer, Refusal):
            raise CallRefused(answer.code, answer.message)
        return answer

    def _link(self, peer: PeerId) -> Link:
        link = self._endpoint.link(peer)
        if link is None:
            raise LinkClosed("unreachable", f"no link to {peer}")
        return link
