"""Any packets in any order: no gateway breaks, and each one forgets what has expired."""

from random import Random

import pytest

from shoal.netsim.nat.conntrack import LinuxNat
from shoal.netsim.nat.kinds import KINDS
from shoal.netsim.nat.rfc import RfcNat
from shoal.netsim.network.packet import Addr
from tests.netsim.nat.wire import GATE, TCP, UDP, A, B, Wire, error, flag

FLAGS = ("syn", "synack", "ack", "fin", "rst")


def consistent(wire: Wire) -> None:
    gate = wire.gate
    if isinstance(gate, LinuxNat):
        tracker = gate.tracker
        entries = set(tracker._tuples.values())
        assert len(tracker._tuples) == 2 * len(entries)
        for entry in entries:
            assert tracker._tuples[entry.original] is tracker._tuples[entry.reply] is entry
        listed = [entry for each in tracker._sources.values() for entry in each.values()]
        assert len(listed) == len(entries) and set(listed) == entries
    elif isinstance(gate, RfcNat):
        mappings = list(gate._mappings.values())
        assert set(mappings) == set(gate._outer.values()) and len(gate._outer) == len(mappings)
        assert sum(gate._count.values()) == len(mappings) and 0 not in gate._count.values()


@pytest.mark.parametrize("kind", KINDS)
def test_noise(kind: str) -> None:
    inner = {"cgn": "100.64.0.", "public-firewall": "198.51.100."}.get(kind, "192.168.1.")
    hosts = (inner + "2", inner + "3")
    wire = Wire(kind, hosts)
    random = Random(kind)
    inside = [(host, port) for host in hosts for port in (500, 4001, 4002)]
    outside = [(ip, port) for ip in (A[0], B[0]) for port in (1, 4001, 4002)]
    outer = [(GATE, port) for port in (500, 4001, 4002, *range(1024, 1030))]
    now = 0.0
    for _ in range(3000):
        now += random.choice((0.0, 0.1, 5.0, 40.0))
        wire.at(now)
        send(wire, random, inside, outside, outer)
        wire.inner.got.clear()
        wire.outer.got.clear()
    consistent(wire)
    wire.at(now + 500000.0)
    wire.lan.send(error("port", inside[0], outside[0], (UDP, outside[0], inside[0])))
    wire.at(now + 500001.0)
    consistent(wire)


def send(
    wire: Wire, random: Random, inside: list[Addr], outside: list[Addr], outer: list[Addr]
) -> None:
    goes_out = random.random() < 0.5
    at = wire.lan if goes_out else wire.wan
    source = random.choice(inside if goes_out else outside)
    to = random.choice(outside + outer[:3]) if goes_out else random.choice(outer + inside)
    proto = random.choice((UDP, TCP))
    if random.random() < 0.1:
        packet = error("port", source, to, (proto, to, source))
    else:
        data = flag(random.choice(FLAGS)) if proto == TCP else b""
        packet = error("port", source, to, (proto, to, source))
        packet.proto, packet.data, packet.src, packet.dst = proto, data, source, to
    at.send(packet)
