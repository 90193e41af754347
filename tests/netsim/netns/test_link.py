"""The user-space link, between socket pairs instead of TUN devices."""

import os
import socket
import time
from collections.abc import Iterator

import pytest

from shoal.netsim.netns.link import Switch, quantile, too_big
from shoal.netsim.network.link import Burst, LinkSpec, PipeSpec

A, B = "11.0.0.1", "11.0.0.2"


def packet(source: str, destination: str, size: int = 100, proto: int = 17) -> bytes:
    head = bytes((0x45, 0, *size.to_bytes(2), 0, 0, 0, 0, 64, proto, 0, 0))
    data = head + socket.inet_aton(source) + socket.inet_aton(destination)
    return data + bytes(size - len(data))


class Bench:
    """A switch with two ports; `a` and `b` are the hosts' ends."""

    def __init__(self, link: LinkSpec, latency: float = 0.0) -> None:
        self.switch = Switch(latency=latency, seed=1)
        self._pairs = []
        for name, address in ("a", A), ("b", B):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            theirs.setblocking(False)
            self.switch.attach(
                name, theirs.fileno(), [address], link if name == "a" else LinkSpec()
            )
            self._pairs += [ours, theirs]
        self.a, self.b = self._pairs[0], self._pairs[2]

    def run(self, seconds: float) -> None:
        """Take what has been sent, and pass what is due within `seconds`, also on a busy
        machine.
        """
        self.switch.turn(0)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.switch.turn(left)
        self.switch.turn(0)

    def received(self, sock: socket.socket) -> list[bytes]:
        found = []
        while True:
            try:
                found.append(sock.recv(4096))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self.switch.close()
        for sock in self._pairs:
            sock.close()


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.close()


def test_a_packet_arrives_after_both_pipes_and_the_latency(benches: list[Bench]) -> None:
    link = LinkSpec(up=PipeSpec(delay=0.004))
    bench = Bench(link, latency=0.003)
    benches.append(bench)
    began = time.monotonic()
    bench.a.send(packet(A, B))
    while not (got := bench.received(bench.b)):
        bench.switch.turn(0.01)
    assert got == [packet(A, B)]
    assert time.monotonic() - began >= 0.007


def test_the_way_back_has_the_down_pipe(benches: list[Bench]) -> None:
    bench = Bench(LinkSpec(up=PipeSpec(loss=1.0), down=PipeSpec(delay=0.002)))
    benches.append(bench)
    bench.a.send(packet(A, B))
    bench.b.send(packet(B, A))
    bench.run(0.02)
    assert bench.received(bench.b) == []
    assert bench.received(bench.a) == [packet(B, A)]
    assert bench.switch.ports["a"].dropped == {"lost": 1}


def test_a_rate_spreads_packets_and_its_queue_overflows(benches: list[Bench]) -> None:
    bench = Bench(LinkSpec(up=PipeSpec(rate=100_000, queue=0.005)))  # 1 ms per packet of 100 bytes
    benches.append(bench)
    for _ in range(20):
        bench.a.send(packet(A, B))
    began = time.monotonic()
    while bench.switch.forwarded < 5 and time.monotonic() - began < 60:
        bench.switch.turn(0.01)
    assert time.monotonic() - began > 0.004
    bench.run(0.01)
    passed = bench.switch.forwarded
    assert 5 <= passed < 20
    assert bench.switch.ports["a"].dropped == {"queue": 20 - passed}


def test_cuts_are_of_one_direction(benches: list[Bench]) -> None:
    bench = Bench(LinkSpec())
    benches.append(bench)
    bench.switch.ports["a"].down.cut = True
    bench.a.send(packet(A, B))
    bench.b.send(packet(B, A))
    bench.run(0.01)
    assert (len(bench.received(bench.a)), len(bench.received(bench.b))) == (0, 1)
    bench.switch.ports["a"].down.cut = False
    bench.b.send(packet(B, A))
    bench.run(0.01)
    assert len(bench.received(bench.a)) == 1


def test_duplicates_arrive_twice(benches: list[Bench]) -> None:
    for link in LinkSpec(up=PipeSpec(duplicate=1.0)), LinkSpec(down=PipeSpec(duplicate=1.0)):
        bench = Bench(link)
        benches.append(bench)
        sender, receiver = (bench.a, bench.b) if link.up.duplicate else (bench.b, bench.a)
        source, destination = (A, B) if link.up.duplicate else (B, A)
        sender.send(packet(source, destination))
        bench.run(0.01)
        assert bench.received(receiver) == [packet(source, destination)] * 2


def test_a_changed_link_counts_from_now_on(benches: list[Bench]) -> None:
    bench = Bench(LinkSpec())
    benches.append(bench)
    burst = PipeSpec(burst=Burst(1.0, 0.0, 1.0))
    bench.switch.ports["a"].change(LinkSpec(up=burst), bench.switch.streams)
    bench.a.send(packet(A, B))
    bench.run(0.005)
    assert bench.received(bench.b) == []


def test_an_unknown_address(benches: list[Bench]) -> None:
    bench = Bench(LinkSpec())
    benches.append(bench)
    bench.a.send(packet(A, "11.9.9.9"))
    bench.a.send(bytes([0x60]) + bytes(59))  # IPv6, to ::
    bench.run(0.005)
    assert bench.switch.ports["a"].dropped == {"no-route": 2}


@pytest.mark.parametrize("narrow", ["up", "down"])
def test_a_packet_too_big_is_reported_to_its_sender(benches: list[Bench], narrow: str) -> None:
    bench = Bench(LinkSpec(**{narrow: PipeSpec(mtu=600)}))
    benches.append(bench)
    (sender, source, to) = (bench.a, A, B) if narrow == "up" else (bench.b, B, A)
    sender.send(packet(source, to, 601))
    bench.run(0.01)
    [told] = bench.received(sender)
    assert told[9] == socket.IPPROTO_ICMP and told[20:22] == bytes((3, 4))
    assert int.from_bytes(told[26:28]) == 600
    assert told[16:20] == socket.inet_aton(source)
    assert told[28:] == packet(source, to, 601)[:28]
    assert checksum(told[:20]) == checksum(told[20:]) == 0xFFFF


def checksum(data: bytes) -> int:
    """Return the one's complement sum; it is all ones if a checksum in the data is right."""
    total = sum(int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2))
    return (total & 0xFFFF) + (total >> 16)


def test_no_error_is_sent_about_an_error() -> None:
    assert too_big(packet(A, B, 1000, proto=1), 600) == b""
    assert too_big(bytes([0x60]) + bytes(99), 600) == b""


def test_a_device_that_has_gone_takes_its_packets_with_it(benches: list[Bench]) -> None:
    bench = Bench(LinkSpec())
    benches.append(bench)
    bench.a.send(packet(A, B))
    bench.b.close()
    bench.run(0.005)
    assert bench.switch.ports["b"].dropped == {"device": 1}


def test_lateness_is_of_the_latest_packets(benches: list[Bench]) -> None:
    bench = Bench(LinkSpec())
    benches.append(bench)
    assert bench.switch.lateness() == []
    for _ in range(3):
        bench.a.send(packet(A, B))
    bench.run(0.01)
    late = bench.switch.lateness()
    assert len(late) == 3 and 0 <= late[0] <= quantile(late, 0.5) <= late[-1] < 1


def test_devices_are_not_closed_by_the_switch(benches: list[Bench]) -> None:
    """The opener of a device owns it; the switch only closes its epoll descriptor."""
    bench = Bench(LinkSpec())
    bench.switch.close()
    os.fstat(bench.a.fileno())
    bench.close()
