"""Client of libp2p relays, which are any programs that speak circuit relay v2.

A circuit is a `ByteStream` at both ends. The two peers run TLS over it, so that the relay sees only
ciphertext. The source that a relay names is only a hint until TLS has authenticated it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from ..address import Address
from ..bytestream import TcpByteStream
from ..errors import MISHAP, DialFailed, HostError, TransportError
from ..guard import Guard
from ..host.seam import Host
from ..identity import Identity, PeerId, parse_peer_id
from ..lane.frame import Fault
from ..networks import parse_ip
from ..rates import MemoryBudget
from . import circuit as wire
from . import defaults
from .circuit import HopMessage, StopMessage
from .connection import Libp2pConnection, Protocols, ReadingCharges, Serve
from .limits import Libp2pLimits
from .muxstream import MuxStream
from .package import package
from .session import Libp2pSession

OnCircuit = Callable[[MuxStream, PeerId, Address], None]
_EXPIRED: Final = "expired"  # code of a connection whose reservation could not be renewed


@dataclass(slots=True)
class _Relay:
    """A relay to which this node is connected. `reserved` says whether there is a reservation."""

    address: Address
    connection: Libp2pConnection
    reserved: bool = False


class CircuitClient:
    """Holder of reservations at libp2p relays, and dialer of circuits through them.

    It works only while `run` runs. `protocols` returns the protocols that are served to relays
    (identify). `port` returns the local TCP port from which relays are dialled. This node
    authenticates itself to relays with `identity`.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        *,
        protocols: Protocols = dict,
        port: Callable[[], int] = lambda: 0,
        limits: Libp2pLimits | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._host = host
        self._guard = guard or Guard()
        self._identity = identity
        self._base = protocols
        self._port = port
        self._limits = limits or Libp2pLimits()
        self._budget = MemoryBudget(self._limits.total_bytes)
        self._relays: dict[PeerId, _Relay] = {}
        self._dialling: dict[PeerId, trio.Event] = {}
        self._on_circuit: OnCircuit | None = None
        self._on_change: list[Callable[[], None]] = []
        self._nursery: trio.Nursery | None = None

    def on_circuit(self, callback: OnCircuit) -> None:
        """Register `callback(byte_stream, source, relay)`, called for each incoming circuit.

        The callback must close `byte_stream` in the end. The source is not authenticated
        yet. This side is the TLS server.
        """
        self._on_circuit = callback

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register `callback()`, called when `addresses` has changed."""
        self._on_change.append(callback)

    def addresses(self) -> list[Address]:
        """Return the addresses of this node through the relays at which it has a reservation."""
        held = [relay.address for relay in self._relays.values() if relay.reserved]
        return [address.through(self._identity.peer) for address in held]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the connections to relays until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._relays.clear()

    async def reserve(self, relay: Address) -> None:
        """Request a reservation at a relay whose peer id is known, and renew it in the background.

        Returns once the reservation is granted. Raises DialFailed with the codes of a dial, or with
        `reservation-refused`, `relay-full`, `relay-denied` or `bad-relay`.
        """
        found = await self._relay(relay)
        try:
            life = await self._ask_reservation(found.connection)
        except DialFailed:
            found.connection.close("refused")
            raise
        found.reserved = True
        found.connection.keep(self._host.now() + life)
        self._changed()
        if self._nursery is not None:
            end = partial(found.connection.close, MISHAP)
            place = str(relay)
            self._guard.start(self._nursery, place, self._renew, found, life, end=end)

    def release(self, relay: PeerId) -> None:
        """Close the connection to a relay, with every circuit through it."""
        if relay in self._relays:
            self._relays[relay].connection.close("closed")

    async def dial(self, address: Address) -> MuxStream:
        """Open a circuit to `address.peer` through `address.relay`. This side is the TLS client.

        Raises DialFailed with the codes of a dial to the relay, or with `no-reservation`,
        `peer-unreachable`, `relay-full`, `relay-denied` or `bad-relay`.
        """
        if address.relay is None or address.peer is None:
            raise DialFailed("bad-address", f"`{address}` does not lead through a relay")
        relay = await self._relay(address.relay)
        stream, _ = await self._request(relay.connection, wire.CONNECT, address.peer)
        if self._nursery is None:
            stream.close()
            raise DialFailed("not-running", "the client of relays is not running")
        place = str(address.relay)
        self._guard.start(self._nursery, place, _hold, relay.connection, stream, end=stream.close)
        return stream

    # Connections to relays.

    async def _relay(self, address: Address) -> _Relay:
        """Return the connection to a relay. Dials if there is none. Raises DialFailed if that
        fails."""
        peer = address.peer
        if peer is None:
            raise DialFailed("bad-address", f"`{address}` lacks the peer id of the relay")
        while peer in self._dialling:
            await self._dialling[peer].wait()
        found = self._relays.get(peer)
        if found is not None and found.connection.alive:
            return found
        done = self._dialling[peer] = trio.Event()
        try:
            with trio.move_on_after(defaults.DIAL_S):
                return await self._dial_relay(address, peer)
        finally:
            del self._dialling[peer]
            done.set()
        raise DialFailed("timeout", f"`{address}` did not answer within {defaults.DIAL_S:g} s")

    async def _dial_relay(self, address: Address, peer: PeerId) -> _Relay:
        """Dial a relay, and return the connection once the relay is authenticated."""
        if self._nursery is None:
            raise DialFailed("not-running", "the client of relays is not running")
        await self._host.offload(package)
        stream = await self._connect(address)
        session = Libp2pSession(
            self._identity,
            dialled=True,
            entropy=self._host.entropy,
            limits=self._limits,
            expect=peer,
        )
        connection = Libp2pConnection(
            TcpByteStream(stream),
            session,
            host=self._host,
            protocols=self._protocols,
            charges=ReadingCharges(self._budget),
        )
        relay = _Relay(address, connection)
        await self._nursery.start(self._carry, relay, peer)
        if not connection.alive:
            code = connection.code or "lost"
            known = "wrong-peer" if code == "wrong-peer" else "bad-relay"
            raise DialFailed(known, f"`{address}` is not usable as a relay ({code})")
        return relay

    async def _connect(self, address: Address) -> trio.SocketStream:
        """Open a TCP connection, from this node's listening port if possible.

        Raises DialFailed if that fails.
        """
        if address.transport != "tcp":
            raise DialFailed("bad-address", f"`{address}` is not a TCP address")
        ip, port = address.host, self._port()
        try:
            if parse_ip(ip) is None:
                ip = (await self._host.resolve(ip))[0]
            return await self._host.connect(ip, address.port, source_port=port)
        except HostError as error:
            raise DialFailed("bad-name", error.message) from None
        except ConnectionRefusedError:
            raise DialFailed("refused", f"nothing listens at `{address}`") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise DialFailed("unreachable", f"`{address}` cannot be reached: {reason}") from None

    async def _carry(
        self,
        relay: _Relay,
        peer: PeerId,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a connection to its end. The task counts as started once the connection is up or has
        failed."""

        def up() -> None:
            self._relays[peer] = relay
            task_status.started()

        try:
            with self._guard.around(str(relay.address)):
                await relay.connection.run(up=up)
        finally:
            found = self._relays.get(peer) is relay
            if found:
                del self._relays[peer]
        if not found:
            task_status.started()
        if relay.reserved:
            relay.reserved = False
            self._changed()

    def _changed(self) -> None:
        """Call the callbacks, because `addresses` has changed."""
        for callback in self._on_change:
            callback()

    # Reservations and circuits.

    async def _ask_reservation(self, connection: Libp2pConnection) -> float:
        """Request a reservation. Return its life in seconds. Raises DialFailed if it is refused."""
        stream, answer = await self._request(connection, wire.RESERVE, None)
        stream.close()
        shortest, longest = defaults.RESERVED_S
        return min(max((answer.expires or 0) - self._host.wall(), shortest), longest)

    async def _request(
        self, connection: Libp2pConnection, kind: int, peer: str | None
    ) -> tuple[MuxStream, HopMessage]:
        """Send a HOP request, and return (its stream, the reply that grants it).

        Raises DialFailed if the relay refuses the request or does not answer.
        """
        stream: MuxStream | None = None
        code = "timeout"
        try:
            with trio.move_on_after(defaults.DIAL_S):
                stream = await connection.open(wire.HOP)
                await stream.send(wire.hop_request(kind, peer))
                body = await stream.receive_message(defaults.CIRCUIT_MESSAGE_BYTES)
                answer = HopMessage.decode(body)
                if answer.kind == wire.HOP_STATUS and answer.status == wire.OK:
                    return stream, answer
                code = wire.STATUS_CODES.get(answer.status or 0, "bad-relay")
        except Fault as fault:
            code = "relay-denied" if fault.code == "no-protocol" else "bad-relay"
        except BaseException:
            if stream is not None:
                stream.close()
            raise
        if stream is not None:
            stream.close()
        raise DialFailed(code, f"the relay `{connection.peer}` refused the request ({code})")

    async def _renew(self, relay: _Relay, life: float) -> None:
        """Renew a reservation after half of its life, again and again. Close the connection if that
        fails."""
        while relay.connection.alive:
            await trio.sleep(life * defaults.RENEW)
            try:
                life = await self._ask_reservation(relay.connection)
            except DialFailed:
                relay.connection.close(_EXPIRED)
                return
            relay.connection.keep(self._host.now() + life)

    def _protocols(self) -> dict[str, Serve]:
        """Return the protocols that are served to relays."""
        return {**self._base(), wire.STOP: self._serve_stop}

    async def _serve_stop(self, connection: Libp2pConnection, stream: MuxStream) -> None:
        """Accept a circuit from a relay and pass it to the callback. Return when the circuit is
        closed."""
        with trio.fail_after(self._limits.request_s):
            body = await stream.receive_message(defaults.CIRCUIT_MESSAGE_BYTES)
        relay = self._relays.get(PeerId(connection.peer))
        source = _source(body)
        if isinstance(source, int):
            await stream.send(wire.stop_status(source))
        elif relay is None or not relay.reserved or self._on_circuit is None:
            await stream.send(wire.stop_status(wire.PERMISSION_DENIED))
        elif connection.circuits >= self._limits.circuits:
            await stream.send(wire.stop_status(wire.RESOURCE_LIMIT_EXCEEDED))
        else:
            await stream.send(wire.stop_status(wire.OK))
            connection.circuits += 1
            try:
                self._on_circuit(stream, source, relay.address)
                await _hold(connection, stream)
            finally:
                connection.circuits -= 1


def _source(body: bytes) -> PeerId | int:
    """Return the source that a STOP message names, or the status with which to refuse the
    message."""
    try:
        message = StopMessage.decode(body)
    except Fault:
        return wire.MALFORMED_MESSAGE
    if message.kind != wire.STOP_CONNECT or message.peer is None:
        return wire.UNEXPECTED_MESSAGE
    try:
        return parse_peer_id(message.peer)
    except TransportError:  # not an Ed25519 key, so the peer could not link to this node
        return wire.PERMISSION_DENIED


async def _hold(connection: Libp2pConnection, stream: MuxStream) -> None:
    """Prevent the idle timeout of a connection until the circuit over it is closed."""
    with connection.held():
        await stream.wait_closed()
