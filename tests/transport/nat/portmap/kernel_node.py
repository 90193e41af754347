"""A mapper on the real host, as a program of its own: `kernel_node.py PROTOCOLS SECONDS`.

Listens on TCP 4001 as well. Prints a line of JSON for each change, and the outcome at the end.
"""

import json
import sys

import trio

from shoal.transport.host.real import RealHost
from shoal.transport.nat.portmap.mapper import PortMapper
from shoal.transport.nat.portmap.mapping import PortMapping


def show(**found: object) -> None:
    print(json.dumps(found), flush=True)


def show_mapping(mapping: PortMapping | None) -> None:
    if mapping is not None:
        place = [mapping.address, mapping.tcp_port, mapping.udp_port, mapping.protocol]
        show(mapping=place, seconds=round(mapping.expires - trio.current_time()))


async def accept(listener: trio.SocketListener) -> None:
    while True:
        stream = await listener.accept()
        show(accepted=stream.socket.getpeername()[0])
        await stream.aclose()


async def main(protocols: str, seconds: float) -> None:
    host = RealHost()
    mapper = PortMapper(host, key=b"k" * 32, protocols=protocols.split(","))
    mapper.on_change(show_mapping)
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, await host.listen("0.0.0.0", 4001))
            nursery.start_soon(mapper.run, 4001, 4001)
    show(answers=mapper.outcome.answers)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], float(sys.argv[2]))
