"""The lab: its hosts, its gateways' timers."""

import socket

import trio

from shoal.netsim.nat.probes import catalogue as probes
from shoal.netsim.netns.lab import KernelLab


def test_every_host_has_its_address(kernel: None) -> None:
    async def main(lab: KernelLab) -> None:
        for host in "a1", "a2", "b1", "server":
            sock = lab.socket(host, socket.SOCK_DGRAM)
            await sock.bind((lab.addresses[host], 5000))
        await lab.socket("server", socket.SOCK_DGRAM).bind((lab.addresses["server2"], 5000))

    with KernelLab("linux-drop") as lab:
        trio.run(main, lab)


def test_timers_are_as_told(kernel: None) -> None:
    """A mapping outlives the shorter of two timers, not the longer one."""

    async def alive(lab: KernelLab) -> bool:
        client = await probes.udp(lab, "a1", 40000)
        server = await probes.udp(lab, "server", 3478, lab.addresses["server"])
        await client.send((lab.addresses["server"], 3478))
        seen = await server.expect()
        assert seen is not None
        await trio.sleep(1.3)
        await server.send(seen)
        return await client.expect() is not None

    async def both(*labs: KernelLab) -> list[bool]:
        found = [False] * len(labs)

        async def one(number: int, lab: KernelLab) -> None:
            found[number] = await alive(lab)

        async with trio.open_nursery() as nursery:
            for number, lab in enumerate(labs):
                nursery.start_soon(one, number, lab)
        return found

    with (
        KernelLab("linux-drop", {"udp_new": 1, "udp_stream": 9}) as short,
        KernelLab("linux-drop", {"udp_new": 5, "udp_stream": 9}) as long,
    ):
        assert trio.run(both, short, long) == [False, True]
