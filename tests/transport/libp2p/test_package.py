"""The libp2p package at run time: its results, when it is imported, and the memory it takes."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import trio

from shoal.transport.address import Address
from shoal.transport.errors import DialFailed
from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p.client import CircuitClient
from shoal.transport.libp2p.package import (
    decode,
    decode_peer,
    encode_address,
    encode_key,
    encode_peer,
    package,
    proven_peer,
)
from tests.transport.libp2p.pipes import OURS, THEIRS, InlineHost, T, Ts, raw_peer, responder

MIB = 1 << 20


ADDRESSES = [
    "/ip4/192.0.2.7/tcp/4001",
    f"/ip4/192.0.2.7/tcp/4001/p2p/{OURS.peer}",
    f"/ip6/2001:db8::1/tcp/443/p2p/{OURS.peer}",
    f"/ip4/192.0.2.7/udp/4001/quic-v1/p2p/{OURS.peer}",
    f"/dns4/relay.example/tcp/443/p2p/{OURS.peer}",
    f"/ip4/192.0.2.7/tcp/4001/p2p/{OURS.peer}/p2p-circuit/p2p/{THEIRS.peer}",
]


@pytest.mark.parametrize("text", ADDRESSES)
def test_addresses_are_those_of_the_library(text: str) -> None:
    from multiaddr import Multiaddr

    assert str(Address.parse(text)) == text
    assert encode_address(Address.parse(text)) == Multiaddr(text).to_bytes()


def test_peer_ids_survive_and_are_bounded() -> None:
    assert decode_peer(encode_peer(OURS.peer)) == OURS.peer
    for data in (b"", b"x" * 65):
        with pytest.raises(Fault):
            decode_peer(data)


def test_a_signature_proves_the_peer_id_of_our_own_identity() -> None:
    key = encode_key(OURS.public_key)
    signature = OURS.sign_for_libp2p(b"data")
    assert proven_peer(key, b"data", signature) == OURS.peer
    for wrong in (b"", b"s", signature[:-1], signature + b"s", bytes(64)):
        with pytest.raises(Fault, match="bad-identity"):
            proven_peer(key, b"data", wrong)
    for bad in (b"", key[:-1], key + b"k", b"\x08\x00" + key[2:]):
        with pytest.raises(Fault, match="bad-identity"):
            proven_peer(bad, b"data", signature)


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # a key without a value
        b"\x12\xff\xff\xff\xff\x7f",  # 34 GB to come
        b"\x0b",  # a group
        b"\x00\x01",  # field 0
        b"\x09\x01",  # 8 bytes promised
    ],
)
def test_what_is_no_message_is_a_fault(data: bytes) -> None:
    with pytest.raises(Fault, match="bad-message"):
        decode(package().HopMessage, data)


def test_only_some_modules_of_the_package_are_imported() -> None:
    """A whole `import libp2p` takes 46 MB, more than a peer may cost. Afterwards it still works."""
    code = (
        f"ADDRESSES = {ADDRESSES}\n"
        + """
import sys
from concurrent.futures import ThreadPoolExecutor
import shoal.transport.dial.dialer, shoal.transport.libp2p.client
from shoal.transport.address import Address
from shoal.transport.libp2p.package import encode_address, package

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

assert not {"libp2p", "multiaddr", "nacl"} & set(sys.modules), "imported before the first peer"
before = resident()
with ThreadPoolExecutor(4) as threads:
    ours, *others = threads.map(lambda _: package(), range(4))
print(resident() - before)
assert others == [ours] * 3, "imported by each thread"
assert not {"libp2p", "grpc", "miniupnpc", "zeroconf"} & set(sys.modules)
loaded = set(sys.modules)
for text in ADDRESSES:
    encode_address(Address.parse(text))
assert set(sys.modules) == loaded, "an address imports more, on the event loop"
from libp2p import new_host
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage
assert HopMessage.FromString(ours.HopMessage(type=1).SerializeToString()).type == 1
"""
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert int(found.stdout) <= 16 * MIB


class WatchedHost(InlineHost):
    """Notes the work that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.offloaded: list[object] = []

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        self.offloaded.append(work)
        return await super().offload(work, *args)


@pytest.mark.trio
async def test_the_package_is_imported_off_the_loop_when_a_peer_comes() -> None:
    host = WatchedHost()
    ours = responder(host=host)
    assert host.offloaded == []
    async with raw_peer(ours):
        assert host.offloaded == [package]


@pytest.mark.trio
async def test_the_package_is_imported_off_the_loop_when_a_relay_is_dialled() -> None:
    host = WatchedHost()
    client = CircuitClient(host, OURS)
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        with pytest.raises(DialFailed):
            await client.reserve(Address("127.0.0.1", 1, THEIRS.peer))
        nursery.cancel_scope.cancel()
    assert host.offloaded == [package]
