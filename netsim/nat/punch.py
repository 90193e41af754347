"""Hole punching between every two kinds of NAT: who gets through to whom.

Two peers learn their outer address from a public server, tell each other, and send to it;
each turns to the address from which it hears the other (RFC 8445's peer-reflexive candidates).
All pairs run beside each other in one world and share nothing but the server.
"""

import socket as stdlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from ..host import Host
from ..link import LinkSpec, PipeSpec
from ..packet import Addr
from ..world import World

PUBLIC: Final = "public"
KINDS: Final = (
    PUBLIC,
    "eim-eif",
    "eim-adf",
    "eim-apdf",
    "linux-drop",
    "linux-accept",
    "adm-apdf",
    "apdm-apdf",
)
SKEWS_S: Final = (0.0, 0.15)
ROUNDS: Final = 10
EVERY_S: Final = 0.2
START_S: Final = 1.0
SERVER_PORT: Final = 3478
PORT: Final = 4001
_LINK: Final = LinkSpec(up=PipeSpec(delay=0.02), down=PipeSpec(delay=0.02))


@dataclass
class Pair:
    """Two peers behind gateways of two kinds; the second starts `skew` seconds later."""

    kinds: tuple[str, str]
    skew: float
    hosts: list[Host] = field(default_factory=list)
    outer: list[Addr | None] = field(default_factory=lambda: [None, None])
    heard: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def connected(self) -> bool:
        """Whether both have heard the other."""
        return all(self.heard)


def truth_table(
    kinds: Sequence[str] = KINDS, skews: Sequence[float] = SKEWS_S, *, seed: int = 0
) -> tuple[list[Pair], World]:
    """Every kind with every kind, at every skew; and the world in which they met."""
    world = World(seed=seed)
    server = world.host("server")
    pairs = [Pair((a, b), skew) for skew in skews for a in kinds for b in kinds]
    for number, pair in enumerate(pairs):
        for side, kind in enumerate(pair.kinds):
            name = f"{number}{'ab'[side]}"
            gate = None if kind == PUBLIC else world.gateway(f"{name}/nat", kind, link=_LINK)
            pair.hosts.append(world.host(name, behind=gate, link=None if gate else _LINK))
    world.run(_main, server, pairs)
    return pairs, world


async def _main(server: Host, pairs: list[Pair]) -> None:
    to = server.addresses()[0], SERVER_PORT
    async with trio.open_nursery() as helpers:
        server.start_soon(helpers, _reflect)
        async with trio.open_nursery() as peers:
            for pair in pairs:
                for side, host in enumerate(pair.hosts):
                    host.start_soon(peers, _peer, pair, side, to)
        helpers.cancel_scope.cancel()


def _socket() -> trio.socket.SocketType:
    return trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM)


async def _reflect() -> None:
    """Tell everybody where they come from, as a STUN server does."""
    with _socket() as sock:
        await sock.bind(("0.0.0.0", SERVER_PORT))
        while True:
            _, source = await sock.recvfrom(64)
            await sock.sendto(f"{source[0]} {source[1]}".encode(), source)


async def _peer(pair: Pair, side: int, server: Addr) -> None:
    with _socket() as sock:
        await sock.bind(("0.0.0.0", PORT))
        await sock.sendto(b"?", server)
        with trio.move_on_after(START_S / 2):
            ip, port = (await sock.recv(64)).decode().split()
            pair.outer[side] = ip, int(port)
        await trio.sleep_until(START_S + pair.skew * side)
        other = pair.outer[1 - side]
        if other is not None:
            await _knock(pair, side, sock, other)


async def _knock(pair: Pair, side: int, sock: trio.socket.SocketType, other: Addr) -> None:
    """Send every EVERY_S to where the other was last seen, until it must have been heard."""
    ends = trio.current_time() + ROUNDS * EVERY_S
    while trio.current_time() < ends:
        await sock.sendto(b"!", other)
        with trio.move_on_after(EVERY_S):
            while True:
                try:
                    _, other = await sock.recvfrom(64)
                except ConnectionRefusedError:  # a port unreachable on the way
                    continue
                pair.heard[side] += 1
