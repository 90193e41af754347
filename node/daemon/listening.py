"""Opens the port on which a node listens, and publishes the addresses that lead to it."""

import ipaddress
from collections.abc import Callable, Iterable

import trio
from trio import TaskStatus

from ...state.defaults import ADDRESSES
from ...state.directory import Directory
from ...transport.address import Address
from ...transport.defaults import HTTPS_PORT
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import AddressInUse
from ...transport.host.seam import Host, Interface
from ...transport.identity import PeerId
from ...transport.strategies.dialer import Dialer
from .. import defaults
from ..errors import NodeError
from ..folder import disk_errors, remember_port, remembered_port
from ..settings.config import NodeConfig

# Beginnings of the names of interfaces that lead to containers and virtual machines only.
VIRTUAL = ("docker", "br-", "veth", "virbr", "vmnet", "lxc", "cni", "podman")
MOST = 8  # most addresses that are published


def own_addresses(
    listen: str, port: int, peer: PeerId, interfaces: Iterable[Interface]
) -> list[Address]:
    """Return the addresses to publish for a listener on the IP address `listen`, the best first.

    For a listener on all addresses, these are the addresses of the interfaces: public ones first,
    those of virtual switches last. Loopback addresses are only published if there is no other.
    """
    address = ipaddress.ip_address(listen)
    if not address.is_unspecified:
        return [Address(listen, port, peer)]
    version = address.version
    found = [item for item in interfaces if ipaddress.ip_address(item.address).version == version]
    usable = [item for item in found if not ipaddress.ip_address(item.address).is_link_local]
    usable.sort(key=_rank)
    outside = [item for item in usable if not ipaddress.ip_address(item.address).is_loopback]
    return [Address(item.address, port, peer) for item in (outside or usable)[:MOST]]


def _rank(item: Interface) -> tuple[bool, bool]:
    """Return a sort key that puts private addresses after public ones, and virtual switches
    last."""
    virtual = item.name.startswith(VIRTUAL)
    return virtual, ipaddress.ip_address(item.address).is_private


class Listening:
    """Listening port and published addresses of one node."""

    def __init__(
        self,
        host: Host,
        config: NodeConfig,
        endpoint: Endpoint,
        dialer: Dialer,
        directory: Directory,
        say: Callable[[str], None],
    ) -> None:
        self._host = host
        self._config = config
        self._endpoint = endpoint
        self._dialer = dialer
        self._directory = directory
        self._say = say
        self.addresses: list[Address] = []
        """Addresses that lead to this node: of its interfaces, and those that peers observe."""

    async def start(self, nursery: trio.Nursery) -> None:
        """Open the configured port, else the port of the last run, else a free one.

        Raises NodeError if the configured port is in use or the disk fails, and HostError if the
        address cannot be used.
        """
        config, folder = self._config, self._config.folder
        with disk_errors(folder):
            remembered = await remembered_port(self._host, folder) if config.port is None else 0
        try:
            port = await self._bind(nursery, config.port or remembered)
        except AddressInUse:
            if not remembered:
                raise NodeError(
                    "port-in-use",
                    f"port {config.port} on {config.listen} is in use",
                    hint=f"`--listen {config.listen}:0` takes a free one",
                ) from None
            self._say(f"port {remembered} of the last run is in use, taking another one")
            port = await self._bind(nursery, 0)
        if config.port is None:
            with disk_errors(folder):
                await remember_port(self._host, folder, port)
        self.addresses = self._places()
        self._dialer.on_change(self._changed)

    async def _bind(self, nursery: trio.Nursery, port: int) -> int:
        listen = self._config.listen
        places = ("0.0.0.0", "::") if listen == "0.0.0.0" else (listen,)
        further = tuple((place, HTTPS_PORT) for place in places if self._config.port_443)

        async def run(*, task_status: TaskStatus[int]) -> None:
            relays = self._config.libp2p_relays
            await self._dialer.run(
                listen, port, further=further, libp2p_relays=relays, task_status=task_status
            )

        bound: int = await nursery.start(run)
        return bound

    def _changed(self) -> None:
        self.addresses = self._places()
        self._directory.publish(addresses=tuple(str(address) for address in self.addresses))

    def _places(self) -> list[Address]:
        endpoint, interfaces = self._endpoint, self._host.interfaces()
        own = own_addresses(self._config.listen, endpoint.port, endpoint.peer, interfaces)
        first, others = own[: defaults.OWN_FIRST], own[defaults.OWN_FIRST :]
        found = dict.fromkeys([*first, *self._dialer.addresses(), *others])
        return list(found)[:ADDRESSES]
