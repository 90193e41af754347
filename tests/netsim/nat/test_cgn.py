"""A carrier's NAT in front of homes."""

from typing import Any

import trio

from shoal.netsim.nat.kinds import BLOCK, Cgn
from shoal.netsim.nat.ports import LOW_PORT
from shoal.netsim.world import World
from tests.netsim.nat.wire import GATE, A, B, Wire

HOME = ("100.64.0.2", 4001)
NEIGHBOUR = ("100.64.0.3", 4001)


def wire(**knobs: Any) -> Wire:
    return Wire("cgn", (HOME[0], NEIGHBOUR[0]), **knobs)


def test_subscribers_get_blocks_and_admit_all_senders() -> None:
    cgn = wire()
    outer, other = cgn.out(HOME, A), cgn.out(NEIGHBOUR, A)
    assert outer is not None and other is not None
    assert (outer[1] - LOW_PORT) // BLOCK == 0 and (other[1] - LOW_PORT) // BLOCK == 1
    assert cgn.out(HOME, B) == outer
    assert cgn.back(B, outer) == HOME


def test_udp_ends_between_35_and_65_s() -> None:
    for answered, end in (False, 35.0), (True, 65.0):
        for when, reached in (end - 0.1, HOME), (end, None):
            cgn = wire()
            outer = cgn.out(HOME, A)
            assert outer is not None
            if answered:
                cgn.back(A, outer)
            assert cgn.at(when).back(A, outer) == reached


def test_subscriber_has_as_many_mappings_as_ports() -> None:
    cgn = wire(block_size=8)
    seen = [cgn.out((HOME[0], port), A) for port in range(5000, 5009)]
    assert seen[8] is None and len(set(seen[:8])) == 8
    assert cgn.out(NEIGHBOUR, A) is not None


def test_neighbours_reach_each_other_by_the_outer_address() -> None:
    """RFC 6888 REQ-1: hairpinning."""
    cgn = wire()
    outer = cgn.out(HOME, A)
    assert outer is not None
    there = cgn.inward(NEIGHBOUR, outer)
    assert there is not None and there.dst == HOME and there.src[0] == GATE


def test_home_behind_the_carrier_is_translated_twice() -> None:
    world = World()
    cgn = world.gateway("cgn", "cgn")
    home = world.gateway("home", "linux-drop", behind=cgn)
    alice, bob = world.host("alice", behind=home), world.host("bob")
    assert isinstance(cgn, Cgn) and home.address.startswith("100.64.")
    seen = []

    async def ask() -> None:
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
            await sock.sendto(b"?", (bob.addresses()[0], 7))
            seen.append((await sock.recv(100)).decode())

    async def answer() -> None:
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as sock:
            await sock.bind(("0.0.0.0", 7))
            _, source = await sock.recvfrom(100)
            await sock.sendto(source[0].encode(), source)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            bob.start_soon(nursery, answer)
            alice.start_soon(nursery, ask)

    world.run(main)
    assert seen == [cgn.address]
