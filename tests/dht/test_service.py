"""service: `Dht` on real endpoints; records are found, and liars and strangers get nothing."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from shoal.dht import defaults
from shoal.dht.errors import BadRecord
from shoal.dht.kademlia.messages import Aged, Find, FindReply, StoreRequest, decode_codes
from shoal.dht.kademlia.presence import Addressing
from shoal.dht.lookup.foundrecords import FoundRecord
from shoal.dht.persistence import DhtFiles
from shoal.dht.records.record import PeerBody, open_record, seal_record
from shoal.dht.service import Dht
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import CallRefused, DialFailed, LinkClosed
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link
from tests.dht.ring import Node, name, ring
from tests.transport.swarmkey import SwarmKey

Open = Callable[..., Awaitable[list[Node]]]


async def until(condition: Callable[[], object], timeout: float = 20.0) -> None:
    with trio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def stop(*nodes: Node) -> None:
    for node in nodes:
        node.stop()
    await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_a_published_record_is_found_by_all(nursery: trio.Nursery) -> None:
    nodes = await ring(nursery, 5)
    body = name("tiny")
    nodes[1].dht.publish(body)
    report = await nodes[1].dht.flushed(10)
    assert (report.records, report.stored_least, report.done) == (1, 4, True)
    for node in nodes:
        found = await node.dht.find(body.key)
        assert [(each.record.author, each.record.body) for each in found.records] == [
            (nodes[1].peer, body)
        ]
    await stop(*nodes)


@pytest.mark.trio
async def test_a_look_up_returns_its_trace(nursery: trio.Nursery) -> None:
    nodes = await ring(nursery, 4)
    found = await nodes[0].dht.find(name("nothing").key)
    assert found.records == () and found.ended >= found.began
    assert {step.contact.peer for step in found.path} == {node.peer for node in nodes[1:]}
    assert {step.outcome for step in found.path} <= {"nothing", "contacts"}
    await stop(*nodes)


@pytest.mark.trio
async def test_the_latest_record_counts_and_a_withdrawn_one_is_not_found(
    nursery: trio.Nursery,
) -> None:
    nodes = await ring(nursery, 4)
    here = PeerBody(nodes[0].peer, ("/ip4/1.1.1.1/tcp/1",))
    there = PeerBody(nodes[0].peer, ("/ip4/2.2.2.2/tcp/2",))
    for body in (here, there):
        nodes[0].dht.publish(body)
        await nodes[0].dht.flushed(10)
    (found,) = (await nodes[2].dht.find(here.key)).records
    assert found.record.body == there and nodes[0].dht.own() == [there]
    nodes[0].dht.withdraw(there)
    await nodes[0].dht.flushed(10)
    assert nodes[0].dht.own() == []
    assert (await nodes[2].dht.find(here.key)).records == ()
    await stop(*nodes)


@pytest.mark.trio
async def test_many_keys_at_once(nursery: trio.Nursery) -> None:
    nodes = await ring(nursery, 6)
    bodies = [name(f"model {number}") for number in range(50)]
    for body in bodies:
        nodes[0].dht.publish(body)
    await nodes[0].dht.flushed(20)
    found = await nodes[5].dht.find_many([body.key for body in bodies])
    assert [found[body.key].records[0].record.body for body in bodies] == bodies
    last = nodes[0].dht.view().walk
    assert last is not None
    assert last.keys == 50 and last.messages <= 3 * 5, "one message per node, not per key"
    await stop(*nodes)


@pytest.mark.trio
async def test_records_of_many_authors_under_one_key_are_all_found(nursery: trio.Nursery) -> None:
    nodes = await ring(nursery, 8)
    bodies = [name("crowd", f"{number:064x}") for number in range(12)]
    async with trio.open_nursery() as writers:
        for number, body in enumerate(bodies):
            nodes[number % 8].dht.publish(body)
            writers.start_soon(nodes[number % 8].dht.flushed, 10)
    for node in nodes:
        found = await node.dht.find(bodies[0].key, enough=8)
        assert {each.record.body for each in found.records} == set(bodies)
    await stop(*nodes)


@pytest.mark.trio
async def test_the_second_path_counts(nursery: trio.Nursery) -> None:
    told = open_record(seal_record(Identity.from_seed(b"x" * 32), name("far"), made=1, ttl=600))
    second = [FoundRecord(told, 1.0, told.author)]
    (alone,) = await alone_ring(nursery, second_path=lambda key: second)
    (found,) = (await alone.dht.find(told.key)).records
    assert found.record is told
    second.clear()
    assert (await alone.dht.find(told.key)).records == ()
    await stop(alone)


async def alone_ring(nursery: trio.Nursery, **more: Any) -> list[Node]:
    node = Node(1, **more)
    await nursery.start(node.run)
    return [node]


@pytest.mark.trio
async def test_records_published_alone_are_announced_later(nursery: trio.Nursery) -> None:
    """They are announced to the first node that joins."""
    (alone,) = await alone_ring(nursery)
    alone.dht.publish(name("early"))
    assert not (await alone.dht.flushed(0.05)).done
    other = Node(2)
    await nursery.start(other.run, alone.address)
    await until(lambda: len(other.dht.store))
    assert (await other.dht.find(name("early").key)).records
    await stop(alone, other)


@pytest.mark.trio
async def test_an_invalid_record_is_refused_at_once(nursery: trio.Nursery) -> None:
    (alone,) = await alone_ring(nursery)
    with pytest.raises(BadRecord):
        alone.dht.publish(name("n" * 500))
    with pytest.raises(BadRecord):
        alone.dht.publish(PeerBody(Identity.from_seed(b"y" * 32).peer, ()))
    await stop(alone)


# Persistence.


async def saved(files: DhtFiles, *, contacts: int, records: int) -> bool:
    """Whether so much is on the disk: a busy machine takes long to write it."""
    found = await files.load()
    return len(found.contacts) >= contacts and len(found.records) >= records


@pytest.mark.trio
async def test_it_rejoins_through_a_remembered_peer_and_announces_again(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second start has no bootstrap peer. Twin: without the file it stays alone."""
    monkeypatch.setattr(defaults, "RECORDS_PAUSE", 0.02)
    monkeypatch.setattr(defaults, "CONTACTS_PAUSE", 0.02)
    nodes = await ring(nursery, 3)
    restarting = Node(9, folder=tmp_path / "dht")
    await nursery.start(restarting.run, nodes[0].address)
    await restarting.dht.joined()
    restarting.dht.publish(name("lasting"))
    restarting.dht.publish(name("passing"), lasting=False)
    await restarting.dht.flushed(10)
    files = DhtFiles(RealHost(), tmp_path / "dht")
    with trio.fail_after(30):
        while not await saved(files, contacts=3, records=2):  # noqa: ASYNC110
            await trio.sleep(0.02)
    restarting.stop()
    nodes[0].stop()  # the bootstrap peer does not come back
    await until(lambda: restarting.endpoint.port and not restarting.endpoint.listening)
    again = Node(9, folder=tmp_path / "dht")
    await nursery.start(again.run)
    with trio.fail_after(30):
        await again.dht.joined()
    await again.dht.flushed(20)
    assert again.dht.own() == [name("lasting")]
    assert (await nodes[1].dht.find(name("lasting").key)).records
    assert (await nodes[1].dht.find(name("passing").key)).records == ()
    again.stop()
    forgetful = Node(9)
    await nursery.start(forgetful.run)
    with trio.move_on_after(2) as alone:
        await forgetful.dht.joined()
    assert alone.cancelled_caught
    await stop(*nodes[1:], forgetful)


