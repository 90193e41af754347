"""The classifier behind NATs of the real kernel, in network namespaces of the test.

Two observers there are two addresses of one computer, which is all that the lab has.
"""

import socket as stdlib
from typing import Any

import pytest
import trio

from shoal.netsim.nat.probes import catalogue as probes
from shoal.netsim.netns.lab import KernelLab
from shoal.netsim.netns.namespaces import available
from shoal.transport.host.datagrams import Datagrams, datagrams
from shoal.transport.host.real import RealHost
from shoal.transport.identity import PeerId
from shoal.transport.nat.reach import stun
from shoal.transport.nat.reach.natkind import NatRequest, Observer
from shoal.transport.nat.reach.probing import classify
from shoal.transport.nat.reach.reachability import UdpKind
from shoal.transport.nat.reach.stun import MessageClass, StunMessage
from shoal.transport.nat.reach.volunteer import Responder
from tests.transport.nat.reach.test_natkind import TRUTH

pytestmark = pytest.mark.ci
PORTS = 4001, 4002


class LabHost(RealHost):
    """This machine, except that its sockets are a lab host's."""

    def __init__(self, lab: KernelLab, name: str) -> None:
        super().__init__()
        self._lab = lab
        self._name = name

    async def datagrams(self, address: str, port: int, **_: Any) -> Datagrams:
        sock = self._lab.socket(self._name, stdlib.SOCK_DGRAM)
        await sock.bind((address, port))
        return datagrams(sock)


async def kind_of(lab: KernelLab) -> UdpKind:
    """Classify the NAT in front of `a1`."""
    server, node = LabHost(lab, "server"), LabHost(lab, "a1")
    ips = {PeerId(name): lab.addresses[name] for name in ("server", "server2")}
    responder = Responder()

    async def serve(socket: Datagrams) -> None:
        while True:
            for data, source in await socket.receive():
                message = stun.decode(data)
                assert message is not None
                answer = responder.answer(data, message, source, trio.current_time())
                if answer is not None:
                    socket.send(answer, source)

    async def ask_back(request: NatRequest) -> bool:
        socket = await server.datagrams(ips[request.peer], 0)
        message = StunMessage(MessageClass.INDICATION, bytes(12), nonce=request.nonce)
        sent = socket.send(stun.encode(message), request.place)
        socket.close()
        return sent

    sockets = [await server.datagrams(ip, port) for ip in ips.values() for port in PORTS]
    async with trio.open_nursery() as nursery:
        for socket in sockets:
            nursery.start_soon(serve, socket)
        observers = [Observer(peer, ip, PORTS) for peer, ip in ips.items()]
        found = await classify(node, observers, [lab.addresses["a1"]], ask_back)
        nursery.cancel_scope.cancel()
    for socket in sockets:
        socket.close()
    return found


@pytest.mark.parametrize("kind", probes.KINDS)
def test_kinds(kind: str) -> None:
    if (reason := available()) is not None:
        pytest.skip(reason)
    with KernelLab(kind) as lab:
        found = trio.run(kind_of, lab)
    assert (found.mapping, found.filtering, found.allocation.pattern) == TRUTH[kind]
