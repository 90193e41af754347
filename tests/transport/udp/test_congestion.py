"""What congestion control makes of links: its share, the queue it keeps, and its manners."""

from collections.abc import Sequence

import pytest
import trio
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.tls import Epoch

from shoal.netsim.world import World
from shoal.transport.udp import defaults
from shoal.transport.udp.congestion import DelayControl, Phase
from tests.transport.udp.nodes import Flow, Node, flow, link, pair, running

SIZE = 1200


class Path:
    """A path of one rate and delay, without a queue's end: packets in, acknowledgements out."""

    def __init__(self, rate: float, rtt: float) -> None:
        self.control = DelayControl(max_datagram_size=SIZE)
        self.now = 0.0
        self.rate, self.rtt = rate, rtt
        self.lose = 0  # drop every n-th packet; 0 for none
        self._free = 0.0
        self._number = 0
        self._flight: list[tuple[float, QuicSentPacket]] = []

    def send(self) -> None:
        packet = QuicSentPacket(
            Epoch.ONE_RTT, True, True, False, self._number, QuicPacketType.ONE_RTT, self.now, SIZE
        )
        self._number += 1
        self.control.on_packet_sent(packet=packet)
        self._free = max(self._free, self.now) + SIZE / self.rate
        self._flight.append((self._free + self.rtt, packet))

    def run(self, seconds: float, *, most: int = 1 << 40) -> None:
        """Send as the window and the pace let, at most `most` bytes in flight."""
        control, until = self.control, self.now + seconds
        pace = self.now
        while self.now < until:
            room = min(control.congestion_window, most) - control.bytes_in_flight
            if room >= SIZE and pace <= self.now:
                self.send()
                pace = max(pace, self.now) + SIZE / (control.pacing_rate or 1e9)
                if control.bytes_in_flight + SIZE > most:
                    control.nothing_more()
                continue
            turn = pace if room >= SIZE else until
            if self._flight and self._flight[0][0] <= turn:
                self.now, packet = self._flight.pop(0)
                if self.lose and packet.packet_number % self.lose == 0:
                    control.on_packets_lost(now=self.now, packets=[packet])
                    continue
                control.on_packet_acked(now=self.now, packet=packet)
                sent = packet.sent_time or 0.0
                control.on_rtt_measurement(now=self.now, rtt=self.now - sent)
            else:
                self.now = turn

    def trickle(self, messages: int, every: float) -> None:
        """Send one packet every `every` seconds. Each arrives before the next one is sent."""
        for _ in range(messages):
            self.send()
            self.control.nothing_more()
            self.run(every, most=0)
            self.control.nothing_more()

    @property
    def queue(self) -> float:
        """Seconds that a packet waits now."""
        return max(0.0, self._free - self.now)


def test_it_finds_the_path() -> None:
    path = Path(1e6, 0.04)
    path.run(3)
    control = path.control
    assert control.rate == pytest.approx(1e6, rel=0.05)
    assert control.base_rtt == pytest.approx(0.0412, rel=0.02)
    assert control.phase is not Phase.STARTUP
    assert control.bytes_in_flight < 1e6 * (0.0412 + defaults.QUEUE_S)
    assert path.queue < defaults.QUEUE_S


def test_a_start_is_fast_and_ends_before_the_queue_is_long() -> None:
    path = Path(2.5e6, 0.1)
    path.run(1.5)
    assert path.control.rate > 0.9 * 2.5e6
    path.run(0.3)
    assert path.queue < 0.05


def test_more_room_is_found() -> None:
    path = Path(1e6, 0.04)
    path.run(3)
    path.rate = 4e6
    path.run(6)
    assert path.control.rate > 3.5e6


def test_less_room_is_noticed() -> None:
    path = Path(4e6, 0.04)
    path.run(3)
    path.rate = 1e6
    path.run(6)
    assert path.control.rate < 1.2e6
    assert path.queue < 0.06


def test_a_longer_path_is_learnt() -> None:
    path = Path(1e6, 0.04)
    path.run(3)
    path.rtt = 0.12
    path.run(25)
    assert path.control.base_rtt == pytest.approx(0.1212, rel=0.1)
    assert path.control.rate > 0.85e6


def test_sending_little_keeps_the_learned_rate() -> None:
    path = Path(1e6, 0.04)
    path.run(3)
    path.run(3, most=3 * SIZE)
    assert path.control.rate > 0.9e6


def test_the_rate_of_the_path_is_unknown_while_too_little_is_sent_to_measure_it() -> None:
    path = Path(1e6, 0.04)
    path.run(3, most=3 * SIZE)
    assert path.control.path_rate == 0
    path.run(3)
    assert 0.9e6 < path.control.path_rate < 1.1e6


def test_single_messages_measure_no_rate() -> None:
    """The stages of a chain send such messages. A later transfer is as fast as without them."""
    path = Path(1e6, 0.04)
    path.trickle(100, 0.1)
    assert path.control.path_rate == 0
    assert path.control.phase is Phase.STARTUP
    path.run(0.5)
    assert path.control.rate > 0.9e6


def test_single_messages_keep_the_learned_rate() -> None:
    path = Path(1e6, 0.04)
    path.run(3)
    path.trickle(100, 0.1)
    assert path.control.path_rate > 0.9e6


