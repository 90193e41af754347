"""Swarms of hubs and leaves without sockets, whose members die, and lie."""

from collections import Counter
from typing import Any

import trio

from shoal.state import defaults
from shoal.state.membership.messages import encode_found, read_find
from shoal.transport.identity import PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Reply
from tests.state.fake_net import FakeNet, FakeNode

NONCE = bytes(defaults.NONCE_BYTES)


async def star(net: FakeNet, hubs: int, leaves: int, settle: float = 5.0) -> list[FakeNode]:
    """Return hubs that are linked with all nodes, and leaves that are linked only with the hubs."""
    nodes = [FakeNode(net, number, links=0) for number in range(1, hubs + leaves + 1)]
    for number, node in enumerate(nodes):
        net.nursery.start_soon(node.run, *nodes[: min(number, hubs)])
    await trio.sleep(settle)
    return nodes


def silence(node: FakeNode, quiet: bool = True) -> None:
    """Stop a node's machine: no peer is told, and calls to it wait."""
    node.scope.cancel()
    for place in [place for place, each in node.net.at.items() if each.peer == node.peer]:
        del node.net.at[place]  # nor does it answer dials
    for other in node.net.by_peer.values():
        for peer, link in other.all_links.items():
            if node.peer in (peer, other.peer):
                link.connected = False


def notice(node: FakeNode, by: FakeNode) -> None:
    """Let `by` notice that its link to `node` has no path."""
    link: Any = by.endpoint.all_links[node.peer]
    for callback in by.endpoint.doubt:
        callback(link, True)


def give_up(node: FakeNode, by: FakeNode) -> None:
    """Let `by` notice that it has received nothing from `node` for too long."""
    link: Any = by.endpoint.all_links[node.peer]
    link.quiet = True
    for callback in by.endpoint.quiet:
        callback(link)


def lie(liar: FakeNode, proof: bytes) -> None:
    """Let a node answer all questions about members with this signature."""

    def answer(call: Call) -> Reply:
        ident, _, _, peers = read_find(call.payload)
        link: Any = liar.endpoint.all_links[call.peer]
        for place in range(len(peers)):
            body = encode_found(ident, place, proof)
            link.post("live.found", payload=body, priority=Priority.CONTROL)
        return Reply()

    liar.endpoint.handle("live.find", answer)


def counted(nodes: list[FakeNode], *methods: str) -> Counter[tuple[str, PeerId, PeerId]]:
    """Count the calls of these methods from now on, by method, caller and peer."""
    calls: Counter[tuple[str, PeerId, PeerId]] = Counter()
    for node in nodes:
        for method in methods:
            handler = node.endpoint.handlers[method]

            def count(
                call: Call, handler: Any = handler, method: str = method, at: PeerId = node.peer
            ) -> Any:
                calls[method, call.peer, at] += 1
                return handler(call)

            node.endpoint.handle(method, count)
    return calls
