"""Parts of a node that learn at which addresses others see it."""

from dataclasses import dataclass

from ..relay.client import RelayClient
from ..udp.port import UdpPort
from .portmap.mapper import PortMapper
from .reach.service import Reach


@dataclass(frozen=True, slots=True)
class AddressSources:
    """Sources of one node's addresses, beside its interfaces. `udp` is None without a UDP port."""

    udp: UdpPort | None
    reach: Reach
    relays: RelayClient
    mapper: PortMapper
