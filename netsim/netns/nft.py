"""Linux gateways as files of nftables rules, by the names of `netsim/nat/kinds.py`.

A gateway's devices are `wan` and `lan`. The first six kinds only use conntrack. The others admit
new flows from outside with a map from an outside port to an inside endpoint; the first outgoing
packet of every flow updates it. (`netsim/nat/probes/catalogue.py` describes the recipes in words.)

Each statement is on a line of its own, because nft parses one-line forms unreliably. Words like
`fwd` cannot name a chain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RecipeInputs:
    """Parameters of a recipe: the outer address, the inside network (`192.168.1.0/24`), and how
    long the maps keep unused elements (seconds).
    """

    wan: str
    lan: str
    lifetime: float = 300.0

    @property
    def keep(self) -> str:
        return f"{round(self.lifetime * 1000)}ms"


_FORWARD: Final = """chain forward {
type filter hook forward priority filter; policy accept;
iifname "wan" ct state established,related accept
iifname "wan" drop
}
"""

ACCEPT: Final = ""
DROP: Final = 'iifname "wan" drop\n'
REJECT: Final = """iifname "wan" meta l4proto tcp reject with tcp reset
iifname "wan" reject
"""
"""As in OpenWrt: a reset for TCP, port unreachable for the rest."""


def _filters(unsolicited: str, forward: str = _FORWARD) -> str:
    return f"""table ip filter {{
{forward}chain input {{
type filter hook input priority filter; policy accept;
iifname "wan" ct state established,related accept
{unsolicited}}}
}}
"""


Recipe = Callable[[RecipeInputs], str]
"""Returns the rules of a gateway."""


def conntrack(source: str, unsolicited: str = DROP) -> Recipe:
    """Return a recipe for a gateway that translates by conntrack alone.

    `source` is the statement that translates; `unsolicited` is the treatment of packets to the
    gateway itself.
    """

    def recipe(site: RecipeInputs) -> str:
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
    """Return a recipe for a gateway that also admits remotes other than the one spoken to.

    Beside the mapping, `allowed` is the condition for them and `forward` the chain that filters
    them.
    """

    def recipe(site: RecipeInputs) -> str:
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
    """Return the rules of a gateway of that kind. Raises ValueError for an unknown kind."""
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise ValueError(f"the kernel backend has no gateway of kind `{kind}` (it has {known})")
    return KINDS[kind](site)
