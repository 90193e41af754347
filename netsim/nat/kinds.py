"""The kinds of gateway by name, and the knobs of each."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from ..errors import nearest
from ..network.gateway import Gateway
from ..network.link import LinkSpec
from ..network.network import Network, Segment
from ..network.packet import TCP, UDP
from .cgn import TIMERS as CGN_TIMERS
from .cgn import Cgn
from .conntrack import LinuxNat
from .firewall import Firewall, PublicFirewall
from .portmap.igd import KNOBS as IGD_KNOBS
from .portmap.igd import add_igd
from .rfc import RfcNat
from .sessions import BEHAVIOURS, Timers

Make = Callable[..., Gateway]

CAMPUS: Final = frozenset({(TCP, 80), (TCP, 443), (TCP, 53), (UDP, 53)})
"""Ports that a network which blocks UDP lets out: the web, and queries to DNS."""

KINDS: Final[Mapping[str, Make]] = MappingProxyType(
    {
        "router": Gateway,
        "public-firewall": PublicFirewall,
        "linux-drop": LinuxNat,
        "linux-accept": partial(LinuxNat, input="accept"),
        "linux-reject": partial(LinuxNat, input="reject"),
        "linux-random": partial(LinuxNat, source="random"),
        "linux-fully-random": partial(LinuxNat, source="fully-random"),
        "linux-persistent": partial(LinuxNat, source="persistent"),
        "full-cone": partial(LinuxNat, overlay="full-cone"),
        "address-restricted": partial(LinuxNat, overlay="address-restricted"),
        "port-restricted": partial(LinuxNat, overlay="port-restricted"),
        "full-cone-hairpin": partial(LinuxNat, overlay="full-cone", hairpin="external"),
        # Named by mapping and filtering. Address-dependent mappings never preserve a port.
        **{
            f"{m}m-{f}f": partial(
                RfcNat, mapping=m, filtering=f, ports="preserve" if m == "ei" else "random"
            )
            for m in BEHAVIOURS
            for f in BEHAVIOURS
        },
        "cgn": Cgn,
        "firewall6": LinuxNat,
        "udp-blocked": partial(LinuxNat, allow=CAMPUS),
        "no-network": partial(LinuxNat, allow=frozenset(), blocked="reject"),
    }
)
"""Every kind by name; `probes.py` says which have a twin in the kernel, and by which rules."""

DUAL: Final = frozenset({"firewall6"})
"""Kinds whose inside has IPv6, behind a firewall, by default; all others need `ipv6`."""

_SIX_KNOBS: Final = ("filtering6", "unsolicited6")
_TIMERS: Final = tuple(Timers.__slots__)


def build(
    kind: str,
    network: Network,
    name: str,
    outside: Segment,
    address: str,
    *,
    link: LinkSpec | None = None,
    site: int = 0,
    **knobs: Any,
) -> Gateway:
    """Build a gateway of a kind. Raises ValueError for an unknown kind or knob."""
    make = KINDS.get(kind)
    if make is None:
        raise ValueError(f"there is no gateway of kind `{kind}` ({nearest(kind, KINDS)})")
    known = knobs_of(kind)
    for knob in knobs:
        if knob not in known:
            hint = nearest(knob, known)
            raise ValueError(f"a gateway of kind `{kind}` has no `{knob}` ({hint})")
    igd = {knob: knobs.pop(knob) for knob in IGD_KNOBS if knob in knobs}
    six = {knob[:-1]: knobs.pop(knob) for knob in _SIX_KNOBS if knob in knobs}
    if "timers" in known:
        _gather_timers(kind, knobs)
    gateway = make(network, name, outside, address, link=link, site=site, **knobs)
    if gateway.prefix is not None and kind not in ("router", "cgn"):
        gateway.six = Firewall(gateway, **{"unsolicited": "admin"} | six)
    elif six:
        raise ValueError(f"`{next(iter(six))}6` needs `ipv6=True`")
    if igd and igd.get("igd", True):
        if gateway.routed:
            raise ValueError(f"a gateway of kind `{kind}` translates nothing, so has no `igd`")
        add_igd(gateway, **igd)
    return gateway


def knobs_of(kind: str) -> list[str]:
    """Return the knobs of a kind, besides its link and its position."""
    make = KINDS[kind]
    made = make.func if isinstance(make, partial) else make
    assert inspect.isclass(made)
    found = [*IGD_KNOBS, *_SIX_KNOBS]
    for cls in made.__mro__[:-1]:
        parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
        found += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if "timers" in found:
        found += _TIMERS
    return sorted(set(found) - {"link", "site"})


def _gather_timers(kind: str, knobs: dict[str, Any]) -> None:
    """Merge single timers (`udp_new=35.0`) into the kind's others."""
    single = {timer: float(knobs.pop(timer)) for timer in _TIMERS if timer in knobs}
    if single:
        base = knobs.get("timers") or (CGN_TIMERS if kind == "cgn" else Timers())
        knobs["timers"] = replace(base, **single)
