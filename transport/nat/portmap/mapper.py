"""Port mapper: has the router forward ports to this node, by whichever protocol works."""

import hashlib
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv4Interface
from typing import Final, NamedTuple

import trio

from ...errors import HostError
from ...guard import Guard
from ...host.seam import Host
from .defaults import (
    ALIGN_TRIES,
    HEADSTART_S,
    HUSH_S,
    RENEW_LEAST_S,
    RETRY_S,
    SILENT_LOOKS,
    SILENT_S,
    SPREAD_S,
    PortmapLimits,
)
from .igdclient import IgdClient
from .mapping import (
    Client,
    Granted,
    MappingHealth,
    MappingRefused,
    PortMapping,
    Proto,
    Scope,
    scope_of,
)
from .outcome import PortmapOutcome
from .pcp import NONCE_BYTES
from .portcontrol import PcpClient, PmpClient, PortControl

PROTOCOLS: Final = ("pcp", "nat-pmp", "upnp")
"""Protocols, the best first. If several work, the first of them in this order is used."""

_NO_ADDRESS = MappingRefused("maps ports, but tells no outer address")

OnChange = Callable[[PortMapping | None], None]
"""Receives the new mapping, or None if the mapping is lost."""


class RouterPlace(NamedTuple):
    """A gateway, and this computer's address in its network."""

    gateway: str  # IP address
    own: str  # IP address


_MISHAP = "the answer of the router has triggered a bug of this node"


class _Held:
    """The mappings that a gateway has granted to one client, at the time `since`.

    `address` is the gateway's outer IP address.
    """

    def __init__(self, client: Client, granted: list[Granted], address: str, now: float) -> None:
        self.client = client
        self.granted = granted
        self.address = address
        self.since = now
        self.asked: Granted | None = None  # a requested mapping without a reply so far

    @property
    def lease(self) -> float:
        """The shortest lease of the mappings, in seconds."""
        return min(item.seconds for item in self.granted)

    @property
    def renew_at(self) -> float:
        """When to renew the mappings, in seconds on the host's clock."""
        return self.since + max(self.lease / 2, RENEW_LEAST_S)

    @property
    def expires(self) -> float:
        """When the first mapping ends, in seconds on the host's clock."""
        return self.since + self.lease

    def port(self, proto: Proto) -> int:
        """Return the outer port for a transport protocol, or 0 if none is mapped."""
        return next((item.port for item in self.granted if item.proto is proto), 0)


