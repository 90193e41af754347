"""The shell: what keeps a connection, what ends it, and being cancelled at every moment."""

from typing import Any

import pytest
import trio

from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import Libp2pLimits, defaults
from shoal.transport.libp2p.connection import Libp2pConnection
from shoal.transport.libp2p.muxstream import MuxStream
from tests.transport.libp2p.pipes import THEIRS, byte_stream_pair, connected, responder

pytestmark = pytest.mark.trio


def serving(limits: Libp2pLimits | None = None) -> tuple[Any, list[Libp2pConnection]]:
    """A responder that keeps its connections for us to look at."""
    ours, seen = responder(limits), []
    make = ours._connection

    def kept(*args: Any) -> Libp2pConnection:
        seen.append(make(*args))
        return seen[-1]

    ours._connection = kept  # type: ignore[method-assign, assignment]
    return ours, seen


async def test_a_connection_is_held_while_it_is_in_use(autojump_clock: Any) -> None:
    ours, seen = serving()
    async with connected(ours) as peer:
        assert seen[0].peer == THEIRS.peer and seen[0].ip == "192.0.2.1"
        with seen[0].held():
            await trio.sleep(1000)
            assert peer.alive
        seen[0].keep(trio.current_time() + 500)
        await trio.sleep(450)
        assert peer.alive
        await trio.sleep(100)
        assert not peer.alive and seen[0].code == "idle"


async def test_a_connection_that_is_held_must_give_signs_of_life(autojump_clock: Any) -> None:
    ours, seen = serving()
    async with connected(ours) as peer:
        peer.session.yamux._on_ping = lambda flags, size: None  # type: ignore[method-assign]
        with seen[0].held():
            await trio.sleep(defaults.SILENT_S + defaults.PING_S)
        assert seen[0].code == "silent"


async def test_a_stream_that_says_no_protocol_is_given_up(autojump_clock: Any) -> None:
    async with connected(responder()) as peer:
        stream: MuxStream = peer._shell(peer.session.yamux.open())
        peer._flush()
        began = trio.current_time()
        await stream.wait_closed()
        assert trio.current_time() - began == pytest.approx(defaults.REQUEST_S, abs=0.1)


async def test_streams_whose_protocol_is_unknown_leave_nothing(autojump_clock: Any) -> None:
    ours, seen = serving()
    async with connected(ours) as peer:
        for _ in range(200):
            with pytest.raises(Fault, match="no-protocol"):
                await peer.open("/nothing/1")
        await trio.sleep(1)
        assert not seen[0].session.yamux.channels
        assert seen[0].session.yamux.held == 0


async def test_cancelled_at_any_moment_it_closes_everything(autojump_clock: Any) -> None:
    for steps in range(60):
        near, far = byte_stream_pair()
        ours, seen = serving()
        scope = trio.CancelScope()

        async def talk(byte_stream: Any = near) -> None:
            from tests.transport.libp2p.pipes import introduce

            try:
                await introduce(byte_stream)
            except (Fault, OSError, trio.ClosedResourceError):
                return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)

            async def serve(ours: Any = ours, far: Any = far, scope: Any = scope) -> None:
                with scope:
                    await ours.serve_byte_stream(far, b"")

            nursery.start_soon(serve)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            scope.cancel()
        assert far.closed
        assert all(connection.code is not None for connection in seen)
        assert not ours._crowd.count
