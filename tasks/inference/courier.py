"""Sends session messages to a peer over its link, or directly to this node's own handlers."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable

from ...transport.bytestream import PathKind
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import CallRefused, DialFailed, LinkClosed
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Call, Handler, Refusal, Reply
from ...transport.link.link import Link
from ...transport.link.serving import StreamHandler
from ...transport.link.stream import Stream
from ...transport.networks import targets
from ..routing.defaults import LINK_S

Connect = Callable[[PeerId], Awaitable[object]]
"""Establishes a link to a peer. Raises DialFailed if that fails."""
NeedLink = Callable[[Link], None]
"""Marks a link as needed, so that all means are used to find a direct path for it."""


class Courier:
    """Message handlers and outgoing messages, shared by a node's stage and its gateway.

    A node may be a session's gateway and also one of its stages. A message from the node to itself
    calls the handler directly, with the node as the sender.
    """

    def __init__(
        self, endpoint: Endpoint, connect: Connect | None = None, need: NeedLink | None = None
    ) -> None:
        """Create a courier. `connect` establishes a link to a live member that is not linked
        yet."""
        self._endpoint = endpoint
        self.connect = connect
        self._need = need
        self._handlers: dict[str, Handler] = {}

    @property
    def peer(self) -> PeerId:
        return self._endpoint.peer

    def handle(self, method: str, handler: Handler) -> None:
        """Register the handler of a method, for messages from peers and from this node itself."""
        self._handlers[method] = handler
        self._endpoint.handle(method, handler)

    def handle_stream(self, method: str, handler: StreamHandler) -> None:
        """Register the handler of streams with the name `method`, which only peers open."""
        self._endpoint.handle_stream(method, handler)

    async def open_stream(
        self, peer: PeerId, method: str, header: Mapping[str, object], priority: Priority
    ) -> Stream:
        """Open a stream to a peer. Raises CallRefused if it refuses, and LinkClosed without a
        link."""
        return await self._link(peer).open_stream(method, header, priority=priority)

    def on_link_lost(self, callback: Callable[[Link, str], None]) -> None:
        """Register `callback(link, code)` to be called when the link to a peer has ended for
        good."""
        self._endpoint.on_link_lost(callback)

    def on_link_quiet(self, callback: Callable[[Link], None]) -> None:
        """Register `callback(link)` to be called when a peer has been silent for a while.

        The peer may be heard again later.
        """
        self._endpoint.on_link_quiet(callback)

    def on_link_back(self, callback: Callable[[Link], None]) -> None:
        """Register `callback(link)` to be called when a quiet peer is heard again."""
        self._endpoint.on_link_back(callback)

    def hold_links(self, holder: Callable[[PeerId], bool]) -> None:
        """Register `holder`: the link to a silent peer ends later if `holder(peer)` returns
        True."""
        self._endpoint.hold_links(holder)

    def watch_links(self, watcher: Callable[[PeerId], bool]) -> None:
        """Register `watcher`: the silence of a peer is detected early if `watcher(peer)` returns
        True."""
        self._endpoint.watch_links(watcher)

    def waiting(self, peer: PeerId) -> tuple[int, float]:
        """Return the bytes that have not arrived at a peer yet, and the round trip to it in
        seconds."""
        link = self._endpoint.link(peer) if peer != self.peer else None
        return (0, 0.0) if link is None else (link.backlog, link.rtt)

    def reaches(self, peer: PeerId) -> bool:
        """Return whether new messages can be sent to the peer: it is linked and not quiet, or this
        node."""
        return peer == self.peer or (
            self._endpoint.link(peer) is not None and not self.is_quiet(peer)
        )

    def round_trip(self, peer: PeerId) -> float | None:
        """Return the round trip to a peer in seconds, as its link measures it: LINK_S before that,
        0 for this node, and None without a link."""
        if peer == self.peer:
            return 0.0
        link = self._endpoint.link(peer)
        if link is None:
            return None
        trip = link.round_trip
        return LINK_S if trip is None else trip

    def rate(self, peer: PeerId) -> float:
        """Return the byte/s of the link to a peer as it measures them, 0 if it has not."""
        link = self._endpoint.link(peer) if peer != self.peer else None
        return link.rate if link is not None else 0.0

    def network(self, peer: PeerId) -> str:
        """Return the smallest network in which this node sees a peer: an IPv4 address, or a /64 of
        IPv6. It is "" for this node, and for a peer that only relays connect."""
        link = self._endpoint.link(peer) if peer != self.peer else None
        seen = () if link is None else tuple(link.seen)
        return targets(seen[-1])[0].name if seen else ""

    def is_linked(self, peer: PeerId) -> bool:
        """Return whether the peer has a link, even a quiet one, or is this node."""
        return peer == self.peer or self._endpoint.link(peer) is not None

    async def meet(self, peer: PeerId) -> None:
        """Try to establish a link to a peer that has none, ignoring failure.

        In a large swarm, a chain may include live members that are not linked with each other.
        """
        if self.connect is None or self.is_linked(peer):
            return
        with suppress(DialFailed):
            await self.connect(peer)

    def is_spare(self, peer: PeerId) -> bool:
        """Return whether the peer has a relayed link that no component has needed yet."""
        link = self._endpoint.link(peer) if peer != self.peer else None
        return link is not None and link.path_kind is PathKind.RELAYED and not link.needed

    def need(self, peer: PeerId) -> None:
        """Mark the link to a peer as needed. Nodes that only know each other may stay relayed where
        a direct path takes many probes, but not the neighbours in a chain."""
        link = self._endpoint.link(peer)
        if link is not None and self._need is not None:
            self._need(link)

    def is_quiet(self, peer: PeerId) -> bool:
        """Return whether the peer has a link but has been silent for a while."""
        link = self._endpoint.link(peer) if peer != self.peer else None
        return link is not None and link.quiet

    def post(
        self,
        peer: PeerId,
        method: str,
        header: Mapping[str, object],
        payload: bytes | memoryview = b"",
        *,
        priority: Priority = Priority.ACTIVATION,
    ) -> None:
        """Send a message that has no reply. Raises LinkClosed if the peer has no live link.

        The handler of the method must be a plain function (inline), and not a coroutine function.
        """
        if peer == self.peer:
            self._handlers[method](Call(peer, dict(header), payload))
        else:
            self._link(peer).post(method, header, payload, priority=priority)

    async def call(
        self,
        peer: PeerId,
        method: str,
        header: Mapping[str, object],
        payload: bytes = b"",
        *,
        timeout: float,
        priority: Priority = Priority.CONTROL,
    ) -> Reply:
        """Call a method and return its reply.

        Raises CallRefused if the peer refuses, and LinkClosed if it has no live link. `timeout` is
        in seconds.
        """
        if peer != self.peer:
            return await self._link(peer).call(
                method, header, payload, priority=priority, timeout=timeout
            )
        handler = self._handlers.get(method)
        if handler is None:  # as a peer without it would refuse
            raise CallRefused("unknown-method", f"this node does not answer `{method}`")
        answer = handler(Call(peer, dict(header), payload))
        if isawaitable(answer):
            answer = await answer
        if isinstance(answer, Refusal):
            raise CallRefused(answer.code, answer.message)
        return answer

    def _link(self, peer: PeerId) -> Link:
        """Return the link to a peer. Raises LinkClosed if there is none."""
        link = self._endpoint.link(peer)
        if link is None:
            raise LinkClosed("unreachable", f"no link to {peer}")
        return link