def test_a_little_loss_changes_nothing() -> None:
    path = Path(1e6, 0.04)
    path.lose = 50
    path.run(5)
    assert path.control.rate > 0.9e6
    assert 0.01 < path.control.loss < 0.04


def test_much_loss_lowers_the_rate() -> None:
    path = Path(1e6, 0.04)
    path.run(3)
    path.lose = 8
    path.run(5)
    assert path.control.rate < 0.7e6


def test_an_outage_begins_anew() -> None:
    path = Path(1e6, 0.04)
    path.run(3)
    path.control.on_persistent_congestion()
    assert path.control.phase is Phase.STARTUP
    assert path.control.congestion_window == defaults.MINIMUM_PACKETS * SIZE
    path.run(3)
    assert path.control.rate > 0.9e6


def test_nothing_is_kept_of_packets_that_are_gone() -> None:
    path = Path(1e6, 0.04)
    path.lose = 20
    path.run(2)
    left = [packet for _, packet in path._flight]
    path.control.on_packets_expired(packets=left)
    assert path.control.bytes_in_flight == 0
    assert not path.control.marks


def test_the_window_has_an_end() -> None:
    path = Path(1e9, 0.1)
    path.run(1)
    assert path.control.congestion_window <= defaults.WINDOW_LIMIT_BYTES


# On links of the simulator.


async def watch(flows: Sequence[Flow], seconds: float) -> list[float]:
    """Megabits per second of each meanwhile; their round trips are in `rtts`."""
    before = [each.received for each in flows]
    began = trio.current_time()
    while trio.current_time() < began + seconds:
        await trio.sleep(0.02)
        for each in flows:
            each.rtts.append(each.near.rtt)
    return [(each.received - had) * 8e-6 / seconds for each, had in zip(flows, before, strict=True)]


@pytest.mark.ci
async def test_a_lossy_link_is_used(world: World) -> None:
    """Reno and CUBIC would take a tenth: 0.5 % loss is one packet in two round trips."""
    async with running(*pair(world, link(100, 0.04, loss=0.005))) as (a, b):
        moved = await flow(a, b)
        await watch([moved], 0.5)
        (rate,) = await watch([moved], 1)
        assert rate > 80


async def test_a_deep_buffer_stays_empty(world: World) -> None:
    async with running(*pair(world, link(20, 0.04, queue=0.25))) as (a, b):
        moved = await flow(a, b)
        await watch([moved], 1)
        moved.rtts.clear()
        (rate,) = await watch([moved], 4)
        assert rate > 18
        assert max(moved.rtts) < 0.04 + 0.03


@pytest.mark.long
async def test_a_long_path_is_used(world: World) -> None:
    async with running(*pair(world, link(100, 0.2, loss=0.005))) as (a, b):
        moved = await flow(a, b)
        await watch([moved], 4)
        (rate,) = await watch([moved], 6)
        assert rate > 80


@pytest.mark.long
async def test_two_flows_share(world: World) -> None:
    async with running(*pair(world, link(20, 0.04))) as (a, b):
        flows = [await flow(a, b)]
        await watch(flows, 3)
        flows.append(await flow(a, b))
        await watch(flows, 3)
        for each in flows:
            each.rtts.clear()
        rates = await watch(flows, 20)
        assert sum(rates) > 17
        assert max(rates) < 2 * min(rates)
        assert max(max(each.rtts) for each in flows) < 0.04 + 0.05


@pytest.mark.long
async def test_four_flows_share(world: World) -> None:
    async with running(*pair(world, link(20, 0.04))) as (a, b):
        flows: list[Flow] = []
        for _ in range(4):
            flows.append(await flow(a, b))
            await watch(flows, 2)
        await watch(flows, 20)
        for each in flows:
            each.rtts.clear()
        rates = await watch(flows, 30)
        assert sum(rates) > 17
        assert max(rates) < 2.5 * min(rates)
        assert max(max(each.rtts) for each in flows) < 0.04 + 0.08


@pytest.mark.long
@pytest.mark.parametrize("queue", [0.06, 0.25, 1.0])
async def test_beside_cubic_it_keeps_a_share(world: World, queue: float) -> None:
    async with running(*pair(world, link(20, 0.04, queue=queue))) as (a, b):
        taken = [0]
        b.host.start_soon(b.nursery, _serve_tcp, b, taken)
        await trio.sleep(0.1)
        a.host.start_soon(a.nursery, _push_tcp, b)
        await trio.sleep(2)
        moved = await flow(a, b)
        before = taken[0]
        (ours,) = await watch([moved], 60)
        theirs = (taken[0] - before) * 8e-6 / 60
        assert ours > 2
        assert theirs > 4


async def _serve_tcp(node: Node, taken: list[int]) -> None:
    async def count(stream: trio.SocketStream) -> None:
        while data := await stream.receive_some(1 << 20):
            taken[0] += len(data)

    listeners = await trio.open_tcp_listeners(5000, host=node.place[0])
    await trio.serve_listeners(count, listeners)


async def _push_tcp(node: Node) -> None:
    async with await trio.open_tcp_stream(node.place[0], 5000) as stream:
        while True:
            await stream.send_all(bytes(65536))
