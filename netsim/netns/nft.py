"""nftables rules of Linux gateways, by the names of kinds in `netsim/nat/kinds.py`.

The devices of a gateway are `wan` and `lan`. The first six kinds use conntrack alone. The other
kinds also admit new flows from outside, by a map from an outer port to an inner endpoint. The first
outgoing packet of every flow updates the map.
(`netsim/nat/probes/catalogue.py` describes the recipes in words.)

Each statement is on a line of its own, because nft does not parse all one-line forms. Words such as
`fwd` cannot name a chain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RecipeInputs:
    """Parameters of a recipe.

    `wan` is the outer address, and `lan` the network inside (`192.168.1.0/24`). `lifetime` is the
    time, in seconds, after which the maps forget an unused element.
    """

    wan: str
    lan: str
    lifetime: float = 300.0

    @property
    def keep(self) -> str:
        """The lifetime in the notation of nftables."""
        return f"{round(self.lifetime * 1000)}ms"


_FORWARD: Final = """chain forward {
type filter hook forward priority filter; policy accept;
iifname "wan" ct state established,related accept
iifname "wan" drop
}
"""

# Rules for unsolicited packets to the gateway itself.
ACCEPT: Final = ""
DROP: Final = 'iifname "wan" drop\n'
REJECT: Final = """iifname "wan" meta l4proto tcp reject with tcp reset
iifname "wan" reject
"""
"""As in OpenWrt: a reset for TCP, and "port unreachable" for other protocols."""


def _filters(unsolicited: str, forward: str = _FORWARD) -> str:
    """Return the nftables table that filters packets.

    `unsolicited` has the rules for new packets to the gateway itself. `forward` is the chain for
    packets that the gateway forwards.
    """
    return f"""table ip filter {{
{forward}chain input {{
type filter hook input priority filter; policy accept;
iifname "wan" ct state established,related accept
{unsolicited}}}
}}
"""


Recipe = Callable[[RecipeInputs], str]
"""Function that returns the nftables rules of a gateway for its parameters."""


def conntrack(source: str, unsolicited: str = DROP) -> Recipe:
    """Return a recipe for a gateway that uses conntrack alone.

    `source` is the statement that translates addresses. `unsolicited` has the rules for unsolicited
    packets to the gateway itself.
    """

    def recipe(site: RecipeInputs) -> str:
        """Return the nftables rules of a gateway with the parameters `site`."""
        return f"""table ip nat {{
chain prerouting {{
type nat hook prerouting priority dstnat; policy accept;
}}
chain postrouting {{
type nat hook postrouting priority srcnat; policy accept;
oifname "wan" {source.format(wan=site.wan)}
}}
}}
{_filters(unsolicited)}"""

    return recipe


# `inner` maps an outer port to the inner endpoint. `spoken` has the remote addresses to which each
# port has sent.
_MAPS: Final = """map inner {
type inet_service : ipv4_addr . inet_service
flags dynamic,timeout
timeout %(keep)s
size 65536
}
set spoken {
type ipv4_addr . inet_service
flags dynamic,timeout
timeout %(keep)s
size 65536
}
"""


_OUTWARD: Final = 'oifname "wan" meta l4proto udp update'


def cone(allowed: str = "", *, forward: str = "", hairpin: bool = False) -> Recipe:
    """Return a recipe for a gateway that also admits packets that belong to no known flow.

    Such a packet is admitted if its port has a mapping, if it meets the condition `allowed`, and if
    it passes the chain `forward`. An empty `allowed` or `forward` admits every packet. With
    `hairpin`, hosts inside can reach each other through the outer address.
    """

    def recipe(site: RecipeInputs) -> str:
        """Return the nftables rules of a gateway with the parameters `site`."""
        back = f'iifname "lan" ip daddr {site.wan} meta l4proto udp dnat to udp dport map @inner\n'
        turned = f'oifname "lan" ip saddr {site.lan} ip daddr {site.lan} snat to {site.wan}\n'
        return f"""table ip nat {{
{_MAPS % {"keep": site.keep}}chain prerouting {{
type nat hook prerouting priority dstnat; policy accept;
iifname "wan" meta l4proto udp {allowed} dnat to udp dport map @inner
{back if hairpin else ""}}}
chain postrouting {{
type nat hook postrouting priority srcnat; policy accept;
{turned if hairpin else ""}{_OUTWARD} @inner {{ udp sport : ip saddr . udp sport }}
{_OUTWARD} @spoken {{ ip daddr . udp sport }}
oifname "wan" snat to {site.wan}
}}
}}
{_filters(DROP, forward)}"""

    return recipe


KINDS: Final[dict[str, Recipe]] = {
    "linux-drop": conntrack("masquerade"),
    "linux-accept": conntrack("masquerade", ACCEPT),
    "linux-reject": conntrack("masquerade", REJECT),
    "linux-random": conntrack("masquerade random"),
    "linux-fully-random": conntrack("masquerade fully-random"),
    "linux-persistent": conntrack("snat to {wan} persistent"),
    "full-cone": cone(),
    "address-restricted": cone("ip saddr . udp dport @spoken"),
    "port-restricted": cone(forward=_FORWARD),
    "full-cone-hairpin": cone(hairpin=True),
}


def rules(kind: str, site: RecipeInputs) -> str:
    """Return the nftables rules of a gateway of this kind.

    Raises ValueError if the kind is unknown.
    """
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise ValueError(f"the kernel backend has no gateway of kind `{kind}` (it has {known})")
    return KINDS[kind](site)
