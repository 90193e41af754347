"""A Linux gateway in a network namespace, with the LAN behind it."""

import os
import socket
import struct
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final

from . import nft
from .namespaces import Namespace, Namespaces

QUIET: Final = {
    # New namespaces inherit these settings from the machine. Reset them to the kernel's defaults.
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    "net.ipv4.conf.all.send_redirects": 0,
    "net.ipv4.conf.default.send_redirects": 0,
    "net.ipv6.conf.all.disable_ipv6": 1,
}
ROUTER: Final = {"net.ipv4.ip_forward": 1}  # additional settings of a gateway
SWITCH: Final = {"net.bridge.bridge-nf-call-iptables": 0}
"""Settings of a switch: nftables rules for IP do not apply to bridged packets."""

# Constants of Linux: netlink.h, nfnetlink.h and nfnetlink_conntrack.h.
NETLINK_NETFILTER, CTNETLINK, CT_DELETE = 12, 1, 2
NLM_F_REQUEST, NLM_F_ACK = 1, 4


def conntrack_timers(timers: Mapping[str, float]) -> dict[str, int]:
    """Convert timers to kernel settings.

    `timers` are in seconds, by the simulator's names (`udp_new`, …), and are rounded to whole
    seconds. Raises ValueError if the kernel does not have a timer.
    """
    names = {"udp_new": "udp_timeout", "udp_stream": "udp_timeout_stream"}
    unknown = sorted(timers.keys() - names.keys())
    if unknown:
        raise ValueError(f"conntrack has no timer `{unknown[0]}` (it has {', '.join(names)})")
    return {f"net.netfilter.nf_conntrack_{names[key]}": round(timers[key]) for key in timers}


def forget_connections(space: Namespace) -> None:
    """Empty a namespace's conntrack table through ctnetlink
    (linux/netfilter/nfnetlink_conntrack.h).

    Raises OSError if the kernel refuses.
    """
    request = struct.pack(
        "=IHHIIBBH", 20, CTNETLINK << 8 | CT_DELETE, NLM_F_REQUEST | NLM_F_ACK, 1, 0,
        socket.AF_UNSPEC, 0, 0,
    )  # fmt: skip
    with space.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as kernel:
        kernel.send(request)
        answer = kernel.recv(4096)
    (number,) = struct.unpack_from("=i", answer, 16)
    if number:
        raise OSError(-number, os.strerror(-number))


class KernelGateway:
    """A router with two devices, `wan` and `lan`, and a switch that connects hosts to `lan`.

    The caller connects `wan`. `inside` is the network of the LAN.
    """

    def __init__(
        self, spaces: Namespaces, name: str, kind: str, address: str,
        inside: str = "192.168.1.0/24", depth: int = 1,
    ) -> None:  # fmt: skip
        network = ip_network(inside)
        self.name = name
        self.address = address
        self.depth = depth  # number of gateways between its hosts and the internet
        self._spaces = spaces
        self._site = nft.RecipeInputs(address, inside)
        self._rules = nft.rules(kind, self._site)
        self._bits = network.prefixlen
        self._free = network.hosts()
        self._joined = 0
        self.inner = self.free_address()
        self.space = spaces.add(name)
        self.space.sysctl(QUIET | ROUTER)
        self._switch = spaces.add(f"{name}/switch")
        self._switch.sysctl(QUIET | SWITCH)
        self._switch.ip("link add lan0 type bridge", "link set lan0 up")
        self._cable(self.space, "lan")
        self.space.ip(f"addr add {self.inner}/{self._bits} dev lan")

    def free_address(self) -> str:
        """Return an unused address in the LAN."""
        return str(next(self._free))

    def guard(self, timers: Mapping[str, float] | None = None) -> None:
        """Load the nftables rules and set the timers of conntrack.

        `timers` are in seconds. Timers that are not given keep the kernel's default.
        """
        self.space.nft(self._rules)
        self.space.sysctl(conntrack_timers(timers or {}))

    def reboot(self) -> None:
        """Simulate a reboot: forget every connection and mapping, and load the rules again."""
        self.space.nft("flush ruleset\n" + self._rules)
        forget_connections(self.space)

    def join(self, space: Namespace, device: str, address: str) -> None:
        """Connect a host, or the `wan` device of a gateway behind this one, to the LAN."""
        self._cable(space, device)
        space.ip(
            f"addr add {address}/{self._bits} dev {device}",
            f"route add default via {self.inner} dev {device}",
        )

    def _cable(self, space: Namespace, device: str) -> None:
        """Connect a new device of a namespace to the switch."""
        self._joined += 1
        port = f"port{self._joined}"
        self._spaces.connect(space, device, self._switch, port)
        self._switch.ip(f"link set {port} master lan0")
