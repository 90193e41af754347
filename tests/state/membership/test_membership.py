"""Nodes that start with one common address find each other, and notice dead members."""

from collections.abc import AsyncIterator, Sequence
from inspect import isawaitable
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock

from shoal.state import defaults
from shoal.state.errors import BadRecord
from shoal.state.membership import record, roster
from shoal.state.membership.liveness import Liveness
from shoal.state.membership.membership import Membership
from shoal.state.membership.messages import encode_digest
from shoal.state.membership.record import DOMAIN, MemberRecord, open_record, seal_record
from shoal.state.membership.roster import RecordOffer, tag_of
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Refusal, Reply
from shoal.transport.link.link import Link
from shoal.transport.networks import Nearness
from shoal.transport.signed import seal
from tests.bombs import SMALL_BOMBS
from tests.state.fake_net import WALL, FakeNet, FakeNode

ROOT = "ab" * 32


@pytest.fixture
async def net(nursery: trio.Nursery) -> FakeNet:
    return FakeNet(nursery)


def start(net: FakeNet, count: int, **kwargs: Any) -> list[FakeNode]:
    """Return nodes that know the address of the first one."""
    nodes = [FakeNode(net, number, **kwargs) for number in range(1, count + 1)]
    for node in nodes:
        net.nursery.start_soon(node.run, *nodes[:1] if node is not nodes[0] else ())
    return nodes


def push(node: FakeNode, source: FakeNode, *sealed: bytes, reach: int = Nearness.LOOPBACK) -> None:
    """`source` sends `node` records."""
    link = source.endpoint.link(node.peer)
    assert link is not None
    told = [(reach, 0, data) for data in sealed]
    link.post("member.push", payload=msgpack.packb(told), priority=Priority.CONTROL)


@pytest.mark.trio
async def test_eight_members_become_a_full_mesh(net: FakeNet, autojump_clock: MockClock) -> None:
    nodes = start(net, 8)
    await trio.sleep(5)
    everybody = {node.peer for node in nodes}
    for node in nodes:
        assert node.members == everybody
        assert node.directory.members()[node.peer] == node.directory.own()
        assert len(node.endpoint.links()) >= defaults.FIRST_LINKS
    await trio.sleep(3 * defaults.LINK_PAUSE)
    assert all(len(node.endpoint.links()) == 7 for node in nodes)


@pytest.mark.trio
@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("asked", [None, 4, 10])
async def test_members_without_a_witness_cause_more_links(
    net: FakeNet,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    asked: int | None,
    unseen: bool,
) -> None:
    monkeypatch.setattr(Liveness, "has_unseen", lambda self, now: unseen)
    monkeypatch.setattr(defaults, "LINK_PAUSE", 0.2)
    nodes = start(net, defaults.MORE_LINKS + 2, links=asked)
    await trio.sleep(6.0)
    least = min(len(node.endpoint.links()) for node in nodes)
    more = unseen and asked is None
    assert (least >= defaults.MORE_LINKS) == more and least >= (asked or defaults.MEMBER_LINKS)


@pytest.mark.trio
async def test_quiet_links_are_replaced_at_once(net: FakeNet, autojump_clock: MockClock) -> None:
    """Otherwise a node whose few links all cross a partition sees no members until they end."""
    nodes = start(net, 8)
    await trio.sleep(5)
    node = nodes[1]
    before = set(node.endpoint.all_links)
    assert len(before) < 7
    for link in list(node.endpoint.all_links.values()):
        link.quiet = True
        for callback in node.endpoint.quiet:
            callback(link)  # type: ignore[arg-type]
    await trio.sleep(2)
    assert set(node.endpoint.all_links) > before


