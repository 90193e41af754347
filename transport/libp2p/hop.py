"""Circuit relay v2 for libp2p peers: grants reservations, and copies bytes between two streams.

It serves only while this node relays. All limits are those of the relay's book, which peers with a
lane use as well. libp2p peers count as strangers there.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from ..address import Address
from ..host.seam import Host
from ..identity import Identity
from ..lane.frame import Fault
from ..relay.book import Asker, Circuit, RelayBook
from . import circuit as wire
from . import defaults
from .circuit import CircuitLimit, HopMessage, StopMessage
from .connection import Libp2pConnection
from .limits import Libp2pLimits
from .muxstream import MuxStream
from .package import encode_address

_NAME: Final = "libp2p/"  # prefix in the book, because a peer's lane has a separate reservation
_STATUS: Final = {
    "not-a-relay": wire.PERMISSION_DENIED,
    "relayed": wire.PERMISSION_DENIED,
    "self": wire.PERMISSION_DENIED,
    "no-reservation": wire.NO_RESERVATION,
    "subnet-full": wire.RESOURCE_LIMIT_EXCEEDED,
    "full": wire.RESOURCE_LIMIT_EXCEEDED,
    "too-many-circuits": wire.RESOURCE_LIMIT_EXCEEDED,
}
_CHUNK: Final = 16 * 1024  # largest number of bytes that are copied at once
_LISTED: Final = 8  # largest number of addresses in a reservation


class HopService:
    """Server of HOP streams. `addresses` returns the addresses on which this node listens."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        book: RelayBook,
        *,
        addresses: Callable[[], Sequence[Address]],
        limits: Libp2pLimits,
    ) -> None:
        self._host = host
        self._identity = identity
        self._book = book
        self._addresses = addresses
        self._limits = limits
        self._reserved: dict[str, Libp2pConnection] = {}

    @property
    def offered(self) -> bool:
        """Whether this node relays now."""
        return self._book.lends

    def gone(self, connection: Libp2pConnection) -> None:
        """Release the reservations of a connection that has ended."""
        for peer in [peer for peer, found in self._reserved.items() if found is connection]:
            del self._reserved[peer]
            self._book.release(_NAME + peer)

    async def serve(self, connection: Libp2pConnection, stream: MuxStream) -> None:
        """Serve the one request of a stream.

        Raises Fault if the request is malformed or the stream ends early.
        """
        await connection.pay(defaults.CALL_COST)
        with trio.fail_after(self._limits.request_s):
            body = await stream.receive_message(defaults.CIRCUIT_MESSAGE_BYTES)
        try:
            message = HopMessage.decode(body)
            if message.kind == wire.HOP_STATUS:
                await stream.send(wire.hop_status(wire.UNEXPECTED_MESSAGE))
            elif message.kind == wire.RESERVE:
                await stream.send(self._reserve(connection))
                connection.progress()
            elif message.peer is None:
                raise Fault("bad-message")
            else:
                await self._connect(connection, stream, message.peer)
        except Fault as fault:
            if fault.code != "bad-message":
                raise
            await stream.send(wire.hop_status(wire.MALFORMED_MESSAGE))

    def _reserve(self, connection: Libp2pConnection) -> bytes:
        """Return the reply to RESERVE. The connection stays open as long as the reservation."""
        now = self._host.now()
        granted = self._book.reserve(_asker(connection), now)
        if isinstance(granted, str):
            return wire.hop_status(_STATUS.get(granted, wire.RESERVATION_REFUSED))
        self._reserved[connection.peer] = connection
        connection.keep(granted.expires)
        expires = int(self._host.wall() + granted.expires - now)
        listed = [encode_address(address) for address in self._addresses()[:_LISTED]]
        proof = wire.voucher(self._identity, connection.peer, expires)
        body = wire.reservation(expires, listed, proof)
        return wire.hop_status(wire.OK, allowance=self._allowance(), reservation=body)

    def _allowance(self) -> CircuitLimit:
        """Return the limits of a circuit."""
        return CircuitLimit(int(self._book.limits.stranger_s), self._limits.circuit_bytes)

    async def _connect(self, connection: Libp2pConnection, stream: MuxStream, peer: str) -> None:
        """Serve CONNECT: open a circuit in the book, and copy its bytes until it ends."""
        circuit = self._book.open_circuit(_asker(connection), _NAME + peer, self._host.now())
        if isinstance(circuit, str):
            await stream.send(wire.hop_status(_STATUS.get(circuit, wire.PERMISSION_DENIED)))
            return
        try:
            target = self._reserved.get(peer)
            if target is None:  # its connection has just ended
                await stream.send(wire.hop_status(wire.NO_RESERVATION))
                return
            with connection.held(), target.held():
                await self._join(connection, stream, target, circuit)
        finally:
            circuit.close()

    async def _join(
        self,
        connection: Libp2pConnection,
        stream: MuxStream,
        target: Libp2pConnection,
        circuit: Circuit,
    ) -> None:
        """Open a stream to the target, and copy bytes until the circuit ends."""
        far: MuxStream | None = None
        try:
            with trio.move_on_after(self._limits.request_s):
                far = await self._announce(connection.peer, target)
        except Fault:
            pass
        if far is None:
            await stream.send(wire.hop_status(wire.CONNECTION_FAILED))
            return
        try:
            await stream.send(wire.hop_status(wire.OK, allowance=self._allowance()))
            await self._splice(stream, far, circuit)
        finally:
            far.close()

    async def _announce(self, source: str, target: Libp2pConnection) -> MuxStream:
        """Return a stream to the target, on which the target has accepted the source.

        Raises Fault if the target refuses or is lost.
        """
        far = await target.open(wire.STOP)
        try:
            await far.send(wire.stop_connect(source, self._allowance()))
            answer = StopMessage.decode(await far.receive_message(defaults.CIRCUIT_MESSAGE_BYTES))
            if answer.kind != wire.STOP_STATUS or answer.status != wire.OK:
                raise Fault("refused")
        except BaseException:
            far.close()
            raise
        return far

    async def _splice(self, near: MuxStream, far: MuxStream, circuit: Circuit) -> None:
        """Copy both directions until both have ended. Reset both streams if a limit is reached."""
        over = True
        with trio.CancelScope(deadline=circuit.deadline):
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._copy, near, far, circuit)
                    nursery.start_soon(self._copy, far, near, circuit)
                over = False
            except* Fault:
                pass
        if over:
            near.close()
            far.close()

    async def _copy(self, source: MuxStream, sink: MuxStream, circuit: Circuit) -> None:
        """Copy one direction as the book allows. Raises Fault at a limit, or if an end is lost."""
        while True:
            await source.wait_readable()
            if source.at_end:
                sink.end()
                return
            data = await source.receive(await self._wait_for_room(circuit))
            if not circuit.spend(len(data), self._host.now()):
                raise Fault("expired")
            await sink.send(data)

    async def _wait_for_room(self, circuit: Circuit) -> int:
        """Return how many bytes may be copied now, at least 1. Raises Fault at a limit."""
        while True:
            now = self._host.now()
            left = self._limits.circuit_bytes - circuit.carried
            if left <= 0:
                raise Fault("limit")
            if circuit.over(now):
                raise Fault("expired")
            if room := circuit.room(now):
                return min(room, left, _CHUNK)
            await trio.sleep(circuit.pause())


def _asker(connection: Libp2pConnection) -> Asker:
    """Return a libp2p program as an asker for the book. No such program is a member."""
    return Asker(_NAME + connection.peer, connection.ip, relayed=connection.relayed)
