"""Carrier-grade NAT (RFC 6888): the subscribers of a provider share few addresses.

To put a home behind it, call `world.gateway("home", "linux-drop", behind=cgn)`.
"""

from dataclasses import dataclass, replace
from typing import Final

from ..network.gateway import GatewayPlace
from .rfc import RfcNat, RfcSettings
from .sessions import Timers

SHARED_SPACE: Final = "100.64.0.0/10"
"""Address space for carrier-grade NATs, neither public nor private (RFC 6598)."""
TIMERS: Final = Timers(udp_new=35.0, udp_stream=65.0)
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
    timers: Timers | None = TIMERS


class Cgn(RfcNat):
    """Carrier-grade NAT with endpoint-independent mapping (RFC 6888, REQ-1, with RFC 4787).

    Each subscriber has as many mappings as its block has ports, unless `per_host` is set.
    """

    def __init__(self, place: GatewayPlace, settings: CgnSettings) -> None:
        if settings.per_host is None:
            settings = replace(settings, per_host=settings.block_size)
        super().__init__(place, settings)
