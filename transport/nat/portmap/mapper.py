"""The port mapper: keeps router ports mapped to this node with whichever protocol works."""

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
from .mapping import Client, Granted, Health, Mapping, Proto, Refused, Scope, scope_of
from .outcome import Outcome
from .pcp import NONCE_BYTES
from .portcontrol import PcpClient, PmpClient, PortControl

PROTOCOLS: Final = ("pcp", "nat-pmp", "upnp")
"""Protocols, the best first: if two work at the same time, the earlier one is used."""

_NO_ADDRESS = Refused("maps ports, but tells no outer address")

OnChange = Callable[[Mapping | None], None]


class Place(NamedTuple):
    """A gateway and our own address on its network."""

    gateway: str
    own: str


_MISHAP = "the answer of the router has triggered a bug of this node"


class _Held:
    """The mappings that one client was granted, and when."""

    def __init__(self, client: Client, granted: list[Granted], address: str, now: float) -> None:
        self.client = client
        self.granted = granted
        self.address = address
        self.since = now
        self.asked: Granted | None = None  # a request without a reply so far

    @property
    def lease(self) -> float:
        """The shortest lease, in seconds."""
        return min(item.seconds for item in self.granted)

    @property
    def renew_at(self) -> float:
        return self.since + max(self.lease / 2, RENEW_LEAST_S)

    @property
    def expires(self) -> float:
        return self.since + self.lease

    def port(self, proto: Proto) -> int:
        return next((item.port for item in self.granted if item.proto is proto), 0)


