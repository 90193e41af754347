"""Openings of circuits for which no caller waits any more."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind
from shoal.transport.guard import Guard
from shoal.transport.identity import Identity
from shoal.transport.peertasks import PeerTasks
from shoal.transport.strategies.circuits import Circuits

PEER, RELAY = (Identity.from_seed(bytes([number]) * 32).peer for number in (1, 2))
ADDRESS = Address.parse(f"/ip4/9.9.9.9/tcp/4001/p2p/{RELAY}")


@pytest.mark.trio
@pytest.mark.parametrize("carried", [True, False])
async def test_an_opening_without_waiting_callers(carried: bool, autojump_clock: MockClock) -> None:
    """It ends if another path carries the link by then; otherwise it may still be useful."""
    links: list[Any] = []
    opened: list[str] = []

    async def link_relay(*_args: object) -> None:
        await trio.lowlevel.checkpoint()

    async def dial(*_args: object, timeout: float) -> Any:
        await trio.sleep(1)
        return SimpleNamespace(seen=None, failure=None)

    async def join(*_args: object, **_options: object) -> Any:
        opened.append("circuit")
        await trio.sleep(1)
        return SimpleNamespace(path_kind=PathKind.RELAYED)

    endpoint = SimpleNamespace(
        link=lambda peer: links[0] if links else None, guard=Guard(), join=join
    )
    tasks = PeerTasks(endpoint.guard)
    knowledge = SimpleNamespace(vouch=lambda *_args: None)
    circuits = Circuits(
        cast(Any, endpoint),
        cast(Any, SimpleNamespace(dial=dial)),
        cast(Any, None),
        cast(Any, knowledge),
        cast(Any, SimpleNamespace(link_relay=link_relay, improve=lambda link, at_once: None)),
        tasks,
    )
    async with trio.open_nursery() as nursery:
        with tasks.run_in(nursery), trio.move_on_after(0.5):
            if carried:
                nursery.start_soon(later, links)
            await circuits.dial(ADDRESS, PEER)
    assert opened == ([] if carried else ["circuit"])


async def later(links: list[Any]) -> None:
    """Add another circuit to the peer just before the dialer gives up."""
    await trio.sleep(0.4)
    links.append(SimpleNamespace(path_kind=PathKind.RELAYED, connected=True))
