"""libp2p on the wire: identify, ping, calls and circuits, for go, rust and py peers."""

from .limits import Libp2pLimits
from .responder import Libp2pResponder

__all__ = ["Libp2pLimits", "Libp2pResponder"]