class PortMapper:
    """Maps a TCP and a UDP port, at one outer number where possible.

    `key` (bytes) is this node's secret and stays the same over restarts: PCP nonces are derived
    from it, so that a node that was killed can take over its own mapping. `protocols` is the subset
    of `PROTOCOLS` to use.
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
        self.mapping: Mapping | None = None
        self.outcome = Outcome(note="ports have not been asked for yet")
        self._host = host
        self._guard = guard or Guard()
        self._key = key or host.entropy(32)
        self._limits = limits or PortmapLimits()
        self._protocols = [name for name in PROTOCOLS if name in protocols]
        self._listeners: list[OnChange] = []
        self._ports: dict[Proto, int] = {}
        self._wake = trio.Event()
        self._moved = False

    def on_change(self, callback: OnChange) -> None:
        """Call `callback` when the mapped address or ports change; with None for no mapping."""
        self._listeners.append(callback)

    def refresh(self) -> None:
        """Renew the mapping soon: for callers that have a reason to believe that it changed."""
        self._wake.set()

    async def run(
        self,
        tcp_port: int,
        udp_port: int,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep both ports mapped until cancelled; a port of 0 is not mapped."""
        wanted = {Proto.TCP: tcp_port, Proto.UDP: udp_port}
        self._ports = {proto: port for proto, port in wanted.items() if port}
        task_status.started()
        while True:
            place = self._look()
            if isinstance(place, Place):
                with self._guard.around(place.gateway):
                    await self._stay(place)
                    continue
                self.outcome = Outcome(*place, note=_MISHAP)
                await trio.sleep(self._limits.look_s)
            else:
                self.outcome = Outcome(note=place)
                await trio.sleep(self._limits.look_s)

    # The gateway and our own address.

    def _look(self) -> Place | str:
        """Return the gateway to use, or the reason why there is none."""
        gateway = next((each for each in self._host.default_gateways() if ":" not in each), None)
        if gateway is None:
            return "no router leads out of this network, so no port can be mapped"
        own = self._own_address(gateway)
        if own is None:
            return f"the router {gateway} is on none of this computer's networks"
        if scope_of(own) is Scope.PUBLIC:
            return f"this computer's own address {own} is public: no port needs to be mapped"
        return Place(gateway, own)

    def _own_address(self, gateway: str) -> str | None:
        for item in self._host.interfaces():
            if ":" in item.address or item.address == gateway:
                continue
            if IPv4Address(gateway) in IPv4Interface(f"{item.address}/{item.prefix}").network:
                return item.address
        return None

    async def _stay(self, place: Place) -> None:
        """Work with one gateway until the gateway or our own address changes."""
        self.outcome = Outcome(*place)
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

    async def _watch(self, place: Place, scope: trio.CancelScope) -> None:
        while self._look() == place:  # noqa: ASYNC110
            await trio.sleep(self._limits.look_s)
        self._moved = True
        scope.cancel()

    async def _work(self, clients: list[Client]) -> None:
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
        named = f"shoal/pcp/1 {control.gateway} {control.own} {proto} {port}".encode()
        return hashlib.blake2s(named, key=self._key[:32], digest_size=NONCE_BYTES).digest()

    # Getting a mapping.

    async def _acquire(self, clients: list[Client]) -> _Held | None:
        """Probe all protocols at once and keep the mappings of the first that works."""
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
    ) -> _Held | Refused:
        """Map all ports: at the outer ports `wishes`, or else both at one number, if possible.

        Without `wishes` this is the first attempt: if it fails, remove what was mapped so far.
        """
        held = _Held(client, [], "", self._host.now())
        refused: Refused | None = None
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
        """Move one port to the other's number, then the other one, at most `ALIGN_TRIES` times."""
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

    # Keeping the mapping.

    async def _hold(self, held: _Held) -> None:
        """Renew the mappings until the gateway refuses or no longer replies."""
        done = False
        try:
            await self._keep(held)
            done = True
        finally:
            self._set(None)
            if not done:
                await self._remove(held)

    async def _keep(self, held: _Held) -> None:
        silent = 0
        look_at = held.since + self._limits.check_s
        while silent < SILENT_LOOKS and self._host.now() < held.expires:
            woken = await self._wait(min(look_at, held.renew_at if not silent else look_at))
            if woken:
                await trio.sleep(SPREAD_S * self._fraction())
            due = woken or self._host.now() >= held.renew_at
            health = Health.LOST if due else await held.client.check(held.granted)
            if health is Health.LOST:
                health = await self._renew(held)
            if health is Health.LOST:
                return
            silent = silent + 1 if health is Health.SILENT else 0
            look_at = self._host.now() + (SILENT_S if silent else self._limits.check_s)

    async def _renew(self, held: _Held) -> Health:
        """Renew all mappings; the outer address and ports may change by this."""
        wishes = {item.proto: item.port for item in held.granted}
        align = len(set(wishes.values())) == 1
        found = await self._map_all(held.client, wishes, align=align)
        if isinstance(found, Refused):
            return Health.SILENT if found.silent else Health.LOST
        held.granted, held.address, held.since = found.granted, found.address, found.since
        self._set(held)
        return Health.GOOD

    async def _remove(self, held: _Held) -> None:
        """Remove the mappings, within `end_s` seconds, also when cancelled. After a move to another
        network the old gateway cannot be reached any more, so nothing is sent."""
        if self._moved:
            return
        with trio.move_on_after(self._limits.end_s, shield=True):
            async with trio.open_nursery() as nursery:
                for item in [*held.granted, *([held.asked] if held.asked else [])]:
                    nursery.start_soon(held.client.unmap, item)

    async def _wait(self, until: float) -> bool:
        """Wait until the time `until`, or until `refresh` is called, at least `HUSH_S` seconds.

        Return whether `refresh` ended the wait.
        """
        hush = min(until, self._host.now() + HUSH_S)
        await trio.sleep_until(hush)
        with trio.CancelScope(deadline=until) as scope:
            await self._wake.wait()
        if self._wake.is_set():
            self._wake = trio.Event()
        return not scope.cancelled_caught

    def _fraction(self) -> float:
        return int.from_bytes(self._host.entropy(4)) / 2**32

    def _set(self, held: _Held | None) -> None:
        before, self.mapping = self.mapping, None
        if held is not None:
            tcp, udp = held.port(Proto.TCP), held.port(Proto.UDP)
            name, gateway = held.client.name, self.outcome.gateway or ""
            self.mapping = Mapping(held.address, tcp, udp, name, held.expires, gateway)
        self.outcome.mapping = self.mapping
        same = before is None if self.mapping is None else self.mapping.same_place(before)
        if not same:
            for listener in self._listeners:
                listener(self.mapping)
