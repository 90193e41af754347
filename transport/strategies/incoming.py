"""Byte streams that are accepted or punched, on their way to become paths of links."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from .. import defaults
from ..bytestream import ByteStream, PathKind
from ..dial.endpoint import Endpoint
from ..errors import DialFailed
from ..identity import PeerId
from ..peertasks import PeerTasks
from ..udp.quic import QuicByteStream


class Incoming:
    """Starter of the tasks that turn incoming byte streams into paths."""

    def __init__(self, endpoint: Endpoint, tasks: PeerTasks) -> None:
        self._endpoint = endpoint
        self._tasks = tasks

    def take(
        self, byte_stream: ByteStream, take: Callable[..., Awaitable[None]], *told: object
    ) -> None:
        """Run `take(byte_stream, *told)` in a task of its own. If the node does not serve, close
        the byte stream."""
        if not self._tasks.start(
            byte_stream.remote, take, byte_stream, *told, end=byte_stream.close
        ):
            byte_stream.close()

    async def join(
        self, byte_stream: ByteStream, path_kind: PathKind, expect: PeerId | None, server: bool
    ) -> None:
        """Turn a byte stream into a path of the link to its peer, if the peer authenticates itself
        in time.

        `expect` is the peer that must be at the other end; None accepts any. `server` selects the
        TLS server.
        """
        with suppress(DialFailed), trio.move_on_after(defaults.HANDSHAKE_S):
            await self._endpoint.join(byte_stream, path_kind, expect=expect, server=server)
            if isinstance(byte_stream, QuicByteStream):
                byte_stream.trust()
