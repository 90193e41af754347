"""Discovery on the real host, as a program of its own: `kernel_node.py SEED PORT SECONDS`.

Prints a line of JSON for each peer, and one at the end.
"""

import json
import sys

import trio

from shoal.transport.host.datagrams import Place
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lan.defaults import LanLimits
from shoal.transport.lan.mdns import LanDiscovery


def show(**found: object) -> None:
    print(json.dumps(found), flush=True)


async def main(seed: int, port: int, seconds: float) -> None:
    peer = Identity.from_seed(bytes([seed]) * 32).peer
    lan = LanDiscovery(RealHost(), peer, b"swarm", limits=LanLimits(look_s=0.2))

    def hear(other: PeerId, place: Place) -> None:
        show(peer=other, place=place)

    lan.on_peer(hear)
    with trio.move_on_after(seconds):
        await lan.run(port)
    show(condition=lan.condition)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