@pytest.mark.trio
async def test_a_disk_error_is_reported_and_survived(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "RECORDS_PAUSE", 0.02)
    folder = tmp_path / "dht"
    folder.write_bytes(b"in the way")
    told: list[OSError | None] = []
    node = Node(1, folder=folder, trouble=told.append)
    await nursery.start(node.run)
    node.dht.publish(name("kept"))
    await until(lambda: isinstance(told[-1] if told else None, OSError))
    folder.unlink()
    await until(lambda: told[-1] is None)
    assert (folder / "records").exists()
    await stop(node)


@pytest.mark.trio
async def test_leaving_withdraws_records_that_end_with_the_process(nursery: trio.Nursery) -> None:
    nodes = await ring(nursery, 3)
    nodes[0].dht.publish(name("model"))
    nodes[0].dht.publish(PeerBody(nodes[0].peer, ()), lasting=False)
    await nodes[0].dht.flushed(10)
    with trio.fail_after(2):
        await nodes[0].dht.leave(1.5)
    assert (await nodes[1].dht.find(PeerBody(nodes[0].peer, ()).key)).records == ()
    assert (await nodes[1].dht.find(name("model").key)).records
    await stop(*nodes)


@pytest.mark.trio
async def test_each_request_is_sent_before_the_next_is_prepared(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first reply waits until all requests have been written."""
    nodes = await ring(nursery, 5)
    asking, turns, at = nodes[0].dht.asking, 0, list[int]()

    async def beat() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    def noting(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def noted(*asked: Any) -> Any:
            at.append(turns)
            return await ask(*asked)

        return noted

    monkeypatch.setattr(asking, "store", noting(asking.store))
    monkeypatch.setattr(asking, "find", noting(asking.find))
    nursery.start_soon(beat)
    nodes[0].dht.publish(name("model"))
    await nodes[0].dht.flushed(10)
    assert len(at) == 4 and at[-1] - at[0] >= 2
    at.clear()
    await nodes[0].dht.searching.survey(name("nothing").key)
    assert len(at) == 4 and at[-1] - at[0] >= 2
    await stop(*nodes)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_its_own_contact_is_up_to_date() -> None:
    host, identity = RealHost(), Identity.from_seed(bytes(32))
    me = identity.peer
    reached, found = False, [Address("127.0.0.1", 1, me), Address("9.9.9.9", 4001, me)]

    async def refuse(peer: PeerId, addresses: object) -> Link:
        raise AssertionError

    dht = Dht(
        host,
        Endpoint(host, identity, admission=OpenSwarm()),
        Addressing(refuse, lambda: found, lambda: reached),
    )
    first = dht.presence.contact()
    assert first is not None and first.addresses == (found[0],)
    assert dht.presence.contact() is first
    reached = True
    second = dht.presence.contact()
    assert second is not None and second.addresses == (found[1], found[0])
    del found[0]
    third = dht.presence.contact()
    assert third is not None and third.addresses == (found[0],)


# Peers that lie, ask too much, or stay silent.


async def linked(nursery: trio.Nursery) -> tuple[Node, Node, Link]:
    """Start a node, and a second one that sends requests by hand; return them and their link."""
    victim, liar = Node(1), Node(2)
    await nursery.start(victim.run)
    await nursery.start(liar.endpoint.run, "127.0.0.1", 0)
    return victim, liar, await liar.endpoint.dial(victim.address, timeout=5)


HOSTILE = [
    b"",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\x91" * 5000,
    msgpack.packb({}),
    msgpack.packb({"keys": [b"short"]}),
    msgpack.packb({"keys": [b"k" * 32] * 33}),
    msgpack.packb({"keys": [], "most": -1}),
    msgpack.packb({"keys": [], "near": [b"k" * 32] * 5}),
    msgpack.packb({"keys": [], "kinds": ["\x1b[2J"]}),
    msgpack.packb({"keys": [], "serves": b"x"}),
    msgpack.packb({"keys": [], "serves": b"x" * 600}),
    msgpack.packb({"records": [[0, b"x" * 3000]]}),
    msgpack.packb({"records": [[-1, b"x"]]}),
    msgpack.packb({"records": [[0, b"x"]] * 257}),
    b"\x00" * 200_000,
]


@pytest.mark.trio
@pytest.mark.parametrize("method", ["dht.find", "dht.store"])
async def test_malformed_messages_close_the_link(nursery: trio.Nursery, method: str) -> None:
    victim, liar, link = await linked(nursery)
    for payload in HOSTILE:
        with pytest.raises(LinkClosed) as closed:
            await link.call(method, payload=payload, timeout=5)
        assert closed.value.code == "bad-request"
        link = await liar.endpoint.dial(victim.address, timeout=5)
    assert len(victim.dht.store) == 0 and len(victim.dht.table) == 0
    assert await link.call("dht.find", payload=Find(()).encode(), timeout=5)
    await stop(victim, liar)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_each_invalid_record_has_its_code_and_the_rest_is_stored(
    nursery: trio.Nursery,
) -> None:
    victim, liar, link = await linked(nursery)
    wall = int(liar.host.wall() * 1000)
    good = seal_record(liar.identity, name("good"), made=wall, ttl=600)
    other = seal_record(liar.identity, name("other"), made=wall, ttl=600)
    late = seal_record(liar.identity, name("late"), made=wall - 10**8, ttl=600)
    soon = seal_record(liar.identity, name("soon"), made=wall + 10**8, ttl=600)
    records = [good, late, soon, b"junk", good[:-1] + b"!", other]
    payload = StoreRequest(tuple(Aged(0, each) for each in records)).encode()
    reply = await link.call("dht.store", payload=payload, timeout=5)
    codes = decode_codes(bytes(reply.payload), len(records))
    assert codes == ("", "expired", "far-future", "bad-signature", "bad-signature", "bad-signature")
    assert len(victim.dht.store) == 1, "records after a forged one are not even checked"
    await stop(victim, liar)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_floods_are_rate_limited(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Twin: without the rate limits every request is answered.

    Only the bursts count here, because a busy machine may take seconds for these requests.
    """
    for rate in ("FINDS", "FINDS_ALL", "STORES", "STORES_ALL", "STORED", "STORED_ALL"):
        burst, _ = getattr(defaults, rate)
        monkeypatch.setattr(defaults, rate, (burst, 1e-9) if defended else (1e9, 1e9))
    victim, liar, link = await linked(nursery)
    refused: list[str] = []
    at_once = trio.Semaphore(100)  # a link takes 256 calls

    async def ask(method: str, payload: bytes) -> None:
        try:
            async with at_once:
                await link.call(method, payload=payload, timeout=20)
        except CallRefused as error:
            refused.append(error.code)

    async with trio.open_nursery() as flood:
        for _ in range(300):
            flood.start_soon(ask, "dht.find", Find(()).encode())
        for _ in range(100):
            flood.start_soon(ask, "dht.store", StoreRequest(()).encode())
    assert ({"busy"} <= set(refused)) is defended
    await stop(victim, liar)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_the_number_of_keys_is_rate_limited(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A request is charged for each of its keys. Twin: without this limit all are answered."""
    monkeypatch.setattr(defaults, "PLACES", (100.0, 1.0) if defended else (1e9, 1e9))
    victim, liar, link = await linked(nursery)
    many = Find(tuple(name(f"{n}").key for n in range(defaults.FIND_KEYS))).encode()
    for _ in range(3):
        await link.call("dht.find", payload=many, timeout=5)
    busy = False
    try:
        await link.call("dht.find", payload=many, timeout=5)
    except CallRefused as refused:
        busy = refused.code == "busy"
    assert busy is defended
    assert await link.call("dht.find", payload=Find(()).encode(), timeout=5)
    await stop(victim, liar)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_a_malformed_message_is_charged_as_several(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """It takes longer to handle than a valid one. Twin: it is charged once."""
    monkeypatch.setattr(defaults, "STORES", (8.0, 0.1))
    monkeypatch.setattr(defaults, "STORE_FAULT", 3 if defended else 0)
    victim, liar, link = await linked(nursery)
    codes = []
    for _ in range(8):
        try:
            await link.call("dht.store", payload=b"junk", timeout=5)
        except (CallRefused, LinkClosed) as refused:
            codes.append(refused.code)
        link = await liar.endpoint.dial(victim.address, timeout=5)
    assert codes.count("bad-request") == (2 if defended else 8)
    await stop(victim, liar)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_peer_that_never_replies_delays_a_walk_for_a_limited_time(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others store the record meanwhile, and a new record does not wait behind it."""
    for what, seconds in (("STORE_S", 0.5), ("FIND_S", 0.5), ("STORE_PAUSE", 0.1)):
        monkeypatch.setattr(defaults, what, seconds)
    nodes = await ring(nursery, 5)

    async def silent(_call: Any) -> Any:
        await trio.sleep_forever()

    nodes[4].endpoint.handle("dht.store", silent)
    began = trio.current_time()
    nodes[0].dht.publish(name("one"))
    await nodes[0].dht.flushed(10, kept=3)
    nodes[0].dht.publish(name("two"))
    await nodes[0].dht.flushed(10, kept=3)
    assert (await nodes[1].dht.find(name("two").key)).records
    report = await nodes[0].dht.flushed(10)
    assert report.done and report.stored_least == 3
    assert trio.current_time() - began < 8
    await stop(*nodes)


@pytest.mark.trio
@pytest.mark.parametrize("left", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_silent_peer_costs_little_where_others_answer(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """Neither a walk nor a look-up of a missing record waits until it times out. Twin: they do if
    late stores and late replies are not dropped."""
    if not left:
        monkeypatch.setattr(defaults, "STORE_ENOUGH", (99, 1.0))
        monkeypatch.setattr(defaults, "LATE_S", (4.0, 4.0))

    async def silent(_call: Any) -> Any:
        await trio.sleep_forever()

    nodes = await ring(nursery, 5)
    nodes[4].endpoint.handle("dht.store", silent)
    nodes[4].endpoint.handle("dht.find", silent)
    began = nodes[0].host.now()
    nodes[0].dht.publish(name("silence"))
    report = await nodes[0].dht.flushed(3.0)
    walked = nodes[0].host.now()
    found = await nodes[1].dht.find(name("nothing").key)
    ended = nodes[0].host.now()
    assert report.done == left and report.stored_least >= 3 and found.records == ()
    assert (walked - began < 3.0) == left
    assert (ended - walked < 3.0) == left
    await stop(*nodes)


@pytest.mark.trio
async def test_a_node_that_returns_a_forged_record_is_evicted(nursery: trio.Nursery) -> None:
    nodes = await ring(nursery, 4)
    forged = seal_record(nodes[3].identity, name("x"), made=1, ttl=600)[:-1] + b"!"

    def lie(_call: Any) -> Any:
        from shoal.transport.link.calls import Reply

        return Reply(payload=FindReply(((Aged(0, forged),),), ((), ())).encode())

    nodes[3].endpoint.handle("dht.find", lie)
    found = await nodes[0].dht.find(name("wanted").key)
    assert found.records == () and nodes[3].peer not in nodes[0].dht.table
    (step,) = [step for step in found.path if step.contact.peer == nodes[3].peer]
    assert step.outcome == "bad-signature"
    await stop(*nodes)


@pytest.mark.trio
@pytest.mark.parametrize("yields", [True, False])
async def test_a_full_message_does_not_block_the_event_loop(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, yields: bool
) -> None:
    """64 KiB of records have over two hundred signatures. Twin: without yielding, no other task
    runs meanwhile."""
    monkeypatch.setattr(defaults, "TURN", 0.001 if yields else 1e9)
    victim, liar, _ = await linked(nursery)
    wall = int(liar.host.wall() * 1000)
    records = [
        seal_record(liar.identity, name(f"{n}"), made=wall, ttl=600)
        for n in range(defaults.STORE_RECORDS)
    ]
    records = records[: defaults.MESSAGE_RECORDS // (len(records[-1]) + 1)]
    payload = StoreRequest(tuple(Aged(0, each) for each in records)).encode()
    turns, over = 0, False

    async def beat() -> None:
        nonlocal turns
        while not over:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as beside:
        beside.start_soon(beat)
        await victim.dht.answering.on_store(_call(liar, payload))
        over = True
    assert (turns >= 3) is yields
    assert len(victim.dht.store) == len(records) > 200
    await stop(victim, liar)
    nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_many_large_requests_at_once_do_not_block_the_event_loop(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """Other tasks run after a limited amount of work, here after one reply. Twin: all pending
    requests are answered without a break."""
    monkeypatch.setattr(defaults, "ROW", 1e-6 if defended else 1e9)
    victim, liar, _ = await linked(nursery)
    many = Find(tuple(name(f"{n}").key for n in range(defaults.FIND_KEYS))).encode()
    found: list[object] = []
    most = 0

    async def ask() -> None:
        found.append(await victim.dht.answering.on_find(_call(liar, many)))

    async with trio.open_nursery() as beside:
        for _ in range(20):
            beside.start_soon(ask)
        while len(found) < 20:
            before = len(found)
            await trio.lowlevel.checkpoint()
            most = max(most, len(found) - before)
    assert (most <= 2) is defended
    await stop(victim, liar)
    nursery.cancel_scope.cancel()


def _call(sender: Node, payload: bytes) -> Any:
    from shoal.transport.link.calls import Call

    return Call(sender.peer, {}, payload)


@pytest.mark.trio
async def test_a_stranger_of_a_private_swarm_gets_nothing(nursery: trio.Nursery) -> None:
    """The hello checks admission; a node with the key is an ordinary peer."""
    key = b"k" * 32
    inside = [Node(number, admission=SwarmKey(key)) for number in (1, 2)]
    stranger = Node(3)
    await nursery.start(inside[0].run)
    await nursery.start(inside[1].run, inside[0].address)
    await nursery.start(stranger.run)
    with trio.fail_after(10):
        await inside[1].dht.joined()
    inside[0].dht.publish(name("secret"))
    await inside[0].dht.flushed(10)
    with pytest.raises(DialFailed):
        await stranger.connect(inside[0].peer, [inside[0].address])
    assert (await stranger.dht.find(name("secret").key, timeout=2)).records == ()
    assert (await inside[1].dht.find(name("secret").key)).records
    await stop(*inside, stranger)
