"""Serves libp2p programs on our TCP port: identify, ping, published calls, circuits.

Only Noise and yamux are supported. None of these peers is a member. The libp2p package is imported
when the first one comes (package.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import trio

from ..address import Address
from ..bytestream import ByteStream, TcpByteStream
from ..host.seam import Host
from ..identity import Identity
from ..limits import Crowd
from ..link.calls import Handler
from ..rates import MemoryBudget
from ..relay.book import RelayBook
from . import defaults
from .calls import CALL, CallService
from .circuit import HOP
from .connection import Connection, Serve
from .hop import HopService
from .identify import IDENTIFY, IDENTIFY_PUSH, identify_answer
from .limits import Libp2pLimits
from .muxstream import MuxStream
from .pace import Pace
from .package import package
from .session import Session

PING: Final = "/ipfs/ping/1.0.0"
_PING_BYTES: Final = 32
_LISTED: Final = 16  # addresses in an identify message


class Libp2pResponder:
    """libp2p part of a listener: `serve` is called per connection whose first byte is 0x13.

    `published` returns the methods that strangers may call. `relay` is the book of a node that may
    relay (its limits say whether it does).
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        *,
        addresses: Callable[[], Sequence[Address]],
        published: Callable[[], Mapping[str, Handler]] = dict,
        relay: RelayBook | None = None,
        limits: Libp2pLimits | None = None,
    ) -> None:
        self._host = host
        self._identity = identity
        self._addresses = addresses
        self._published = published
        self._limits = limits or Libp2pLimits()
        self._crowd = Crowd(
            self._limits.connections,
            self._limits.connections_per_subnet,
            self._limits.connections_loopback,
        )
        self._budget = MemoryBudget(self._limits.total_bytes)
        self._pace = Pace(self._limits.rate, self._limits.burst_bytes)
        self._calls = CallService(published, self._limits)
        self._hop: HopService | None = None
        if relay is not None:
            self._hop = HopService(host, identity, relay, addresses=addresses, limits=self._limits)

    async def serve(self, stream: trio.SocketStream, first: bytes) -> None:
        """Serve one peer until it is done or exceeds a limit, then close the connection.

        `first` are the bytes already read. Nothing that the peer does raises.
        """
        await self.serve_byte_stream(TcpByteStream(stream), first)

    async def serve_byte_stream(
        self, pipe: ByteStream, first: bytes, *, relayed: bool = False
    ) -> str:
        """Serve a peer over any pipe, `relayed` if it is a circuit; return why it ended."""
        entry = self._crowd.enter(pipe.remote[0], self._host.now())
        if entry is None:
            pipe.close()
            return "full"
        try:
            await self._host.offload(package)
            await self._pace.spend(defaults.HANDSHAKE_COST)
            return await self._run(self._connection(pipe, relayed), first)
        finally:
            self._crowd.leave(entry)
            pipe.close()

    async def _run(self, connection: Connection, first: bytes) -> str:
        try:
            await connection.run(first)
        finally:
            if self._hop is not None:
                self._hop.gone(connection)
        return connection.code or "closed"

    def protocols(self) -> dict[str, Serve]:
        """Return what is served now, by protocol id."""
        found: dict[str, Serve] = {
            IDENTIFY: self._serve_identify,
            IDENTIFY_PUSH: _hear_push,
            PING: _answer_pings,
        }
        if self._published():
            found[CALL] = self._calls.serve
        if self._hop is not None and self._hop.offered:
            found[HOP] = self._hop.serve
        return found

    def _connection(self, pipe: ByteStream, relayed: bool) -> Connection:
        limits = self._limits
        session = Session(self._identity, dialled=False, entropy=self._host.entropy, limits=limits)
        return Connection(
            pipe,
            session,
            host=self._host,
            limits=limits,
            protocols=self.protocols,
            budget=self._budget,
            paces=(Pace(limits.peer_rate, limits.peer_burst_bytes), self._pace),
            relayed=relayed,
        )

    async def _serve_identify(self, connection: Connection, stream: MuxStream) -> None:
        ip, port = connection.remote
        listening = [replace(address, peer=None) for address in self._addresses()[:_LISTED]]
        answer = identify_answer(
            self._identity.public_key,
            listening,
            Address(ip, port) if ip else None,
            list(self.protocols()),
        )
        await stream.send(answer)
        connection.progress()


async def _hear_push(connection: Connection, stream: MuxStream) -> None:
    """Read and ignore an identify push, because refusing it would reset the stream."""
    await stream.receive_message(defaults.IDENTIFY_BYTES)
    connection.progress()


async def _answer_pings(connection: Connection, stream: MuxStream) -> None:
    while payload := await stream.receive(_PING_BYTES):
        rest = await stream.receive_exactly(_PING_BYTES - len(payload))
        await connection.pay(defaults.PING_COST)
        await stream.send(payload + rest)
        connection.progress()
