"""Network in memory: endpoints whose calls take time, fail, or lie, as a test says."""

from collections import Counter
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any

import trio

from shoal.transport.errors import CallRefused, LinkClosed
from shoal.transport.identity import PeerId
from shoal.transport.lane.frame import Bytes, Priority
from shoal.transport.link.calls import Answer, Call, Handler, Refusal, Reply

Twist = Callable[[str, Answer], Answer]
"""Changes a peer's replies before they are sent: (method, answer) -> answer."""


def honest(method: str, answer: Answer) -> Answer:
    return answer


class Network:
    """Peers by name; every pair is linked while neither is in `down`."""

    def __init__(self) -> None:
        self.nodes: dict[PeerId, Node] = {}
        self.down: set[PeerId] = set()
        # A silent peer sends no replies to methods whose name contains this text, until the event.
        self.mute: dict[PeerId, tuple[str, trio.Event]] = {}

    def hush(self, peer: PeerId, method: str = "") -> None:
        """Let a peer fall silent, from its next reply to `method` on."""
        self.mute[peer] = method, trio.Event()

    def hear(self, peer: PeerId) -> None:
        """Let a silent peer reply again."""
        self.mute.pop(peer)[1].set()

    def node(self, name: str, *, rate: float = 10e6, twist: Twist = honest) -> "Node":
        """Add a peer that sends `rate` bytes per second, over all its replies together."""
        node = Node(self, PeerId(name), rate, twist)
        self.nodes[node.peer] = node
        return node

    def peers(self) -> list[PeerId]:
        return list(self.nodes)


class Node:
    """Endpoint in the network."""

    def __init__(self, network: Network, peer: PeerId, rate: float, twist: Twist) -> None:
        self.network = network
        self.peer = peer
        self.ip = "127.0.0.1"
        self.rate = rate
        self.twist = twist
        self.handlers: dict[str, Handler] = {}
        self.served: Counter[str] = Counter()
        self.asked_of: Counter[PeerId] = Counter()
        self.wire = trio.Lock()
        self.quiet: set[PeerId] = set()
        self.on_quiet: list[Callable[[Any], None]] = []
        self.on_back: list[Callable[[Any], None]] = []

    def on_link_quiet(self, callback: Callable[[Any], None]) -> None:
        self.on_quiet.append(callback)

    def on_link_back(self, callback: Callable[[Any], None]) -> None:
        self.on_back.append(callback)

    def miss(self, peer: PeerId) -> None:
        """Make the link to a peer quiet."""
        self.quiet.add(peer)
        for callback in self.on_quiet:
            callback(self.link(peer))

    def find(self, peer: PeerId) -> None:
        """End the quiet of a link."""
        self.quiet.discard(peer)
        for callback in self.on_back:
            callback(self.link(peer))

    def handle(self, method: str, handler: Handler) -> None:
        self.handlers[method] = handler

    def link(self, peer: PeerId) -> "Wire | None":
        gone = self.network.down & {peer, self.peer}
        known = peer in self.network.nodes and peer != self.peer
        return Wire(self, self.network.nodes[peer]) if known and not gone else None


class Wire:
    """Link between two nodes."""

    def __init__(self, near: Node, far: Node) -> None:
        self.near = near
        self.far = far
        self.peer = far.peer

    @property
    def quiet(self) -> bool:
        return self.far.peer in self.near.quiet

    @property
    def address(self) -> tuple[str, int]:
        return self.far.ip, 4001

    async def call(
        self,
        method: str,
        header: Mapping[str, Any] = {},
        payload: Bytes = b"",
        *,
        priority: Priority = Priority.CONTROL,
        timeout: float,
        within: float = 0.0,
    ) -> Reply:
        if method == "blob.chunk":
            assert priority is Priority.BULK
            self.near.asked_of[self.far.peer] += 1
        with trio.move_on_after(timeout):
            return await self._call(method, header, payload)
        raise CallRefused("timeout", "no answer")

    def post(
        self,
        method: str,
        header: Mapping[str, Any] = {},
        payload: Bytes = b"",
        *,
        priority: Priority,
    ) -> None:
        if self.network_is_down():
            raise LinkClosed("silent", "the peer is down")
        handler = self.far.handlers.get(method)
        if handler is not None:
            assert not isawaitable(handler(Call(self.near.peer, dict(header), payload)))

    async def _call(self, method: str, header: Mapping[str, Any], payload: Bytes) -> Reply:
        handler = self.far.handlers.get(method)
        if handler is None:
            raise CallRefused("unknown-method", "no such method")
        answer = handler(Call(self.near.peer, dict(header), payload))
        answer = self.far.twist(method, await answer if isawaitable(answer) else answer)
        if isinstance(answer, Refusal):
            await trio.sleep(0.001)
            raise CallRefused(answer.code, answer.message)
        async with self.far.wire:
            await trio.sleep(0.001 + len(answer.payload) / self.far.rate)
        if (mute := self.near.network.mute.get(self.far.peer)) is not None and mute[0] in method:
            await mute[1].wait()
        if self.network_is_down():
            raise LinkClosed("silent", "the peer is down")
        self.far.served[method] += 1
        return answer

    def network_is_down(self) -> bool:
        return bool(self.near.network.down & {self.near.peer, self.far.peer})
