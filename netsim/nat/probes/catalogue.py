"""Probes that find out how a NAT behaves: the same coroutines for simulated and real NATs.

The probes hold both ends of everything, so a server needs no protocol: the probes decide what it
replies, from which address, and whether it replies at all. The result is flat, names to JSON
values, without numbers that vary from run to run. (The probes run on `sockets.py`; `lab.py` is
the simulated lab.)
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
"""Kinds with a twin in the real kernel: the rules that make it there. Nothing else filters or
translates; every LAN packet may enter the router.
"""


async def run(lab: Lab, names: tuple[str, ...] = tuple(PROBES)) -> Found:
    """Run the named probes, one after the other."""
    servers = await open_servers(lab)
    found: Found = {}
    for name in names:
        found |= await PROBES[name](lab, servers)
    return found
