"""Reservations and circuits over real links on loopback."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio
import trio.testing

from shoal.transport.errors import CallRefused
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.rates import Rate, Rates
from shoal.transport.relay import client, standing
from shoal.transport.relay import service as relay_service
from shoal.transport.relay.book import Asker
from shoal.transport.relay.client import RelayClient
from shoal.transport.relay.defaults import (
    FETCHES_BY_ASKER,
    FETCHES_OF_TARGET,
    LOOK_S,
    WINDOW_BYTES,
    RelayLimits,
)
from shoal.transport.relay.service import RelayService
from tests.transport.fleet import Node, clock, make_node, running, until
from tests.transport.pipes import read, receive, write
from tests.transport.relay.circuits import FAST, relayed, secure
from tests.transport.swarmkey import SwarmKey

pytestmark = pytest.mark.trio


@pytest.fixture
def virtual_time() -> Iterator[trio.testing.MockClock]:
    yield clock()


async def stopped(node: Node) -> None:
    await until(lambda: node.stopped)


async def refused(link: object, header: dict[str, object]) -> str:
    """The code by which `relay.connect` with a header ends."""
    stream = await link.open_stream("relay.connect", header)  # type: ignore[attr-defined]
    with pytest.raises(CallRefused) as caught:
        while True:
            await stream.receive(1000)
    return caught.value.code


async def test_tls_between_the_ends(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        paths = await secure(
            near, far, Identity.from_seed(bytes([1]) * 32), Identity.from_seed(bytes([2]) * 32)
        )
        assert paths[0].tls.peer == trio_.b.endpoint.peer
        assert paths[1].tls.peer == trio_.a.endpoint.peer == trio_.arrived[0].source
        paths[0].send(b"to b")
        paths[1].send(b"to a")
        assert await paths[1].receive() == b"to b"
        assert await paths[0].receive() == b"to a"


async def test_each_side_is_told_where_the_relay_sees_the_other(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        await write(far, b"x")
        assert await receive(near) == b"x"
        seen_a = trio_.link(trio_.a).status.address
        seen_b = trio_.link(trio_.b).status.address
        assert near.seen == (*seen_b, 0, "")
        assert far.seen == trio_.arrived[0].seen == (*seen_a, 0, "")
        (held,) = trio_.cb.relays
        assert held.seen == (*seen_b, 0, "")


async def test_the_other_end_is_told_where_one_is_seen_now(virtual_time: object) -> None:
    async with relayed() as trio_:
        told: list[tuple[str, object]] = []
        trio_.cb.on_seen(lambda peer, seen, _: told.append((peer, seen)))
        _, far = await trio_.dial()
        await trio_.a.endpoint.reach(trio_.r.address, timeout=5)
        await until(lambda: told)
        place = trio_.link(trio_.a).status.address
        assert told[0] == (trio_.a.endpoint.peer, (*place, 0, ""))
        assert far.seen is not None  # it is still open


async def test_a_relay_vouches_only_for_peers_with_a_circuit(
    virtual_time: object,
) -> None:
    async with relayed() as trio_:
        told: list[object] = []
        trio_.cb.on_seen(lambda peer, seen, _: told.append(peer))
        header = {"peer": trio_.a.endpoint.peer, "seen": ["11.0.0.1", 1, 1, ""]}
        with pytest.raises(CallRefused) as caught:
            await trio_.link(trio_.b).call("relay.seen", header, timeout=5)
        assert caught.value.code == "no-circuit"
        assert not told
        near, _ = await trio_.dial()  # the twin
        await trio_.link(trio_.b).call("relay.seen", header, timeout=5)
        assert told
        assert near.failure is None


async def test_bytes_arrive_both_ways_and_the_ends_pass(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        data = RealHost().entropy(3_000_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, near, data)
            nursery.start_soon(write, far, data[::-1])
            got = await read(far, len(data))
            back = await read(near, len(data))
        assert (got, back) == (data, data[::-1])
        near.end()
        assert await receive(far) == b""
        await write(far, b"still open the other way")
        assert await receive(near) == b"still open the other way"
        far.end()
        assert await receive(near) == b""
        await until(lambda: not trio_.service.book.figures().circuits)
        assert trio_.service.book.figures().relayed == 2 * len(data) + 24


async def test_closing_one_end_ends_the_other(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        await write(far, b"x")
        near.close()
        with pytest.raises(OSError):
            await receive(far)
        assert far.failure == "closed"
        await until(lambda: not trio_.service.book.figures().circuits)
        near, far = await trio_.dial()
        far.close()
        with pytest.raises(OSError):
            await receive(near)
        assert near.failure == "closed"


@pytest.mark.parametrize("reading", [False, True])
async def test_a_slow_reader_costs_the_relay_little(virtual_time: object, reading: bool) -> None:
    """The twin reads: then everything passes."""
    async with relayed() as trio_:
        near, far = await trio_.dial()
        size, sent = 12 << 20, 0

        async def flood() -> None:
            nonlocal sent
            while sent < size:
                await write(near, bytes(1 << 16))
                sent += 1 << 16

        with trio.move_on_after(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood)
                if reading:
                    await read(far, size)
        if reading:
            assert sent == size
            return
        window = WINDOW_BYTES
        assert sent <= 3 * window + (1 << 19)
        held = sum(trio_.link(each)._lane.held for each in (trio_.a, trio_.b))
        assert held <= 2 * window + (1 << 19)
        assert trio_.link(trio_.a).alive and trio_.link(trio_.b).alive


async def test_calls_go_on_beside_a_stuck_circuit(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, _ = await trio_.dial()
        with trio.move_on_after(1):
            await write(near, bytes(8 << 20))
        link = trio_.a.endpoint.link(trio_.r.endpoint.peer)
        assert link is not None
        reply = await link.call("echo", {"n": 1}, timeout=5)
        assert reply.header == {"n": 1}


async def test_strangers_are_slowed_and_never_cut(virtual_time: object) -> None:
    """A circuit that ended after some bytes would break the link above it again and again."""
    rate = 100_000
    async with relayed(replace(FAST, rate=rate)) as trio_:
        trio_.service.member = lambda peer: None
        near, far = await trio_.dial()
        began, size = trio.current_time(), 1 << 20
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, near, bytes(size))
            assert await read(far, size) == bytes(size)
        assert near.failure is None
        assert trio.current_time() - began >= 0.9 * size / rate


async def test_strangers_are_cut_after_their_time(virtual_time: object) -> None:
    async with relayed(replace(FAST, stranger_s=5)) as trio_:
        trio_.service.member = lambda peer: 0.0 if peer == trio_.a.endpoint.peer else None
        trio_.cb.offer([])
        trio_.service.book.release(trio_.b.endpoint.peer)
        link = trio_.b.endpoint.link(trio_.r.endpoint.peer)
        assert link is not None
        reply = await link.call("relay.reserve", timeout=5)
        assert reply.header["seconds"] == 5
        near, _ = await trio_.dial()
        began = trio.current_time()
        with pytest.raises(OSError):
            await receive(near)
        assert near.failure == "expired"
        assert 4.9 <= trio.current_time() - began <= 5.5


async def test_members_share_what_the_owner_allows(virtual_time: object) -> None:
    rate = 200_000
    async with relayed(replace(FAST, rate=rate)) as trio_:
        circuits = [await trio_.dial() for _ in range(3)]
        got = [0, 0, 0]

        async def drain(index: int) -> None:
            while True:
                got[index] += len(await receive(circuits[index][1]))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for index, (near, _) in enumerate(circuits):
                nursery.start_soon(write, near, bytes(8 << 20))
                nursery.start_soon(drain, index)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        took = trio.current_time() - began
        assert 0.9 * rate * took <= sum(got) <= 1.1 * rate * took
        assert max(got) - min(got) <= 0.15 * sum(got)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({}, "bad-request"),
        ({"peer": 7}, "bad-request"),
        ({"peer": None}, "bad-request"),
        ({"peer": ["12D3"]}, "bad-request"),
        ({"peer": "12D3"}, "bad-peer-id"),
        ({"peer": "x" * 30_000}, "bad-peer-id"),
        ({"peer": str(Identity.from_seed(bytes([9]) * 32).peer)}, "no-reservation"),
        ({"peer": str(Identity.from_seed(bytes([1]) * 32).peer)}, "self"),
    ],
)
async def test_lies_in_the_header_are_refused(
    virtual_time: object, header: dict[str, object], code: str
) -> None:
    async with relayed() as trio_:
        link = await trio_.a.endpoint.dial(trio_.r.address, timeout=5)
        assert await refused(link, header) == code
        assert link.alive
        await trio_.dial()


async def test_a_target_that_is_gone_or_takes_none_unasked(
    virtual_time: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "UNASKED", 0)
    async with relayed(reserve=False) as trio_:
        link = await trio_.a.endpoint.dial(trio_.r.address, timeout=5)
        header: dict[str, object] = {"peer": trio_.b.endpoint.peer}
        assert await refused(link, header) == "no-reservation"
        await trio_.b.endpoint.dial(trio_.r.address, timeout=5)
        assert await refused(link, header) == "no-reservation"
        book = trio_.service.book
        book.reserve(Asker(trio_.b.endpoint.peer, "127.0.0.1", 0.0), trio.current_time())
        assert await refused(link, header) == "no-reservation"  # says b
        trio_.link(trio_.b).close()
        await until(lambda: not book.figures().reservations)
        assert await refused(link, header) == "no-reservation"


async def test_a_member_that_is_linked_is_reached_without_a_place(virtual_time: object) -> None:
    async with relayed(reserve=False) as trio_:
        await trio_.b.endpoint.dial(trio_.r.address, timeout=5)
        await until(lambda: trio_.r.endpoint.link(trio_.b.endpoint.peer))
        near, far = await trio_.dial()
        await write(near, b"x")
        assert await receive(far) == b"x"


async def test_a_stranger_is_not(virtual_time: object) -> None:
    async with relayed(reserve=False) as trio_:
        trio_.service.member = lambda peer: 0.0 if peer != trio_.a.endpoint.peer else None
        await trio_.b.endpoint.dial(trio_.r.address, timeout=5)
        link = await trio_.a.endpoint.dial(trio_.r.address, timeout=5)
        await until(lambda: trio_.r.endpoint.link(trio_.b.endpoint.peer))
        assert await refused(link, {"peer": trio_.b.endpoint.peer}) == "no-reservation"


@pytest.mark.parametrize("bounded", [True, False])
async def test_a_peer_cannot_make_a_relay_dial_endlessly(
    virtual_time: object, bounded: bool
) -> None:
    """Neither others nor one; the twin has no bound."""
    tried: list[PeerId] = []

    async def fetch(peer: PeerId) -> None:
        tried.append(peer)

    async with relayed(reserve=False) as trio_:
        trio_.service.fetch = fetch
        if not bounded:
            trio_.service._asked_by = trio_.service._asked_for = Rates(Rate(1000, 1.0))
        link = await trio_.a.endpoint.dial(trio_.r.address, timeout=5)
        others = [str(Identity.from_seed(bytes([n]) * 32).peer) for n in range(20, 32)]
        for peer in [*others[:1] * 5, *others]:
            assert await refused(link, {"peer": peer}) == "no-reservation"
        in_vain = 6 - FETCHES_OF_TARGET[0]
        assert len(tried) == (FETCHES_BY_ASKER[0] - in_vain if bounded else 17)
        assert tried.count(PeerId(others[0])) == (FETCHES_OF_TARGET[0] if bounded else 6)


async def test_a_node_that_does_not_volunteer(virtual_time: object) -> None:
    async with relayed(RelayLimits(), reserve=False) as trio_:
        link = await trio_.b.endpoint.dial(trio_.r.address, timeout=5)
        for method in ("relay.info", "relay.reserve"):
            with pytest.raises(CallRefused) as caught:
                await link.call(method, timeout=5)
            assert caught.value.code == "not-a-relay"
        assert await refused(link, {"peer": trio_.a.endpoint.peer}) == "not-a-relay"


async def test_no_relay_of_relays(virtual_time: object, monkeypatch: pytest.MonkeyPatch) -> None:
    far: set[PeerId] = set()
    monkeypatch.setattr(relay_service, "is_relayed", lambda link: link.peer in far)
    async with relayed() as trio_:
        far.add(trio_.a.endpoint.peer)
        link = await trio_.a.endpoint.dial(trio_.r.address, timeout=5)
        assert await refused(link, {"peer": trio_.b.endpoint.peer}) == "relayed"
        with pytest.raises(CallRefused) as caught:
            await link.call("relay.reserve", timeout=5)
        assert caught.value.code == "relayed"
        far.clear()
        far.add(trio_.b.endpoint.peer)
        assert await refused(link, {"peer": trio_.b.endpoint.peer}) == "target-gone"
        assert not trio_.service.book.figures().circuits


async def test_many_identities_of_one_subnet_get_eight_places(virtual_time: object) -> None:
    host = RealHost()
    relay = make_node(3)
    service = RelayService(host, relay.endpoint, RelayLimits(volunteer=True))
    many = [make_node(seed) for seed in range(10, 30)]
    async with running(relay, *many):
        refusals = []
        for node in many:
            link = await node.endpoint.dial(relay.address, timeout=5)
            try:
                await link.call("relay.reserve", timeout=5)
            except CallRefused as error:
                refusals.append(error.code)
        assert refusals == ["subnet-full"] * 12
        assert service.book.figures().reservations == 8


async def test_a_flood_of_circuits_is_bounded(virtual_time: object) -> None:
    async with relayed() as trio_:
        link = await trio_.a.endpoint.dial(trio_.r.address, timeout=5)
        codes = []
        for _ in range(20):
            stream = await link.open_stream("relay.connect", {"peer": trio_.b.endpoint.peer})
            await trio.sleep(0.01)
            if stream.failed:
                codes.append(stream.failed)
        assert codes == ["too-many-circuits"] * 17
        assert trio_.service.book.figures().circuits == FAST.circuits_per_pair
        trio_.link(trio_.a).close()
        await until(lambda: not trio_.service.book.figures().circuits)


async def test_the_relay_dies_during_a_transfer(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        await write(near, b"x")
        assert await receive(far) == b"x"
        trio_.r.scope.cancel()
        for byte_stream in (near, far):
            with pytest.raises(OSError):
                while True:
                    await receive(byte_stream)
            assert byte_stream.failure == "link-lost"
        await until(lambda: not trio_.cb.addresses())


async def test_a_side_that_vanishes_ends_its_circuits(virtual_time: object) -> None:
    async with relayed() as trio_:
        near, far = await trio_.dial()
        trio_.link(trio_.a).close()
        with pytest.raises(OSError):
            await receive(far)
        assert far.failure == "source-gone"
        near, far = await trio_.dial()
        trio_.link(trio_.b).close()
        with pytest.raises(OSError):
            await receive(near)
        assert near.failure == "link-lost"
        await until(lambda: not trio_.service.book.figures().circuits)


async def test_a_target_that_resets_while_the_source_reads_nothing(virtual_time: object) -> None:
    """The direction that waits for the source to read must notice the end of the other one."""
    async with relayed() as trio_:
        near, far = await trio_.dial()
        with trio.move_on_after(1):
            await write(far, bytes(8 << 20))
        far.close()
        await trio.sleep(LOOK_S + 0.5)
        assert not trio_.service.book.figures().circuits
        near.close()


async def test_cancelling_the_relay_at_any_moment_leaves_nothing_open(virtual_time: object) -> None:
    for delay in (0.0, 0.001, 0.003, 0.01):
        async with relayed() as trio_:
            byte_stream = await trio_.ca.dial(trio_.r.address, trio_.b.endpoint.peer, timeout=5)
            await trio.sleep(delay)
            trio_.r.scope.cancel()
            await stopped(trio_.r)
            assert not trio_.service.book.figures().circuits
            byte_stream.close()


async def test_circuits_may_not_overtake_the_relay_s_own_calls(
    virtual_time: object,
) -> None:
    async with relayed() as trio_:
        near = await trio_.ca.dial(
            trio_.r.address, trio_.b.endpoint.peer, timeout=5, priority=Priority.CONTROL
        )
        await until(lambda: trio_.arrived)
        assert trio_.arrived[0].byte_stream.stream.priority == Priority.ACTIVATION
        near.close()


async def test_a_target_without_a_client_refuses(virtual_time: object) -> None:
    a, b, r = (make_node(seed) for seed in (1, 2, 3))
    service = RelayService(RealHost(), r.endpoint, FAST)
    client = RelayClient(RealHost(), a.endpoint)
    async with running(a, b, r):
        await b.endpoint.dial(r.address, timeout=5)
        service.book.reserve(Asker(b.endpoint.peer, "127.0.0.1", 0.0), trio.current_time())
        byte_stream = await client.dial(r.address, b.endpoint.peer, timeout=5)
        with pytest.raises(OSError):
            await receive(byte_stream)
        assert byte_stream.failure == "unknown-method"


async def test_newcomers_of_an_open_swarm_are_strangers(
    virtual_time: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until they have been linked for a while; those that a private group lets in are not."""
    monkeypatch.setattr(standing, "STANDING_S", 5.0)
    async with relayed(reserve=False) as trio_:
        trio_.service.member = trio_.service.since
        link = await trio_.b.endpoint.dial(trio_.r.address, timeout=5)

        async def lasts() -> object:
            return (await link.call("relay.reserve", timeout=5)).header["seconds"]

        assert await lasts() == FAST.stranger_s
        trio_.r.endpoint.admit_by(SwarmKey(b"a key of a private swarm"))
        assert await lasts() == FAST.member_s
        trio_.r.endpoint.admit_by(OpenSwarm())
        assert await lasts() == FAST.stranger_s
        await trio.sleep(5)
        assert await lasts() == FAST.member_s


