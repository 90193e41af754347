"""The route of a packet over a subnet, and the hosts that receive it."""

import pytest

from shoal.netsim.clock import Events
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.network import BROADCAST, NAMELESS_ROUTER, Attachment, Network, Subnet
from shoal.netsim.network.packet import ICMP, UDP, Icmp, Packet
from shoal.netsim.streams import RandomStreams
from shoal.netsim.trace.trace import Trace

GROUP = "224.0.0.251"


class Box:
    """Owner of an attachment; stores what it gets, and when."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.up = True
        self.got: list[tuple[float, Packet]] = []
        self.events: Events

    def receive(self, packet: Packet, at: Attachment) -> None:
        self.got.append((round(self.events.now, 6), packet))


class Lan:
    """Boxes a, b, c at 10.0.0.1 and up, each with the same link."""

    def __init__(self, link: LinkSpec | None = None, latency: float = 0.01) -> None:
        self.events, self.trace = Events(), Trace(keep=True)
        self.network = Network(self.events, RandomStreams(1), self.trace)
        self.subnet = Subnet(self.network, "lan", latency)
        self.boxes = [Box(name) for name in "abc"]
        self.plugs = []
        for number, box in enumerate(self.boxes, 1):
            box.events = self.events
            self.plugs.append(self.subnet.attach(box, link=link))
            self.subnet.assign(self.plugs[-1], f"10.0.0.{number}")

    def send(self, to: str, size: int = 100, sender: int = 0) -> None:
        source = self.plugs[sender]
        packet = Packet(UDP, (source.addresses[0], 1), (to, 2), size, b"", "a", "")
        (source.spread if to in (GROUP, BROADCAST) else source.send)(packet)
        self.events.run_until(self.events.now + 1)

    def heard(self) -> list[int]:
        return [len(box.got) for box in self.boxes]

    def why(self) -> list[str]:
        """Return what the trace says about packets that were lost."""
        self.trace.digest  # noqa: B018  writes the batch out
        return [what for _, what, *_ in self.trace.records if what not in ("sent", "received")]


def test_the_way_takes_both_pipes_and_the_latency() -> None:
    lan = Lan(LinkSpec(up=PipeSpec(delay=0.1), down=PipeSpec(delay=0.02)))
    lan.send("10.0.0.2")
    assert [when for when, _ in lan.boxes[1].got] == [0.13]
    assert lan.heard() == [0, 1, 0]


@pytest.mark.parametrize("six", [False, True])
def test_packets_to_unknown_addresses_go_to_the_router_but_not_back_to_it(six: bool) -> None:
    lan = Lan()
    stranger = "2600::9" if six else "203.0.113.9"
    lan.send(stranger)
    assert (lan.heard(), lan.why()) == ([0, 0, 0], ["no-route"])
    lan.subnet.gateway = lan.plugs[2]
    lan.send(stranger)
    lan.send(stranger, sender=2)
    assert (lan.heard(), lan.why()) == ([0, 0, 1], ["no-route"] * 2)


def test_groups_reach_their_members_and_a_broadcast_all_but_the_router() -> None:
    lan = Lan()
    lan.subnet.gateway = lan.plugs[2]
    lan.subnet.join(GROUP, lan.plugs[1])
    lan.subnet.join(GROUP, lan.plugs[0])
    lan.send(GROUP)
    assert lan.heard() == [0, 1, 0]  # not the sender
    lan.subnet.leave_all(lan.plugs[1])
    lan.send(GROUP)
    assert lan.heard() == [0, 1, 0]
    lan.send(BROADCAST)
    assert lan.heard() == [0, 2, 0]
    lan.subnet.carries_groups = False
    lan.send(BROADCAST)
    assert lan.heard() == [0, 2, 0]


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_router_reports_large_packets_to_the_sender(way: str) -> None:
    lan = Lan()
    narrow = LinkSpec(**{way: PipeSpec(mtu=1280)})
    lan.plugs[0 if way == "up" else 1].change(narrow)
    lan.send("10.0.0.2", 1281)
    (told,) = (packet for _, packet in lan.boxes[0].got)
    assert isinstance(told.data, Icmp)
    assert (told.proto, told.src[0], told.data.kind) == (ICMP, NAMELESS_ROUTER, "too-big")
    assert (told.data.mtu, told.data.dst) == (1280, ("10.0.0.2", 2))
    lan.send("10.0.0.2", 1280)
    assert lan.heard()[1] == 1


def test_a_second_copy_is_a_packet_of_its_own() -> None:
    lan = Lan(LinkSpec(up=PipeSpec(duplicate=1.0)))
    lan.send("10.0.0.2")
    (_, first), (_, second) = lan.boxes[1].got
    first.dst = ("changed", 0)  # as a gateway does
    assert second.dst == ("10.0.0.2", 2)


def test_a_box_that_is_off_gets_nothing() -> None:
    lan = Lan()
    lan.boxes[1].up = False
    lan.send("10.0.0.2")
    assert (lan.heard(), lan.why()) == ([0, 0, 0], ["down"])


def test_an_address_has_one_owner_until_it_is_released() -> None:
    lan = Lan()
    with pytest.raises(ValueError, match=r"10\.0\.0\.2 is taken on lan"):
        lan.subnet.assign(lan.plugs[0], "10.0.0.2")
    lan.subnet.release(lan.plugs[1], "10.0.0.2")
    lan.subnet.assign(lan.plugs[0], "10.0.0.2")
    lan.send("10.0.0.2", sender=2)
    assert lan.heard() == [1, 0, 0]
