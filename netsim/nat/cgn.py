"""A carrier-grade NAT (RFC 6888): a provider's subscribers behind few addresses.

Put homes behind it with `world.gateway("home", "linux-drop", behind=cgn)`.
"""

from typing import Any, Final

from .rfc import RfcNat
from .sessions import Timers

SHARED_SPACE: Final = "100.64.0.0/10"
"""RFC 6598: shared space, neither public nor private."""
TIMERS: Final = Timers(udp_new=35.0, udp_stream=65.0)
"""UDP timeouts of carriers are mostly between 35 and 65 s (Richter et al., IMC 2016)."""
BLOCK: Final = 512


class Cgn(RfcNat):
    """NAT with endpoint-independent mapping (RFC 6888 REQ-1 with RFC 4787).

    Each subscriber has a block of ports, and as many mappings as the block has ports.
    """

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
