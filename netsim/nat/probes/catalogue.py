"""List of all probes of a NAT, and of the kinds of NAT that a real kernel can reproduce.

A probe controls the sockets on both sides of the NAT. It decides whether a server replies, with
what, and from which address, so that no protocol is needed. The result maps names to JSON values,
which are the same in every run. The probes use the sockets of `sockets.py`; `lab.py` is the
simulated lab.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from .sockets import TIMERS, Answer, Found, Lab, Servers, open_servers, udp
from .tcp import tcp_out, tcp_race, tcp_reset, tcp_simultaneous, tcp_unsolicited
from .udp import (
    filtering,
    hairpin,
    icmp,
    mapping,
    overload,
    punch,
    race,
    remap,
    timers,
    unsolicited,
)

__all__ = ["KINDS", "PROBES", "TIMERS", "Answer", "Found", "Lab", "run", "udp"]

Probe = Callable[[Lab, Servers], Awaitable[Found]]

PROBES: Final[Mapping[str, Probe]] = {
    probe.__name__: probe
    for probe in (
        mapping,
        filtering,
        race,
        overload,
        remap,
        timers,
        hairpin,
        punch,
        icmp,
        unsolicited,
        tcp_out,
        tcp_unsolicited,
        tcp_race,
        tcp_simultaneous,
        tcp_reset,
    )
}

KINDS: Final = {
    "linux-drop": "masquerade; FORWARD and INPUT from wan: established and related, else drop",
    "linux-accept": "masquerade; FORWARD as above; INPUT accepts (the router itself answers)",
    "linux-reject": "masquerade; FORWARD as above; INPUT from wan: reject (TCP: tcp reset)",
    "linux-random": "linux-drop with masquerade random",
    "linux-fully-random": "linux-drop with masquerade fully-random",
    "linux-persistent": "linux-drop with `snat to <wan> persistent`",
    "full-cone": "snat; dynamic map udp sport -> saddr . sport (300 s), updated in postrouting,"
    " dnat from wan by it in prerouting; INPUT from wan drop; no FORWARD filter",
    "address-restricted": "full-cone whose dnat needs saddr . dport in a set (300 s) of"
    " daddr . sport, updated in postrouting",
    "port-restricted": "full-cone with linux-drop's FORWARD filter",
    "full-cone-hairpin": "full-cone; dnat from lan too (ip daddr <wan>), lan to lan snat to <wan>",
}
"""Kinds of gateway that a real kernel can reproduce, each with a summary of its nftables rules. No
other rules filter or translate packets, and every packet from the LAN may enter the router.
"""


async def run(lab: Lab, names: tuple[str, ...] = tuple(PROBES)) -> Found:
    """Run the named probes one after the other, and return their results by name."""
    servers = await open_servers(lab)
    found: Found = {}
    for name in names:
        found |= await PROBES[name](lab, servers)
    return found
