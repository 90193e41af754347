"""Byte streams that come in or were punched, on their way to become paths of links."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from .. import defaults
from ..bytestream import ByteStream, PathKind
from ..dial.endpoint import Endpoint
from ..errors import DialFailed
from ..identity import PeerId
from ..udp.quic import QuicByteStream


class Incoming:
    """Joiner of incoming byte streams to links. `nursery` is set while the node serves."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.nursery: trio.Nursery | None = None
        self._endpoint = endpoint

    def take(self, pipe: ByteStream, take: Callable[..., Awaitable[None]], *told: object) -> None:
        """Run `take(pipe, *told)` in a task of its own, or close the byte stream."""
        if self.nursery is None:
            pipe.close()
        else:
            guard = self._endpoint.guard
            guard.start(self.nursery, pipe.remote, take, pipe, *told, end=pipe.close)

    async def join(
        self, pipe: ByteStream, path_kind: PathKind, expect: PeerId | None, server: bool
    ) -> None:
        """Let a byte stream carry the link to its peer, if the peer proves itself in time."""
        with suppress(DialFailed), trio.move_on_after(defaults.HANDSHAKE_S):
            await self._endpoint.join(pipe, path_kind, expect=expect, server=server)
            if isinstance(pipe, QuicByteStream):
                pipe.trust()
