"""The lab that `netsim/nat/probes/sockets.py` describes, built from real network namespaces.

a1 a2      b1
gate_a     gate_b
server (a bridge with two addresses)
"""

import os
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

import trio

from ..nat.probes import catalogue as probes
from .gateway import QUIET, SWITCH, KernelGateway
from .namespaces import Namespaces

ADDRESSES: Final[Mapping[str, str]] = MappingProxyType({
    "a1": "192.168.1.2", "a2": "192.168.1.3", "b1": "192.168.2.2",
    "gate_a": "198.51.100.1", "gate_b": "198.51.100.2",
    "server": "198.51.100.10", "server2": "198.51.100.11",
})  # fmt: skip
# The network behind each gateway, and the gateway of each host.
INSIDE: Final = {"gate_a": "192.168.1.0/24", "gate_b": "192.168.2.0/24"}
BEHIND: Final = {"a1": "gate_a", "a2": "gate_a", "b1": "gate_b"}


class KernelLab:
    """`probes.Lab` in the kernel, with two gateways of the kind `kind`.

    This class is a context manager, which removes everything at its end.
    """

    addresses = ADDRESSES

    def __init__(self, kind: str, timers: Mapping[str, float] = probes.TIMERS) -> None:
        self._sockets: list[socket.socket] = []
        self._spaces = Namespaces()
        try:
            self._build(kind, timers)
        except BaseException:
            self._spaces.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets and remove the namespaces."""
        for sock in self._sockets:
            sock.close()
        self._spaces.close()

    def socket(self, host: str, kind: int) -> trio.socket.SocketType:
        """Return a new socket on a host, for use inside trio."""
        sock = self._hosts[host].socket(socket.AF_INET, kind)
        self._sockets.append(sock)
        return trio.socket.from_stdlib_socket(sock)

    def _build(self, kind: str, timers: Mapping[str, float]) -> None:
        """Create the server, the gateways and the hosts."""
        server = self._spaces.add("server")
        server.sysctl(QUIET | SWITCH)
        server.ip(
            "link add net0 type bridge",
            "link set net0 up",
            f"addr add {ADDRESSES['server']}/24 dev net0",
            f"addr add {ADDRESSES['server2']}/24 dev net0",
        )
        gates = {}
        for name, inside in INSIDE.items():
            gate = gates[name] = KernelGateway(self._spaces, name, kind, ADDRESSES[name], inside)
            self._spaces.connect(gate.space, "wan", server, name)
            server.ip(f"link set {name} master net0")
            gate.space.ip(f"addr add {gate.address}/24 dev wan")
            gate.guard(timers)
        self._hosts = {"server": server}
        for name, gate_name in BEHIND.items():
            host = self._hosts[name] = self._spaces.add(name)
            host.sysctl(QUIET)
            gates[gate_name].join(host, "eth0", ADDRESSES[name])


def kernel() -> str:
    """Return the name and version of the kernel, as stored in the golden table."""
    return f"{os.uname().sysname} {os.uname().release}"
