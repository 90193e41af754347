"""Objects of a node that all its fetches share, such as its library and its guard."""

from dataclasses import dataclass

from ...transport.guard import Guard
from ...transport.host.seam import Host
from ..content.library import Library
from .switchboard import Swarm, Switchboard


@dataclass(frozen=True, slots=True)
class ExchangeParts:
    """The objects of one node that its fetches use to reach peers and to store content."""

    host: Host
    switchboard: Switchboard
    library: Library
    swarm: Swarm
    guard: Guard
