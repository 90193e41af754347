"""A box between two segments: what every NAT, firewall and carrier NAT has in common."""

from ipaddress import IPv4Network

from .link import LinkSpec
from .network import Attachment, Network, Segment
from .packet import Packet


class Gateway:
    """Passes packets between `inside` and `outside`; subclasses translate and filter.

    `wan` is its plug outside, behind the access link; `lan` its plug inside, the default
    route of everybody there.
    """

    def __init__(
        self,
        network: Network,
        name: str,
        outside: Segment,
        address: str,
        *,
        link: LinkSpec | None = None,
        site: int = 0,
        inside: str = "192.168.1.0/24",
    ) -> None:
        self.network = network
        self.name = name
        self.up = True
        self.inside = Segment(network, f"{name}/lan", 0.0)
        self.wan = outside.attach(self, name="wan", link=link, site=site)
        outside.assign(self.wan, address)
        hosts = IPv4Network(inside).hosts()
        self.lan = self.inside.attach(self, name="lan")
        self.inside.assign(self.lan, str(next(hosts)))
        self.inside.gateway = self.lan
        self._free = hosts

    def free_address(self) -> str:
        """An unused address of the inside."""
        return str(next(self._free))

    def receive(self, packet: Packet, at: Attachment) -> None:
        if at is self.lan:
            self.outbound(packet)
        else:
            self.inbound(packet)

    def outbound(self, packet: Packet) -> None:
        """A packet from inside. This one passes it on as it is."""
        self.wan.send(packet)

    def inbound(self, packet: Packet) -> None:
        """A packet from outside."""
        self.lan.send(packet)
