"""Discovery of peers on the LAN by multicast DNS, with a socket and a task for each interface."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network

import trio

from ..errors import AddressInUse, HostError
from ..guard import Guard
from ..host.datagrams import Datagrams, Place
from ..host.seam import Host, Interface, MulticastGroup
from ..identity import PeerId
from .defaults import GROUP, PORT, LanLimits
from .responder import MdnsResponder
from .service import Announcement

OnPeer = Callable[[PeerId, Place], None]

_PRIVATE = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"))
)
_POINT_TO_POINT = 31  # prefix length from which a network has no other hosts


class LanDiscovery:
    """Announces this node on the LAN, and reports other nodes of its swarm.

    A report is only a hint. The handshake of the link authenticates the peer.
    """

    def __init__(
        self,
        host: Host,
        peer: PeerId,
        swarm: bytes,
        *,
        limits: LanLimits | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`peer` is this node's id. `swarm` is the swarm's public name, up to 32 bytes long; nodes
        of other swarms are ignored."""
        self._host = host
        self._guard = guard or Guard()
        self._peer = peer
        self._swarm = swarm
        self._limits = limits or LanLimits()
        self._listeners: list[OnPeer] = []
        self.served: dict[Interface, trio.CancelScope] = {}
        self.responders: dict[Interface, MdnsResponder] = {}
        """What answers and asks on each interface that is served."""
        self.troubles: dict[Interface, str] = {}
        """Why an interface is not served, as a sentence."""
        self._entropy = host.entropy(8)
        self._port = 0

    def on_peer(self, callback: OnPeer) -> None:
        """Register `callback`. It is called with a peer id and an address when that peer is first
        seen at that address, and when it is seen again after it was forgotten."""
        self._listeners.append(callback)

    @property
    def condition(self) -> str | None:
        """The reason why one of the local networks is not searched, as text for the owner; None if
        all are searched."""
        return next(iter(self.troubles.values()), None)

    def places(self, peer: PeerId) -> list[Place]:
        """Return the addresses that a peer has announced on the local networks."""
        found = (each.neighbours.places(peer) for each in self.responders.values())
        return list(dict.fromkeys(place for places in found for place in places))

    async def run(
        self, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Announce `port` and listen until cancelled. Then announce that this node leaves."""
        self._port = port
        async with trio.open_nursery() as nursery:
            self._look(nursery)
            task_status.started()
            while True:
                await trio.sleep(self._limits.look_s)
                self._look(nursery)

    def _look(self, nursery: trio.Nursery) -> None:
        """Start serving interfaces that have appeared, and stop serving those that have
        disappeared."""
        wanted = [item for item in self._host.interfaces() if _is_lan(item)]
        wanted = wanted[: self._limits.interfaces]
        for interface, scope in list(self.served.items()):
            if interface not in wanted:
                scope.cancel()
        for interface in list(self.troubles):
            if interface not in wanted:
                del self.troubles[interface]
        for interface in wanted:
            if interface not in self.served:
                self.served[interface] = trio.CancelScope()
                nursery.start_soon(self._serve, interface)

    async def _serve(self, interface: Interface) -> None:
        """Serve an interface until it disappears. After an error, the next check of the interfaces
        starts this again."""
        try:
            with self.served[interface], self._guard.around(f"network of {interface.address}"):
                # The socket is bound to the group's address. Otherwise unicast datagrams for
                # another program on this port could be delivered here (RFC 6762, section 15).
                group = MulticastGroup(GROUP, interface.address)
                socket = await self._host.datagrams(GROUP, PORT, group=group, shared=True)
                self.troubles.pop(interface, None)
                await self._work(interface, socket)
        except AddressInUse:
            self.troubles[interface] = (
                f"another program uses port {PORT} exclusively, so multicast DNS cannot find peers "
                "on the local network"
            )
        except HostError as error:
            self.troubles[interface] = (
                f"cannot search for peers on the network of {interface.address}: {error.message}"
            )
        finally:
            del self.served[interface]

    async def _work(self, interface: Interface, socket: Datagrams) -> None:
        announcement = Announcement(
            self._peer, self._swarm, interface.address, self._port, self._entropy
        )
        now = self._host.now()
        responder = MdnsResponder(announcement, interface, self._limits, self._luck, now)
        self.responders[interface] = responder
        try:
            async with trio.open_nursery() as nursery:
                turn = _Turn()
                nursery.start_soon(self._receive, socket, responder, turn)
                while True:
                    for data in responder.poll(self._host.now()):
                        socket.send(data, (GROUP, PORT))
                    await turn.wait(responder.due())
        finally:
            socket.send(responder.goodbye(), (GROUP, PORT))
            socket.close()
            del self.responders[interface]

    async def _receive(self, socket: Datagrams, responder: MdnsResponder, turn: "_Turn") -> None:
        while True:
            for data, source in await socket.receive():
                with self._guard.around(source):
                    for found in responder.receive(data, source, self._host.now()):
                        self._guard.tell(source, self._listeners, found.peer, found.place)
            turn.call(responder.due())

    def _luck(self) -> float:
        return int.from_bytes(self._host.entropy(4)) / 2**32


class _Turn:
    """Timer that another task can move to an earlier time."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._until = 0.0

    def call(self, due: float) -> None:
        if due < self._until:
            self._event.set()

    async def wait(self, until: float) -> None:
        self._until = until
        with trio.CancelScope(deadline=until):
            await self._event.wait()
        self._event = trio.Event()


def _is_lan(interface: Interface) -> bool:
    """Return whether an interface has an address in a private IPv4 network that can contain other
    hosts."""
    if ":" in interface.address or interface.prefix >= _POINT_TO_POINT:
        return False
    return any(IPv4Address(interface.address) in network for network in _PRIVATE)
