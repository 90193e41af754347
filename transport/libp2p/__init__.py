"""libp2p on the wire for go, rust and py peers: identify, ping, calls and circuits."""

from .limits import Libp2pLimits
from .responder import Libp2pResponder

__all__ = ["Libp2pLimits", "Libp2pResponder"]
