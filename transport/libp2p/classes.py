"""Classes of the libp2p package. Importing this module imports them, so only `package` does it.

`import libp2p` imports a complete host, which takes 0.4 s of CPU and 48 MB. The modules that are
needed take 0.08 s and 10 MB, if the `__init__` modules of the packages that contain them are not
executed.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from typing import Final

_ROOT: Final = "libp2p"
_HEAVY: Final = (
    _ROOT,
    "libp2p.identity",
    "libp2p.identity.identify",
    "libp2p.relay",
    "libp2p.relay.circuit_v2",
    "libp2p.security",
)
"""Packages whose `__init__` would import hosts, transports and stores."""


class Package:
    """The classes of the libp2p package that are used at run time."""

    def __init__(self) -> None:
        with _heavy_packages_empty():
            from libp2p.crypto.ed25519 import Ed25519PublicKey
            from libp2p.identity.identify.pb.identify_pb2 import Identify
            from libp2p.peer.id import ID
            from libp2p.peer.pb.envelope_pb2 import Envelope
            from libp2p.relay.circuit_v2.pb import circuit_pb2
            from libp2p.security.noise.pb.noise_pb2 import NoiseHandshakePayload
            from multiaddr import Multiaddr
        self.Ed25519PublicKey = Ed25519PublicKey
        self.Envelope = Envelope
        self.HopMessage = circuit_pb2.HopMessage
        self.ID = ID
        self.Identify = Identify
        self.Limit = circuit_pb2.Limit
        self.Multiaddr = Multiaddr
        self.NoiseHandshakePayload = NoiseHandshakePayload
        self.Peer = circuit_pb2.PeerId
        self.Reservation = circuit_pb2.Reservation
        self.StopMessage = circuit_pb2.StopMessage
        self.Voucher = circuit_pb2.Voucher
        # The first address of each kind imports its codecs, which takes 30 ms in all.
        peer = ID.from_pubkey(Ed25519PublicKey.from_bytes(bytes(32)))
        for text in (f"/ip4/0.0.0.0/tcp/1/p2p/{peer}", "/ip6/::/udp/1", "/dns/a/tcp/1"):
            Multiaddr(text).to_bytes()


@contextmanager
def _heavy_packages_empty() -> Iterator[None]:
    """Import modules of the libp2p package in this context without executing the `__init__` of
    _HEAVY.

    At the end, the modules are removed from `sys.modules`, so that a later `import libp2p` imports
    the complete package.
    """
    if _ROOT in sys.modules:  # the complete package is imported already
        yield
        return
    try:
        for name in _HEAVY:
            spec = find_spec(name)
            assert spec is not None
            sys.modules[name] = module_from_spec(spec)
        yield
    finally:
        for name in list(sys.modules):
            if name.partition(".")[0] == _ROOT:
                del sys.modules[name]


PACKAGE: Final = Package()
