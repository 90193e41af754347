"""The search for the size of packets."""

from aioquic.quic.packet_builder import QuicDeliveryState

from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.udp import defaults
from shoal.transport.udp.mtu import PacketSize
from tests.transport.pipes import read, write
from tests.transport.udp.nodes import joined, pair, running

ENOUGH = defaults.SIZE_PROBE_BYTES


def search(most: int) -> PacketSize:
    size = PacketSize()
    while size.follow("path", ENOUGH):
        probe = size.probe
        size.sent()
        assert not size.follow("path", ENOUGH)  # one at a time
        passed = probe <= most
        size.on_delivery(QuicDeliveryState.ACKED if passed else QuicDeliveryState.LOST, probe)
    return size


def test_the_largest_that_passes() -> None:
    found = {most: search(most).bytes for most in (1500, 1452, 1400, 1372, 1300, 1252, 1200)}
    assert found == {
        1500: 1452, 1452: 1452, 1400: 1372, 1372: 1372, 1300: 1252, 1252: 1252, 1200: 1200
    }  # fmt: skip


def test_idle_connections_do_not_search() -> None:
    assert not PacketSize().follow("path", ENOUGH - 1)


def test_another_path_begins_anew() -> None:
    size = search(1500)
    assert size.follow("another", ENOUGH)
    assert size.bytes == 1200
    size.on_delivery(QuicDeliveryState.ACKED, 1452)  # of the former path
    assert size.bytes == 1200


def test_a_black_hole_ends_the_search() -> None:
    size = search(1500)
    size.shrink()
    assert size.bytes == 1200
    assert not size.follow("path", ENOUGH)


async def test_a_path_that_gets_narrower(world: World) -> None:
    """Large packets are suddenly dropped; the connection notices and continues with small ones."""
    hosts = pair(world)
    async with running(*hosts) as (a, b):
        near, far = await joined(a, b)
        data = bytes(400_000)
        a.host.start_soon(a.nursery, write, near, data)
        assert len(await read(far, len(data))) == len(data)
        assert near.connection._max_datagram_size == 1452
        narrow = PipeSpec(mtu=1300)
        hosts[0].attachments[0].change(LinkSpec(narrow, narrow))
        a.host.start_soon(a.nursery, write, near, data)
        assert len(await read(far, len(data))) == len(data)
        assert near.connection._max_datagram_size == 1200
