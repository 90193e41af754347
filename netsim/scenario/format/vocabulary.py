"""Names that a scenario can use: kinds of gateway, link profiles, populations and models."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from ...clock import Events
from ...nat.kinds import KINDS, build, knobs_of
from ...nat.sessions import BEHAVIOURS
from ...network.gateway import GatewayPlace
from ...network.link import LinkSpec
from ...network.network import Network, Subnet
from ...population import churn as churn_models
from ...population import latency as matrices
from ...population import mix
from ...population import profiles as link_profiles
from ...population.data import unknown
from ...streams import RandomStreams
from . import units
from .source import Reader


def one_of(*words: str) -> Reader[str]:
    """Return a reader that accepts only the given words."""

    def read(value: object) -> str:
        """Return the word, or raise ValueError."""
        if value not in words:
            raise ValueError(f"`{value}` is not one of {', '.join(words)}")
        return str(value)

    return read


def switch_or_names(value: object) -> bool | tuple[str, ...]:
    """Read true or false, or a name or a list of names."""
    return value if isinstance(value, bool) else units.names(value)


_BEHAVIOUR: Final = one_of(*BEHAVIOURS)
_TIMERS: Final = (
    "udp_new", "udp_stream", "stream_after", "tcp_syn", "tcp_established", "tcp_transitory",
    "tcp_close",
)  # fmt: skip
KNOBS: Final[dict[str, Reader[object]]] = {
    "mapping": _BEHAVIOUR,
    "filtering": _BEHAVIOUR,
    "refresh_in": units.switch,
    "hairpin": units.switch,  # for Linux gateways; `nat_knobs` replaces it for other kinds
    "ports": one_of("preserve", "random", "sequential", "block"),
    "block_size": units.positive,
    "per_host": units.positive,
    "max_mappings": units.positive,
    "max_sessions": units.positive,
    "tcp_unsolicited": one_of("drop", "rst", "icmp"),
    "input": one_of("drop", "reject", "accept"),
    "source": one_of("masquerade", "random", "fully-random", "persistent"),
    "overlay": one_of("full-cone", "address-restricted", "port-restricted"),
    "overlay_s": units.period,
    "blocked": one_of("drop", "reject"),
    "unsolicited": one_of("drop", "admin"),
    "inside": units.text,
    "igd": switch_or_names,
    "igd_lease": units.duration,
    "igd_permanent": units.switch,
    "igd_works": units.switch,
    "igd_external": units.text,
    "igd_version": units.positive,
    "ipv6": units.switch,
    "filtering6": _BEHAVIOUR,
    "unsolicited6": one_of("drop", "admin"),
    **dict.fromkeys(_TIMERS, units.duration),
}  # fmt: skip
"""Keys of a `[[nat]]` that depend on its kind, with their readers.

All are settings of the gateway, except `ipv6`, which `World.gateway` processes.
"""
NOT_OFFERED: Final = {"addresses", "allow", "prefix", "timers", "pooling"}
"""Settings of gateways that are not keys of a `[[nat]]`: a file cannot express their values."""

# For each key that needs another one: whether the gateway's settings have the other one.
_NEEDS: Final[dict[str, Callable[[Mapping[str, object]], bool]]] = {
    "overlay_s": lambda has: has.get("overlay") is not None,
    **dict.fromkeys(("filtering6", "unsolicited6"), lambda has: bool(has.get("ipv6"))),
    **dict.fromkeys(
        ("igd_lease", "igd_permanent", "igd_works", "igd_external", "igd_version"),
        lambda has: bool(has.get("igd")),
    ),
}


def kinds() -> Collection[str]:
    """Return the kinds of gateway."""
    return KINDS.keys()


def nat_knobs(kind: str) -> Mapping[str, Reader[object]]:
    """Return the keys that a `[[nat]]` of this kind can have, with their readers."""
    known = {*knobs_of(kind), "ipv6"}
    found = {name: read for name, read in KNOBS.items() if name in known}
    if "hairpin" in known and "input" not in known:
        found["hairpin"] = one_of("external", "internal", "off")
    return found


def check_nat(kind: str, values: Mapping[str, object]) -> None:
    """Check that the settings of a gateway fit together, by building such a gateway.

    `kind` is the kind of gateway, and `values` has the keys of the file. Raises ValueError if a
    setting has no effect or contradicts another one.
    """
    for name, has in _NEEDS.items():
        if name in values and not has({**asdict(KINDS[kind].settings), **values}):
            what = {"o": "overlay", "i": "igd"}.get(name[0], "ipv6")
            raise ValueError(f"`{name}` has no effect without `{what}`")
    if "block_size" in values and kind != "cgn" and values.get("ports") != "block":
        raise ValueError('`block_size` has no effect without `ports = "block"`')
    network = Network(Events(), RandomStreams(0), None)
    plain = {name: value for name, value in values.items() if name != "ipv6"}
    if values.get("ipv6"):
        plain["prefix"] = "2600:0:1::/64"
    internet = Subnet(network, "internet", 0.0)
    build(kind, GatewayPlace(network, "checked", internet, "11.0.0.1"), plain)


def profiles() -> Collection[str]:
    """Return the names of link profiles, also with overlays (`dsl+bad-wifi`)."""
    single = link_profiles.names()
    return [*single, *(f"{one}+{over}" for one in single for over in link_profiles.overlays())]


def profile(name: str) -> LinkSpec:
    """Return a link profile by its name. An empty name means a perfect link."""
    return link_profiles.link(name) if name else LinkSpec()


def populations() -> Sequence[str]:
    """Return the names of the populations."""
    return mix.names()


def latencies() -> Collection[str]:
    """Return the words that `latency` accepts: the built-in matrices, and `FORMAT:FILE` for each
    format of file.
    """
    return [*matrices.names(), *(f"{form}:FILE" for form in matrices.FORMATS)]


def latency(name: str) -> matrices.LatencyMatrix:
    """Return a built-in latency matrix by its name. Raises BadScenario if there is none."""
    if name not in matrices.names():
        raise unknown("latency matrix", name, latencies())
    return matrices.matrix(name)


def latency_of(form: str, text: str, unit: str) -> matrices.LatencyMatrix:
    """Parse the text of a latency file, and return its matrix.

    `form` is the format, and `unit` the unit of the numbers, for formats that need one. Raises
    BadScenario, with the line in that file, if the text is malformed.
    """
    units = (unit,) if form in matrices.WITH_UNIT else ()
    return matrices.FORMATS[form](text.splitlines(), *units)


def churns() -> Collection[str]:
    """Return the names of the models of churn."""
    return churn_models.names()