@pytest.mark.trio
async def test_a_change_reaches_all_and_is_forwarded_once(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = start(net, 6)
    await trio.sleep(5)
    versions = [node.directory.version for node in nodes]
    net.sent.clear()
    nodes[2].directory.publish(stored=(ROOT,))
    await trio.sleep(1)
    for node, version in zip(nodes, versions, strict=True):
        assert node.directory.members()[nodes[2].peer].stored == (ROOT,)
        assert await node.directory.changed(version) > version
    # Its author tells 5; each tells at most the 4 that are neither author nor sender.
    assert len(net.sent) <= 5 + 5 * 4


@pytest.mark.trio
async def test_publishing_the_same_again_sends_nothing(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    node, _ = start(net, 2)
    await trio.sleep(1)
    node.directory.publish(stored=(ROOT,))
    await trio.sleep(1)
    net.sent.clear()
    before = node.directory.own()
    node.directory.publish(stored=(ROOT,))
    assert node.directory.own() is before
    assert not net.sent


@pytest.mark.trio
async def test_a_dead_member_disappears_and_comes_back(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = start(net, 4)
    await trio.sleep(5)
    version = nodes[0].directory.version
    nodes[3].die()
    assert nodes[0].directory.version > version
    assert all(nodes[3].peer not in node.members for node in nodes[:3])
    again = FakeNode(net, 4, ahead=10)
    net.nursery.start_soon(again.run)  # it knows no peer; the others remember it
    await trio.sleep(10)
    assert all(again.peer in node.members for node in nodes[:3])
    assert len(again.members) == 4


@pytest.mark.trio
async def test_a_restart_with_a_clock_behind_still_counts_as_later(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = start(net, 3)
    await trio.sleep(2)
    nodes[2].directory.publish(stored=(ROOT,))
    await trio.sleep(1)
    nodes[2].die()
    back = FakeNode(net, 3, ahead=-1000)
    net.nursery.start_soon(back.run, nodes[0])
    await trio.sleep(10)
    assert back.directory.own().seq > WALL * 1000
    for node in nodes[:2]:
        assert node.directory.members()[back.peer].stored == ()


@pytest.mark.trio
async def test_many_changes_at_once_are_sent_as_few(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    node, other = start(net, 2)
    await trio.sleep(2)
    net.sent.clear()
    for number in range(1, 1000):
        node.directory.publish(runs=(number,))
    await trio.sleep(5)
    assert other.directory.members()[node.peer].runs == (999,)
    assert len(net.sent) < 20


@pytest.mark.trio
async def test_changes_of_addresses_only_are_sent_rarely(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """A node that joins finds them out one after the other, and each change goes to all members."""
    node, other = start(net, 2)
    await trio.sleep(60)

    def told() -> int:
        return sum(message[2] == "member.push" for message in net.sent)

    def known() -> tuple[str, ...]:
        return other.directory.members()[node.peer].addresses

    net.sent.clear()
    for number in range(10):
        node.directory.publish(addresses=(f"/ip4/9.9.9.{number}/tcp/4001",))
        await trio.sleep(1)
    gathered = int(defaults.ADDRESSES_GATHERED)
    assert told() == 1 and known() == (f"/ip4/9.9.9.{gathered}/tcp/4001",)
    node.directory.publish(runs=(7,))
    await trio.sleep(1)
    assert told() == 2 and other.directory.members()[node.peer].runs == (7,), "routes depend on it"
    assert known() == ("/ip4/9.9.9.9/tcp/4001",)
    node.directory.publish(addresses=("/ip4/9.9.9.99/tcp/4001",))
    await trio.sleep(1 / defaults.OWN_ADDRESSES[1])
    assert known() == ("/ip4/9.9.9.99/tcp/4001",)


def test_invalid_records_are_not_published() -> None:
    class Alone:
        handle = on_link = on_link_lost = on_link_quiet = on_link_back = on_link_lasting = (
            on_link_doubt
        ) = staticmethod(lambda *args: None)

        def links(self) -> list[Link]:
            return []

    host = RealHost()
    directory = Membership(host, Alone(), Identity.generate(host))  # type: ignore[arg-type]
    before = directory.own()
    wrong: list[dict[str, Any]] = [
        {"stored": (ROOT,) * (defaults.STORED + 1)},
        {"runs": (defaults.MAX_SEQ,)},
        {"version": "1"},  # it belongs in feeds
    ]
    for each in wrong:
        with pytest.raises(BadRecord):
            directory.publish(**each)
    assert directory.own() is before


# Hostile peers.


@pytest.mark.trio
async def test_forged_and_foreign_records_end_the_link(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = start(net, 3)
    await trio.sleep(5)
    victim, liar, honest = nodes
    record = MemberRecord(honest.peer, int(WALL * 1000) + 10**6, runs=(666,))
    as_liar = seal(liar.identity, DOMAIN, b"")
    forged = as_liar.replace(liar.identity.public_key, honest.identity.public_key)
    with_body = seal_record(honest.identity, record)[:-1] + b"!"
    for sealed in (forged, with_body):
        push(victim, liar, sealed)
        await trio.sleep(0.1)
        assert victim.directory.members()[honest.peer].runs == ()
        assert victim.endpoint.link(liar.peer) is None
        net.connect(liar.endpoint, victim.endpoint)


@pytest.mark.trio
@pytest.mark.parametrize("method", ["member.push", "member.digest", "member.pull"])
@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        msgpack.packb([1]),
        msgpack.packb([[9, b""]]),
        msgpack.packb([["x", b"x"]]),
        msgpack.packb([[0, b"x" * 100_000]]),
        msgpack.packb([[0, b""]] * 65),
        msgpack.packb({"a": "b"}),
        msgpack.packb({1: 1}),
        msgpack.packb({str(number): 1 for number in range(2000)}),
        b"x" * 300_000,
        *SMALL_BOMBS.values(),
    ],
)
async def test_malformed_messages_are_refused(
    net: FakeNet, autojump_clock: MockClock, method: str, payload: bytes
) -> None:
    victim, liar = start(net, 2)
    await trio.sleep(2)
    answer = liar.endpoint.net.by_peer[victim.peer].serve(liar.peer, method, payload)
    if isawaitable(answer):
        answer = await answer
    assert isinstance(answer, Refusal) and answer.code == "bad-record"
    assert victim.endpoint.link(liar.peer) is None
    assert victim.members == {victim.peer}


@pytest.mark.trio
async def test_ten_thousand_members_stay_within_bounds(
    net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "VOUCHED", 8)
    victim, liar = start(net, 2)
    await trio.sleep(2)
    for first in range(100, 1380, 64):
        batch = []
        for number in range(first, first + 64):
            author = Identity.from_seed(number.to_bytes(32))
            record = MemberRecord(author.peer, 1, ("/ip4/127.0.0.1/tcp/4009",))
            batch.append(seal_record(author, record))
        push(victim, liar, *batch)
    await trio.sleep(5)
    assert len(victim.directory.roster) <= defaults.VOUCHED + 1
    assert victim.endpoint.link(liar.peer) is not None
    assert len([a for a in victim.endpoint.dials if a.port == 9]) < 100


@pytest.mark.trio
async def test_a_message_has_a_limited_number_of_records(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    victim, liar = start(net, 2)
    await trio.sleep(2)
    push(victim, liar, *[liar.directory.own_record.sealed] * defaults.BATCH)
    await trio.sleep(1)
    link = victim.endpoint.all_links[liar.peer]
    assert link.closed is None
    push(victim, liar, *[liar.directory.own_record.sealed] * (defaults.BATCH + 1))
    await trio.sleep(1)
    assert link.closed == "bad-record"  # it has dialled again since, and may


@pytest.mark.trio
async def test_two_nodes_with_one_key_do_not_race(net: FakeNet, autojump_clock: MockClock) -> None:
    node, other = start(net, 2)
    await trio.sleep(2)
    for step in range(1, 20):  # the node with the same key, always one ahead
        ahead = MemberRecord(node.peer, node.directory.own().seq + step)
        push(node, other, seal_record(node.identity, ahead))
        await trio.sleep(0.1)
    seqs = {open_record(data).seq for _, _, data in pushed(net, node)}
    assert len(seqs) <= 3


@pytest.mark.trio
async def test_old_records_do_not_stall_the_loop(
    net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 old records with 4 KiB of empty maps each took 60 ms in one step."""
    victim, liar = start(net, 2)
    await trio.sleep(2)
    bodies = [msgpack.packb({"seq": 1, "n": n, "x": [{}] * 4_000}) for n in range(defaults.BATCH)]
    sealed = [seal(liar.identity, DOMAIN, body) for body in bodies]
    read = Reads()

    def peek(data: bytes) -> tuple[PeerId, int]:
        read.bytes += len(data)
        read.most, read.all = max(read.most, read.bytes), read.all + 1
        return record.peek(data)

    monkeypatch.setattr(roster, "peek", peek)
    trio.lowlevel.add_instrument(read)
    push(victim, liar, *sealed)
    await trio.sleep(1)
    trio.lowlevel.remove_instrument(read)
    assert read.all == defaults.BATCH
    assert read.most <= defaults.SHOWN_BYTES + defaults.RECORD_BYTES


class Reads(trio.abc.Instrument):
    """Counts the bytes that are read in one step of a task."""

    def __init__(self) -> None:
        self.bytes = self.most = self.all = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.bytes = 0


def pushed(net: FakeNet, node: FakeNode) -> list[tuple[int, int, bytes]]:
    found = [m[3] for m in net.sent if m[0] == node.peer and m[2] == "member.push"]
    return [told for payload in found for told in msgpack.unpackb(payload)]


@pytest.mark.trio
async def test_the_own_record_becomes_the_latest_without_further_messages(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """A second node with this key ran and ended. Its record must not stay the latest."""
    nodes = start(net, 3)
    node, other, third = nodes
    await trio.sleep(5)
    for _ in range(2):  # the second comes within the pause
        ahead = MemberRecord(node.peer, node.directory.own().seq + 1)
        push(node, other, seal_record(node.identity, ahead))
        push(third, other, seal_record(node.identity, ahead))
        await trio.sleep(1)
    assert third.directory.members()[node.peer].addresses == ()
    await trio.sleep(defaults.RECLAIM_PAUSE + 5)
    for each in nodes:
        assert each.directory.members()[node.peer] == node.directory.own()


@pytest.mark.trio
@pytest.mark.parametrize(
    ("method", "rate", "empty"),
    [
        ("member.push", defaults.PUSHES, msgpack.packb([])),
        ("member.digest", defaults.DIGESTS, b""),
        ("member.pull", defaults.PULLS_TAKEN, b""),
    ],
)
async def test_each_call_is_rate_limited(
    method: str, rate: tuple[float, float], empty: bytes, net: FakeNet, autojump_clock: MockClock
) -> None:
    """A peer that dials again does not get a fresh budget."""
    victim, liar, other = start(net, 3)
    await trio.sleep(2)

    async def call(by: FakeNode) -> Any:
        answer = victim.endpoint.serve(by.peer, method, empty)
        return await answer if isawaitable(answer) else answer

    answers = [await call(liar) for _ in range(200)]
    assert sum(isinstance(answer, Reply) for answer in answers) <= rate[0]
    assert answers[-1].code == "too-often"
    assert isinstance(await call(other), Reply)
    net.connect(liar.endpoint, victim.endpoint)
    assert (await call(liar)).code == "too-often"
    await trio.sleep(1)
    assert isinstance(await call(liar), Reply)


@pytest.mark.trio
async def test_a_peer_that_does_not_deliver_delays_no_record(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """Control: without the next peer in line the record would never arrive."""
    victim, liar, honest = start(net, 3)
    await trio.sleep(2)
    author = Identity.from_seed(bytes([99]) * 32)
    sealed = seal_record(author, MemberRecord(author.peer, 1000))

    async def stall(call: Call) -> Refusal:
        await trio.sleep(1)
        return Refusal("busy", "never")

    liar.endpoint.handle("member.pull", stall)
    assert honest.directory.roster.receive(sealed, author.peer, Nearness.LOOPBACK, 2.0)
    offer = encode_digest({tag_of(author.peer): RecordOffer(1000, Nearness.PUBLIC, 0)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(victim.endpoint.serve, liar.peer, "member.digest", offer)
        await trio.sleep(0.5)
        nursery.start_soon(victim.endpoint.serve, honest.peer, "member.digest", offer)
    assert author.peer in victim.directory.everybody()


@pytest.mark.trio
async def test_a_local_address_from_afar_is_not_dialled(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """Not even if a neighbour forwards it, because it says how near the record came from."""
    far = FakeNode(net, 1, ip="8.8.8.8")
    gate = FakeNode(net, 2, ip="192.168.1.2")
    near = FakeNode(net, 3, ip="192.168.1.3")
    for node in (far, gate, near):
        net.nursery.start_soon(node.run)
    net.connect(far.endpoint, gate.endpoint)
    net.connect(gate.endpoint, near.endpoint)
    await trio.sleep(1)
    targets = ("/ip4/192.168.1.1/tcp/4080", "/ip4/127.0.0.1/tcp/4022", "/ip4/1.1.1.1/tcp/4004")
    far.endpoint.cut(near.peer, "closed")
    for place in [place for place, each in net.at.items() if each.peer in (far.peer, near.peer)]:
        del net.at[place]  # nor does `far` dial back
    net.sent.clear()
    far.directory.publish(addresses=targets)
    await trio.sleep(300)
    assert any(author_in(message, far) for message in net.sent)
    dialled = {address.host for node in (gate, near) for address in node.endpoint.dials}
    assert not dialled & {"192.168.1.1", "127.0.0.1"}
    assert "1.1.1.1" in dialled


def author_in(message: tuple[Any, Any, str, bytes], node: FakeNode) -> bool:
    if message[2] != "member.push":
        return False
    return any(open_record(data).peer == node.peer for _, _, data in msgpack.unpackb(message[3]))


@pytest.mark.trio
async def test_neighbours_dial_each_others_local_addresses(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    gate, one, two = (FakeNode(net, number, ip=f"192.168.1.{number}") for number in (1, 2, 3))
    for node in (gate, one, two):
        net.nursery.start_soon(node.run)
    net.connect(gate.endpoint, one.endpoint)
    net.connect(gate.endpoint, two.endpoint)
    await trio.sleep(defaults.HAND_ON_NEW + 1)
    assert one.endpoint.link(two.peer) is not None


@pytest.mark.trio
async def test_all_know_each_other_with_few_links(net: FakeNet, autojump_clock: MockClock) -> None:
    """Control: with a digest of live members only, late joiners miss members without a near
    link."""
    nodes = start(net, 30, links=3)
    await trio.sleep(30)
    late = FakeNode(net, 31, links=1)
    net.nursery.start_soon(late.run, nodes[7])
    await trio.sleep(5)
    everybody = {node.peer for node in (*nodes, late)}
    for node in (*nodes, late):
        assert node.directory.everybody() == everybody - {node.peer}


@pytest.mark.trio
async def test_dead_members_are_forgotten_by_all(net: FakeNet, autojump_clock: MockClock) -> None:
    """Control: without an age each new node would restart the count, and tell the others."""
    nodes = start(net, 4)
    await trio.sleep(5)
    dead = nodes.pop()
    dead.die()
    for number in range(10, 20):
        await trio.sleep(defaults.FORGET / 6)
        known = [dead.peer in node.directory.everybody() for node in nodes]
        assert any(known) if number < 15 else number == 15 or not any(known)
        nodes.append(FakeNode(net, number))
        net.nursery.start_soon(nodes[-1].run, nodes[0])
        await trio.sleep(5)


@pytest.mark.trio
async def test_a_brief_link_carries_no_records_until_it_is_kept(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """Control: a link that is kept carries records at once."""
    asker, asked, other = nodes = [FakeNode(net, number, silent=True) for number in (1, 2, 3)]
    for node in nodes:
        net.nursery.start_soon(node.run)
    net.connect(asker.endpoint, asked.endpoint, brief=True)
    net.connect(asker.endpoint, other.endpoint)
    await trio.sleep(5)
    assert not [message for message in net.sent if {message[0], message[1]} == {*pair(nodes)}]
    assert asker.members == {asker.peer, other.peer}
    assert asked.members == {asked.peer}
    await asker.endpoint.dial(asked.address, timeout=5)
    await trio.sleep(5)
    assert asker.members == {node.peer for node in nodes}
    assert asked.peer in asker.members and asker.peer in asked.members


def pair(nodes: Sequence[FakeNode]) -> tuple[PeerId, PeerId]:
    return nodes[0].peer, nodes[1].peer


@pytest.mark.trio
async def test_a_brief_link_to_a_known_member_is_kept(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    asker, gate = start(net, 2)
    asked = FakeNode(net, 3)
    net.connect(asker.endpoint, asked.endpoint, brief=True)
    net.nursery.start_soon(asked.run, gate)
    await trio.sleep(5)
    assert asker.members == asked.members == {node.peer for node in (asker, gate, asked)}


@pytest.mark.trio
async def test_brief_links_that_end_or_become_quiet_change_nothing(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    asker, asked = (FakeNode(net, number, silent=True) for number in (1, 2))
    net.connect(asker.endpoint, asked.endpoint, brief=True)
    version = asker.directory.version
    link: Any = asker.endpoint.all_links[asked.peer]
    for callback in (*asker.endpoint.quiet, *asker.endpoint.back):
        callback(link)
    assert asker.members == {asker.peer}
    asker.endpoint.cut(asked.peer, "closed")
    assert asker.directory.version == version


@pytest.mark.trio
async def test_links_are_bounded(net: FakeNet, autojump_clock: MockClock) -> None:
    nodes = start(net, 8, links=3)
    await trio.sleep(5)
    # A dialled node accepts any link, so all nodes are linked with the first one.
    assert len(nodes[0].endpoint.links()) == 7
    assert min(len(node.endpoint.links()) for node in nodes) <= 4


# Real nodes.


class RealNode:
    def __init__(self) -> None:
        self.host = RealHost()
        self.identity = Identity.generate(self.host)
        self.endpoint = Endpoint(self.host, self.identity, admission=OpenSwarm())
        self.directory = Membership(self.host, self.endpoint, self.identity)
        self.scope = trio.CancelScope()
        self.address: Address | None = None

    async def run(
        self, bootstrap: Sequence[Address], *, task_status: trio.TaskStatus[None]
    ) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                port = await nursery.start(self.endpoint.run, "127.0.0.1", 0)
                self.address = Address("127.0.0.1", port, self.identity.peer)
                self.directory.publish(addresses=(str(self.address),))
                await nursery.start(self.directory.run)
                for address in bootstrap:
                    await self.endpoint.dial(address, timeout=5)
                task_status.started()
                await trio.sleep_forever()


async def until_members(node: RealNode, count: int) -> None:
    while len(node.directory.members()) != count:
        await node.directory.changed(node.directory.version)


@pytest.fixture
async def real_nodes(nursery: trio.Nursery) -> AsyncIterator[list[RealNode]]:
    nodes = [RealNode() for _ in range(4)]
    for node in nodes:
        first = nodes[0].address
        await nursery.start(node.run, [first] if first else [])
    yield nodes
    for node in nodes:
        node.scope.cancel()


@pytest.mark.trio
async def test_real_nodes_find_each_other_and_notice_a_death(real_nodes: list[RealNode]) -> None:
    with trio.fail_after(10):
        for node in real_nodes:
            await until_members(node, 4)
    last = real_nodes.pop()
    last.scope.cancel()
    with trio.fail_after(5):
        for node in real_nodes:
            await until_members(node, 3)
    assert all(last.identity.peer not in node.directory.members() for node in real_nodes)


@pytest.mark.trio
async def test_a_quiet_member_is_not_live_until_it_is_back(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """Its link may find a new path, but until then no node routes to it."""
    a, b = start(net, 2)
    await trio.sleep(5)
    link: Any = a.endpoint.all_links[b.peer]
    for callback in a.endpoint.quiet:
        callback(link)
    assert b.peer not in a.members
    for callback in a.endpoint.back:
        callback(link)
    assert b.peer in a.members


@pytest.mark.trio
async def test_members_that_do_not_count_are_not_listed(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """Fails without the filter of members."""
    nodes = start(net, 3)
    await trio.sleep(5)
    first, second, third = nodes
    assert len(first.directory.members()) == 3
    version = first.directory.version
    first.directory.screen(lambda peer: peer != second.peer)
    assert first.directory.version > version
    assert set(first.directory.members()) == {first.peer, third.peer}
