"""Kinds of gateway by name, and the settings (knobs) of each.

A carrier-grade NAT (RFC 6888) has the subscribers of a provider share few addresses. To put a home
behind it, call `world.gateway("home", "linux-drop", behind=cgn)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from ..errors import nearest
from ..network.gateway import GatewayPlace, GatewaySettings, SubnetRouter
from ..network.packet import TCP, UDP
from .conntrack import LinuxNat, LinuxSettings
from .firewall import Firewall, FirewallSettings, PublicFirewall
from .portmap.igd import KNOBS as IGD_KNOBS
from .portmap.igd import IgdSettings, add_igd
from .rfc import RfcNat, RfcSettings
from .sessions import BEHAVIOURS, Timers

SHARED_SPACE: Final = "100.64.0.0/10"
"""Address space for carrier-grade NATs, neither public nor private (RFC 6598)."""
CGN_TIMERS: Final = Timers(udp_new=35.0, udp_stream=65.0)
"""UDP timeouts, which are mostly between 35 and 65 s in carrier-grade NATs (Richter et al., IMC
2016).
"""
BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class CgnSettings(RfcSettings):
    """Settings of a carrier-grade NAT, which gives each subscriber a block of ports."""

    inside: str = SHARED_SPACE
    filtering: str = "ei"
    ports: str = "block"
    block_size: int = BLOCK
    timers: Timers | None = CGN_TIMERS


class Cgn(RfcNat):
    """Carrier-grade NAT with endpoint-independent mapping (RFC 6888, REQ-1, with RFC 4787).

    Each subscriber has as many mappings as its block has ports, unless `per_host` is set.
    """

    def __init__(self, place: GatewayPlace, settings: CgnSettings) -> None:
        if settings.per_host is None:
            settings = replace(settings, per_host=settings.block_size)
        super().__init__(place, settings)


Settings = TypeVar("Settings", bound=GatewaySettings)
Knobs = Mapping[str, object]
"""Settings of a gateway by name, as scenarios and populations write them. `build` checks them."""

CAMPUS: Final = frozenset({(TCP, 80), (TCP, 443), (TCP, 53), (UDP, 53)})
"""Packets that a network which blocks UDP lets out: the web, and DNS queries."""


@dataclass(frozen=True, slots=True)
class GatewayKind(Generic[Settings]):
    """Kind of gateway: its class and its default settings."""

    make: Callable[[GatewayPlace, Settings], SubnetRouter]
    settings: Settings


def _linux(**knobs: Any) -> GatewayKind[LinuxSettings]:
    return GatewayKind(LinuxNat, LinuxSettings(**knobs))


def _rfc(mapping: str, filtering: str) -> GatewayKind[RfcSettings]:
    """Return a kind of NAT with this mapping and filtering. It preserves ports only if its mapping
    is endpoint-independent.
    """
    ports = "preserve" if mapping == "ei" else "random"
    return GatewayKind(RfcNat, RfcSettings(mapping=mapping, filtering=filtering, ports=ports))


KINDS: Final[Mapping[str, GatewayKind[Any]]] = MappingProxyType(
    {
        "router": GatewayKind(SubnetRouter, GatewaySettings()),
        "public-firewall": GatewayKind(PublicFirewall, FirewallSettings()),
        "linux-drop": _linux(),
        "linux-accept": _linux(input="accept"),
        "linux-reject": _linux(input="reject"),
        "linux-random": _linux(source="random"),
        "linux-fully-random": _linux(source="fully-random"),
        "linux-persistent": _linux(source="persistent"),
        "full-cone": _linux(overlay="full-cone"),
        "address-restricted": _linux(overlay="address-restricted"),
        "port-restricted": _linux(overlay="port-restricted"),
        "full-cone-hairpin": _linux(overlay="full-cone", hairpin="external"),
        **{f"{m}m-{f}f": _rfc(m, f) for m in BEHAVIOURS for f in BEHAVIOURS},
        "cgn": GatewayKind(Cgn, CgnSettings()),
        "firewall6": _linux(),
        "udp-blocked": _linux(allow=CAMPUS),
        "no-network": _linux(allow=frozenset(), blocked="reject"),
    }
)
"""All kinds by name. `probes/catalogue.py` lists those that a real kernel can reproduce, with the
rules for this.
"""

DUAL: Final = frozenset({"firewall6"})
"""Kinds whose inside has IPv6, behind a firewall, by default. All others need `ipv6`."""

_SIX_KNOBS: Final = {"filtering6": "filtering", "unsolicited6": "unsolicited"}
_TIMERS: Final = tuple(Timers.__slots__)


def build(kind: str, place: GatewayPlace, knobs: Knobs) -> SubnetRouter:
    """Create a gateway of this kind. Raises ValueError if the kind or a knob is unknown."""
    found = KINDS.get(kind)
    if found is None:
        raise ValueError(f"there is no gateway of kind `{kind}` ({nearest(kind, KINDS)})")
    known = knobs_of(kind)
    for knob in knobs:
        if knob not in known:
            hint = nearest(knob, known)
            raise ValueError(f"a gateway of kind `{kind}` has no `{knob}` ({hint})")
    own: dict[str, Any] = dict(knobs)
    igd = {name: own.pop(knob) for knob, name in IGD_KNOBS.items() if knob in own}
    six = {name: own.pop(knob) for knob, name in _SIX_KNOBS.items() if knob in own}
    if "timers" in known:
        single = {timer: float(own.pop(timer)) for timer in _TIMERS if timer in own}
        if single:
            base = own.get("timers") or found.settings.timers or Timers()
            own["timers"] = replace(base, **single)
    gateway = found.make(place, replace(found.settings, **own))
    if gateway.prefix is not None and kind not in ("router", "cgn"):
        gateway.six = Firewall(gateway, **{"unsolicited": "admin"} | six)
    elif six:
        raise ValueError(f"`{next(iter(six))}6` needs `ipv6=True`")
    if igd and igd.get("protocols", True):
        if gateway.routed:
            raise ValueError(f"a gateway of kind `{kind}` translates nothing, so has no `igd`")
        add_igd(gateway, IgdSettings(**igd))
    return gateway


def knobs_of(kind: str) -> list[str]:
    """Return the names of the knobs of a kind, without its link and position."""
    own = {item.name for item in fields(KINDS[kind].settings)}
    timers = _TIMERS if "timers" in own else ()
    return sorted({*IGD_KNOBS, *_SIX_KNOBS, *own, *timers})
