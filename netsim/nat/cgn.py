"""A carrier-grade NAT (RFC 6888): one provider's subscribers behind few addresses.

Homes are put behind it: `world.gateway("home", "linux-drop", behind=cgn)`.
"""

from typing import Any, Final

from .rfc import RfcNat
from .sessions import Timers

SHARED_SPACE: Final = "100.64.0.0/10"
"""RFC 6598: neither public nor anybody's private range."""
TIMERS: Final = Timers(udp_new=35.0, udp_stream=65.0)
"""UDP timeouts of carriers lie mostly between 35 and 65 s (Richter et al., IMC 2016)."""
BLOCK: Final = 512


class Cgn(RfcNat):
    """Endpoint-independent mapping (RFC 6888 REQ-1 with RFC 4787), a block of ports for each
    subscriber, who may hold as many mappings as the block has ports."""

    def __init__(self, *where: Any, **knobs: Any) -> None:
        block = knobs.get("block_size", BLOCK)
        defaults = {
            "inside": SHARED_SPACE,
            "mapping": "ei",
            "filtering": "ei",
            "ports": "block",
            "block_size": block,
            "per_host": block,
            "timers": TIMERS,
        }
        super().__init__(*where, **defaults | knobs)