class PortMapper:
    """Client that maps a TCP and a UDP port at the router, with the same number if possible.

    `mapping` is the current mapping, or None. `outcome` has the findings for the user. `key` is a
    secret of this node that stays the same after a restart. The nonces of PCP are derived from it,
    so that a node that was killed can take over its own mappings. If `key` is empty, a random one
    is used. `protocols` is the subset of `PROTOCOLS` to use.
    """

    def __init__(
        self,
        host: Host,
        *,
        key: bytes = b"",
        limits: PortmapLimits | None = None,
        protocols: Collection[str] = PROTOCOLS,
        guard: Guard | None = None,
    ) -> None:
        self.mapping: PortMapping | None = None
        self.outcome = PortmapOutcome(note="ports have not been asked for yet")
        self._host = host
        self._guard = guard or Guard()
        self._key = key or host.entropy(32)
        self._limits = limits or PortmapLimits()
        self._protocols = [name for name in PROTOCOLS if name in protocols]
        self._listeners: list[OnChange] = []
        self._ports: dict[Proto, int] = {}  # our ports to map
        self._wake = trio.Event()  # set by `refresh`
        self._moved = False  # whether the gateway or our own address has changed

    def on_change(self, callback: OnChange) -> None:
        """Register a callback that is called when the mapped address or ports change."""
        self._listeners.append(callback)

    def refresh(self) -> None:
        """Renew the mapping soon. Call this if there is a reason to believe that it has changed."""
        self._wake.set()

    async def run(
        self,
        tcp_port: int,
        udp_port: int,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Map both ports, and renew their mappings, until cancelled. A port of 0 is not mapped."""
        wanted = {Proto.TCP: tcp_port, Proto.UDP: udp_port}
        self._ports = {proto: port for proto, port in wanted.items() if port}
        task_status.started()
        while True:
            place = self._look()
            if isinstance(place, RouterPlace):
                with self._guard.around(place.gateway):
                    await self._stay(place)
                    continue
                self.outcome = PortmapOutcome(*place, note=_MISHAP)
                await trio.sleep(self._limits.look_s)
            else:
                self.outcome = PortmapOutcome(note=place)
                await trio.sleep(self._limits.look_s)

    # The gateway and our own address.

    def _look(self) -> RouterPlace | str:
        """Return the gateway to use, or the reason why there is none as a sentence for the user."""
        gateway = next((each for each in self._host.default_gateways() if ":" not in each), None)
        if gateway is None:
            return "no router leads out of this network, so no port can be mapped"
        own = self._own_address(gateway)
        if own is None:
            return f"the router {gateway} is on none of this computer's networks"
        if scope_of(own) is Scope.PUBLIC:
            return f"this computer's own address {own} is public: no port needs to be mapped"
        return RouterPlace(gateway, own)

    def _own_address(self, gateway: str) -> str | None:
        """Return this computer's IPv4 address in the network of a gateway, or None."""
        for item in self._host.interfaces():
            if ":" in item.address or item.address == gateway:
                continue
            if IPv4Address(gateway) in IPv4Interface(f"{item.address}/{item.prefix}").network:
                return item.address
        return None

    async def _stay(self, place: RouterPlace) -> None:
        """Map the ports at one gateway, until the default gateway or our own address changes."""
        self.outcome = PortmapOutcome(*place)
        self._moved = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, place, nursery.cancel_scope)
            control = PortControl(self._host, *place, on_news=self.refresh)
            try:
                await control.open(nursery)
                await self._work(self._clients(control))
            except HostError as error:
                self.outcome.note = f"ports cannot be asked for: {error.message}"
                await trio.sleep_forever()
            finally:
                control.close()
                self._set(None)

    async def _watch(self, place: RouterPlace, scope: trio.CancelScope) -> None:
        """Wait until the default gateway or our own address changes, then cancel `scope`."""
        while self._look() == place:  # noqa: ASYNC110
            await trio.sleep(self._limits.look_s)
        self._moved = True
        scope.cancel()

    async def _work(self, clients: list[Client]) -> None:
        """Get mappings, renew them until they are lost, and begin again, until cancelled."""
        pause, longest = RETRY_S
        while True:
            held = await self._acquire(clients)
            if held is not None:
                pause = RETRY_S[0]
                await self._hold(held)
            else:
                await self._wait(self._host.now() + pause)
                pause = min(2 * pause, longest)

    def _clients(self, control: PortControl) -> list[Client]:
        """Return a client of each protocol to use, the best first."""
        lease_s = self._limits.lease_s
        made: dict[str, Client] = {
            "pcp": PcpClient(
                control, lease_s, lambda proto, port: self._nonce(control, proto, port)
            ),
            "nat-pmp": PmpClient(control, lease_s),
            "upnp": IgdClient(self._host, control.gateway, control.own, lease_s),
        }
        return [made[name] for name in self._protocols]

    def _nonce(self, control: PortControl, proto: Proto, port: int) -> bytes:
        """Derive the nonce of a PCP mapping from `key`. It is the same after a restart."""
        named = f"shoal/pcp/1 {control.gateway} {control.own} {proto} {port}".encode()
        return hashlib.blake2s(named, key=self._key[:32], digest_size=NONCE_BYTES).digest()

    # Getting a mapping.

    async def _acquire(self, clients: list[Client]) -> _Held | None:
        """Probe all protocols concurrently. Return the mappings of the first that grants any.

        Returns None if no protocol does. The result of each protocol is stored in `outcome`.
        """
        kept: list[_Held] = []
        turn, done = trio.Lock(), False
        try:
            async with trio.open_nursery() as nursery:
                for rank, client in enumerate(clients):
                    nursery.start_soon(self._try, client, rank, turn, kept)
            done = True
        finally:
            if not done and kept:
                await self._remove(kept[0])
        return kept[0] if kept else None

    async def _try(self, client: Client, rank: int, turn: trio.Lock, kept: list[_Held]) -> None:
        """Probe one protocol. If it works, map the ports, unless another one has done so.

        A protocol of higher `rank` (a worse one) waits longer before it maps. `turn` lets only one
        client map at a time. The granted mappings are appended to `kept`.
        """
        answers = self.outcome.answers
        answer = await client.probe()
        answers[client.name] = answer.words
        if not answer.works:
            return
        await trio.sleep(rank * HEADSTART_S)
        async with turn:
            if kept:
                return
            found = await self._map_all(client, {}, align=True)
            if isinstance(found, _Held):
                kept.append(found)
                both = len(found.granted) == len(self._ports)
                answers[client.name] = f"answers and maps {'the ports' if both else 'one port'}"
                self._set(found)
            else:
                answers[client.name] = found.words

    async def _map_all(
        self, client: Client, wishes: dict[Proto, int], *, align: bool
    ) -> _Held | MappingRefused:
        """Map all ports, and return the granted mappings, or the refusal if none is usable.

        `wishes` are the outer ports to have if possible; it is empty at the first attempt. If
        `align` is True, tries to get the same outer port number for TCP and UDP. If a first attempt
        fails, mappings that it was granted are removed.
        """
        held = _Held(client, [], "", self._host.now())
        refused: MappingRefused | None = None
        done = False
        try:
            for proto, inside in self._ports.items():
                wish = wishes.get(proto) or (held.granted[0].port if held.granted else inside)
                held.asked = Granted(proto, inside, wish, 0.0)
                found = await client.map(proto, inside, wish)
                held.asked = None
                if isinstance(found, Granted):
                    held.granted.append(found)
                else:
                    refused = found
            if align and len(held.granted) == 2:
                await self._align(client, held.granted)
            held.address = await client.address() or "" if held.granted else ""
            if refused is None or not (refused.silent or not held.granted):
                refused = _NO_ADDRESS if scope_of(held.address) is Scope.NOWHERE else None
            done = refused is None
        finally:
            if not done and not wishes:
                await self._remove(held)
        return refused or held

    async def _align(self, client: Client, granted: list[Granted]) -> None:
        """Try to give both mappings the same outer port, and update `granted`.

        Moves the mappings in turn, each to the outer port of the other one, at most `ALIGN_TRIES`
        times. A mapping that the gateway refuses to create again is dropped.
        """
        for attempt in range(ALIGN_TRIES):
            if granted[0].port == granted[1].port:
                return
            moving, staying = granted[attempt % 2], granted[1 - attempt % 2]
            await client.unmap(moving)
            found = await client.map(moving.proto, moving.inside, staying.port)
            if not isinstance(found, Granted):
                granted.remove(moving)
                return
            granted[attempt % 2] = found

    # Renewing the mapping.

    async def _hold(self, held: _Held) -> None:
        """Renew the mappings until they are lost, and publish the loss.

        If this is cancelled, the mappings are removed at the gateway.
        """
        done = False
        try:
            await self._keep(held)
            done = True
        finally:
            self._set(None)
            if not done:
                await self._remove(held)

    async def _keep(self, held: _Held) -> None:
        """Check and renew the mappings until the gateway drops them or no longer replies."""
        silent = 0
        look_at = held.since + self._limits.check_s
        while silent < SILENT_LOOKS and self._host.now() < held.expires:
            woken = await self._wait(min(look_at, held.renew_at if not silent else look_at))
            if woken:
                await trio.sleep(SPREAD_S * self._fraction())
            due = woken or self._host.now() >= held.renew_at
            health = MappingHealth.LOST if due else await held.client.check(held.granted)
            if health is MappingHealth.LOST:
                health = await self._renew(held)
            if health is MappingHealth.LOST:
                return
            silent = silent + 1 if health is MappingHealth.SILENT else 0
            look_at = self._host.now() + (SILENT_S if silent else self._limits.check_s)

    async def _renew(self, held: _Held) -> MappingHealth:
        """Renew all mappings, and update `held`. The outer address and ports may change."""
        wishes = {item.proto: item.port for item in held.granted}
        align = len(set(wishes.values())) == 1
        found = await self._map_all(held.client, wishes, align=align)
        if isinstance(found, MappingRefused):
            return MappingHealth.SILENT if found.silent else MappingHealth.LOST
        held.granted, held.address, held.since = found.granted, found.address, found.since
        self._set(held)
        return MappingHealth.GOOD

    async def _remove(self, held: _Held) -> None:
        """Ask the gateway to remove the mappings, for at most `end_s` seconds, even when cancelled.

        If this computer has moved to another network, nothing is sent, because the old gateway can
        no longer be reached.
        """
        if self._moved:
            return
        with trio.move_on_after(self._limits.end_s, shield=True):
            async with trio.open_nursery() as nursery:
                for item in [*held.granted, *([held.asked] if held.asked else [])]:
                    nursery.start_soon(held.client.unmap, item)

    async def _wait(self, until: float) -> bool:
        """Wait until the time `until`. Return whether a call of `refresh` has ended the wait.

        A call of `refresh` never ends the wait before `HUSH_S` seconds have passed.
        """
        hush = min(until, self._host.now() + HUSH_S)
        await trio.sleep_until(hush)
        with trio.CancelScope(deadline=until) as scope:
            await self._wake.wait()
        if self._wake.is_set():
            self._wake = trio.Event()
        return not scope.cancelled_caught

    def _fraction(self) -> float:
        """Return a random number from 0 to 1."""
        return int.from_bytes(self._host.entropy(4)) / 2**32

    def _set(self, held: _Held | None) -> None:
        """Publish `held` as the current mapping; None means that there is no mapping.

        Calls the listeners if the address, the ports, the protocol or the gateway have changed.
        """
        before, self.mapping = self.mapping, None
        if held is not None:
            tcp, udp = held.port(Proto.TCP), held.port(Proto.UDP)
            name, gateway = held.client.name, self.outcome.gateway or ""
            self.mapping = PortMapping(held.address, tcp, udp, name, held.expires, gateway)
        self.outcome.mapping = self.mapping
        same = before is None if self.mapping is None else self.mapping.same_place(before)
        if not same:
            for listener in self._listeners:
                listener(self.mapping)
