"""A node of the transport alone on a real host, for `connect_matrix.py`.

`matrix_side.py SEED RELAY` (RELAY: 0, 1 it relays, 443 there too) obeys lines of JSON:
`{"book": {peer: [address, …]}}`, `{"introduce": [peer, …]}`, `{"publish": 1}`,
`{"meet": peer, "patience": seconds}`. Each is answered by one line.
"""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))  # for worlds/

from worlds.town import climb

from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import Dialer, Strategies

PORT = 4001


class Side:
    def __init__(self, seed: int, relay: int) -> None:
        self.identity = Identity.from_seed(bytes([seed]) * 32)
        self.host = RealHost()
        self.endpoint = Endpoint(self.host, self.identity, admission=OpenSwarm())
        self.book: dict[str, list[Address]] = {}
        self.further = (("0.0.0.0", 443),) if relay == 443 else ()
        self.dialer = Dialer(
            self.host,
            self.endpoint,
            strategies=Strategies(lan=False, libp2p=False),
            relaying=RelayLimits(volunteer=bool(relay)),
            key=self.identity.seed,
            book=lambda peer: self.book.get(peer, ()),
        )

    async def obey(self, order: dict[str, Any]) -> Any:
        if "book" in order:
            self.book |= {
                peer: [Address.parse(text) for text in texts]
                for peer, texts in order["book"].items()
            }
            return len(self.book)
        if "introduce" in order:
            async with trio.open_nursery() as nursery:
                for peer in order["introduce"]:
                    nursery.start_soon(self.greet, PeerId(peer))
            return len(self.endpoint.links())
        if "publish" in order:
            return {"peer": self.identity.peer, "addresses": [str(each) for each in self.own()]}
        found, link = await climb(
            self.dialer, PeerId(order["meet"]), timeout=15.0, patience=order["patience"]
        )
        if link is not None and not found.known:
            link.close()
        return asdict(found)

    async def greet(self, peer: PeerId) -> None:
        with suppress(DialFailed):
            await self.dialer.connect(peer, timeout=15.0)

    def own(self) -> Sequence[Address]:
        four = [item.address for item in self.host.interfaces() if ":" not in item.address]
        own = [Address(ip, PORT, self.identity.peer) for ip in four if ip != "127.0.0.1"]
        return list(dict.fromkeys([*own, *self.dialer.addresses()]))


async def main(seed: int, relay: int) -> None:
    side = Side(seed, relay)
    async with trio.open_nursery() as nursery:
        await nursery.start(
            lambda task_status: side.dialer.run(
                "0.0.0.0", PORT, further=side.further, task_status=task_status
            )
        )
        rest = b""
        async for piece in trio.lowlevel.FdStream(os.dup(0)):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                print(json.dumps(await side.obey(json.loads(line))), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]))