async def test_a_relay_counts_newcomers_as_strangers_unless_told_otherwise(
    virtual_time: object,
) -> None:
    """A newcomer's circuit has the stranger's limit even if its target is a member."""
    a, r = make_node(1), make_node(3)
    service = RelayService(RealHost(), r.endpoint, FAST)
    async with running(a, r):
        link = await a.endpoint.dial(r.address, timeout=5)
        reply = await link.call("relay.reserve", timeout=5)
        assert reply.header["seconds"] == FAST.stranger_s
        near = r.endpoint.link(a.endpoint.peer)
        service.book.reserve(Asker("b", "127.0.0.2", 0.0), trio.current_time())
        links = near, near
        opened = service._open(a.endpoint.peer, PeerId("b"), *links)
        assert not isinstance(opened, str)
        assert opened[0].deadline == trio.current_time() + FAST.stranger_s
        assert opened[0].stranger is not None


async def test_peers_are_told_when_it_begins_to_relay_and_when_it_ends(
    virtual_time: object,
) -> None:
    async with relayed(RelayLimits(), reserve=False) as trio_:
        await trio_.b.endpoint.dial(trio_.r.address, timeout=5)
        trio_.cb.met([(trio_.r.endpoint.peer, trio_.r.address)])
        await trio.sleep(30)
        assert not trio_.cb.addresses()
        trio_.service.reachable = True
        await until(trio_.cb.addresses)
        trio_.service.reachable = False
        await until(lambda: not trio_.cb.addresses())
