"""libp2p's protocols for peers of go-libp2p, rust-libp2p and py-libp2p: identify, ping, calls,
circuits.

Public: `answer_libp2p`, `CircuitClient`, `Libp2pResponder`, `Libp2pLimits`. Imports `dial/`,
`handshake/`, `host/`, `lane/`, `link/` and `relay/`.
"""

from .limits import Libp2pLimits
from .responder import Libp2pResponder

__all__ = ["Libp2pLimits", "Libp2pResponder"]
