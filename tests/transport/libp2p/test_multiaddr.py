"""Binary multiaddrs, against the library that others use."""

import pytest

from shoal.transport.address import Address
from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p.multiaddr import decode_peer, encode_address, encode_peer
from tests.transport.libp2p.pipes import OURS, THEIRS


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/192.0.2.7/tcp/4001",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{OURS.peer}",
        f"/ip6/2001:db8::1/tcp/443/p2p/{OURS.peer}",
        f"/ip4/192.0.2.7/udp/4001/quic-v1/p2p/{OURS.peer}",
        f"/dns4/relay.example/tcp/443/p2p/{OURS.peer}",
        f"/ip4/192.0.2.7/tcp/4001/p2p/{OURS.peer}/p2p-circuit/p2p/{THEIRS.peer}",
    ],
)
def test_addresses_are_those_of_the_library(text: str) -> None:
    from multiaddr import Multiaddr

    assert str(Address.parse(text)) == text
    assert encode_address(Address.parse(text)) == Multiaddr(text).to_bytes()


def test_peer_ids_survive_and_are_bounded() -> None:
    assert decode_peer(encode_peer(OURS.peer)) == OURS.peer
    for data in (None, b"", b"x" * 65):
        with pytest.raises(Fault):
            decode_peer(data)
