"""Members without a link to every node: reports, proofs, doubts and lies about them."""

from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock

from shoal.state import defaults
from shoal.state.membership import probing
from shoal.state.membership.finding import Finding
from shoal.state.membership.gathering import Gathered
from shoal.state.membership.liveness import Liveness
from shoal.state.membership.messages import encode_find, read_gather
from shoal.state.membership.roster import Roster
from shoal.transport.identity import PeerId
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.bombs import SMALL_BOMBS
from tests.marks import in_ci
from tests.state.fake_net import FakeNet, FakeNode
from tests.state.membership.stars import NONCE, counted, give_up, lie, notice, silence, star


@pytest.fixture
async def net(nursery: trio.Nursery) -> FakeNet:
    return FakeNet(nursery)


@pytest.mark.trio
async def test_a_node_with_few_links_lists_all_members(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 2, 8)
    everybody = {node.peer for node in nodes}
    for node in nodes[2:]:
        assert set(node.endpoint.all_links) == {nodes[0].peer, nodes[1].peer}
        assert node.members == everybody


@pytest.mark.trio
async def test_a_dead_member_soon_disappears_at_all_nodes(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 2, 6)
    dead = nodes[-1]
    silence(dead)
    for hub in nodes[:2]:
        notice(dead, by=hub)
    await trio.sleep(defaults.TELL_S + defaults.CHECK_S + 0.2)
    assert all(dead.peer not in node.members for node in nodes[2:-1])
    assert all(dead.peer in hub.members for hub in nodes[:2])  # their own links decide
    for hub in nodes[:2]:
        give_up(dead, by=hub)
        assert dead.peer not in hub.members


@pytest.mark.trio
async def test_a_single_failed_link_makes_no_member_dead(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """One hub cannot reach a leaf. The other can, and delivers the proof."""
    nodes = await star(net, 2, 4)
    leaf, hub = nodes[-1], nodes[0]
    for one, other in ((hub, leaf), (leaf, hub)):
        one.endpoint.all_links[other.peer].connected = False
        notice(other, by=one)
    await trio.sleep(0.5)
    give_up(leaf, by=hub)
    assert leaf.peer in hub.members
    for _ in range(200):
        await trio.sleep(0.1)
        assert all(leaf.peer in node.members for node in nodes[:-1])


@pytest.mark.trio
@pytest.mark.parametrize("checked", [True, False])
async def test_a_liar_makes_no_member_dead(
    checked: bool, net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub that is the witness of a leaf for all reports again and again that the leaf is
    dead."""
    nodes = await star(net, 2, 4)
    liar, leaf = nodes[0], nodes[-1]
    if not checked:  # control: rumours are believed
        withdrawn = Liveness._withdrawn

        def believe(self: Liveness, by: PeerId, peer: PeerId, *more: Any) -> None:
            withdrawn(self, by, peer, *more)
            self.failed(peer, trio.current_time())

        monkeypatch.setattr(Liveness, "_withdrawn", believe)
    out = 0
    for turn in range(300):
        for node in nodes[2:-1]:
            has, lost = ([leaf.peer], []) if turn % 2 else ([], [leaf.peer])
            link: Any = liar.endpoint.all_links[node.peer]
            link.post(
                "live.links", payload=msgpack.packb([False, has, lost]), priority=Priority.CONTROL
            )
        await trio.sleep(0.1)
        out += sum(leaf.peer not in node.members for node in nodes[2:-1])
    assert (out == 0) == checked


def sign_nothing(call: Call) -> Reply:
    """Answer for all members with invalid signatures."""
    _, peers = read_gather(call.payload)
    return Reply(payload=msgpack.packb([[], [bytes(64)] * len(peers)]))


@pytest.mark.trio
@pytest.mark.parametrize("verified", [True, False])
async def test_a_liar_keeps_no_dead_member_listed(
    verified: bool, net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub continues to report a link to a dead leaf, and answers for it."""
    nodes = await star(net, 2, 4)
    liar, honest, dead = nodes[0], nodes[1], nodes[-1]
    if not verified:  # control
        monkeypatch.setattr(probing, "verify", lambda *_: True)
    silence(dead)
    lie(liar, bytes(64))
    liar.endpoint.handle("live.gather", sign_nothing)
    notice(dead, by=honest)
    await trio.sleep(2)
    give_up(dead, by=honest)
    await trio.sleep(60)
    listing = [dead.peer in node.members for node in nodes[2:-1]]
    assert not any(listing) if verified else all(listing)


@pytest.mark.trio
async def test_an_old_proof_does_not_count(net: FakeNet, autojump_clock: MockClock) -> None:
    nodes = await star(net, 2, 3)
    liar, honest, dead = nodes[0], nodes[1], nodes[-1]
    old = dead.identity.sign(probing.DOMAIN, bytes(defaults.NONCE_BYTES))
    silence(dead)
    lie(liar, old)
    for hub in (liar, honest):
        notice(dead, by=hub)
    await trio.sleep(3)
    assert all(dead.peer not in node.members for node in nodes[2:-1])


@pytest.mark.trio
async def test_no_member_is_lost_while_this_node_stalls(
    net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that ends long after its deadline has no effect."""

    async def outs(stall: float) -> int:
        monkeypatch.setattr(defaults, "STALL_S", stall)
        nodes = await star(net, 2, 3)
        late, leaf = nodes[2], nodes[-1]
        asked = Finding.ask_around
        waits = iter([3.0])

        async def slow(self: Finding, *args: Any) -> None:
            wait = next(waits, None) if self._liveness._own == late.peer else None
            if wait is None:
                await asked(self, *args)
            else:
                with trio.CancelScope(shield=True):
                    await trio.sleep(wait)

        monkeypatch.setattr(Finding, "ask_around", slow)
        notice(leaf, by=nodes[0])
        out = 0
        for _ in range(60):
            await trio.sleep(0.1)
            out += leaf.peer not in late.members
        monkeypatch.setattr(Finding, "ask_around", asked)
        for node in nodes:
            node.die()
        return out

    assert await outs(0.5) == 0
    assert await outs(1e9) > 0  # control


@pytest.mark.trio
@pytest.mark.parametrize(
    "method", ["live.links", "live.lost", "live.find", "live.found", "live.gather", "live.prove"]
)
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        b"x" * 300_000,
        msgpack.packb([True]),
        msgpack.packb([1, [], []]),
        msgpack.packb([True, [1], []]),
        msgpack.packb([True, [], {}]),
        msgpack.packb([1, b"short", True, ["x"]]),
        msgpack.packb([b"short", ["x"]]),
        msgpack.packb({"a": "b"}),
        *SMALL_BOMBS.values(),
    ],
)
async def test_malformed_messages_end_the_link(
    method: str, payload: bytes, net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 1, 2)
    answer = nodes[0].endpoint.serve(nodes[1].peer, method, payload)
    if not isinstance(answer, (Reply, Refusal)):
        answer = await answer
    assert isinstance(answer, Refusal) and answer.code == "bad-record"
    assert nodes[0].endpoint.link(nodes[1].peer) is None


@pytest.mark.trio
@pytest.mark.parametrize(
    ("method", "rate", "payload"),
    [
        ("live.links", "LINKS_TOLD", msgpack.packb([False, [], []])),
        ("live.lost", "LINKS_TOLD", msgpack.packb([[]])),
        ("live.find", "FINDS", encode_find(7, NONCE, True, [PeerId("nobody")])),
        ("live.gather", "QUESTIONS", msgpack.packb([NONCE, ["nobody"]])),
        ("live.prove", "PROOFS", NONCE),
    ],
)
async def test_a_flood_is_refused(
    method: str, rate: str, payload: bytes, net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 1, 2)
    codes: Counter[str] = Counter()
    for _ in range(1000):
        answer = nodes[0].endpoint.handlers[method](Call(nodes[1].peer, {}, payload))
        if not isinstance(answer, (Reply, Refusal)):
            answer = await answer
        codes[getattr(answer, "code", "")] += 1
    assert codes["too-often"] >= 1000 - getattr(defaults, rate)[0] - 1
    assert len(codes) == 2
    other = nodes[0].endpoint.handlers[method](Call(nodes[2].peer, {}, payload))
    if not isinstance(other, (Reply, Refusal)):
        other = await other
    assert getattr(other, "code", "") != "too-often"


async def diamond(net: FakeNet) -> list[FakeNode]:
    """Return a node linked with two others, and a fourth one that only those are linked with."""
    nodes = [FakeNode(net, number, links=0) for number in range(1, 5)]
    one, left, right, other = nodes
    for node, known in ((one, ()), (left, (one,)), (right, (one,)), (other, (left, right))):
        net.nursery.start_soon(node.run, *known)
    await trio.sleep(30.0)
    return nodes


@pytest.mark.trio
async def test_what_a_watcher_has_lost_is_passed_on(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    one, left, right, other = nodes = await diamond(net)
    told = counted(nodes, "live.lost")
    silence(other)
    notice(other, by=left)
    await trio.sleep(0.5)
    assert told == {("live.lost", one.peer, right.peer): 1}


@pytest.mark.trio
async def test_only_so_many_losses_of_one_watcher_are_passed_on(
    net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "ALARMS", (5.0, 0.0))
    one, left, right, other = nodes = await diamond(net)
    told = counted(nodes, "live.lost")
    for _ in range(20):
        for has, lost in (([other.peer], []), ([], [other.peer])):
            one.endpoint.serve(left.peer, "live.links", msgpack.packb([False, has, lost]))
    await trio.sleep(0.5)
    assert told == {("live.lost", one.peer, right.peer): 5}


def find(node: FakeNode, by: PeerId, further: bool) -> Callable[[], Awaitable[Any]]:
    payload = encode_find(7, NONCE, further, [PeerId("nobody")])

    async def ask() -> Any:
        answer = node.endpoint.serve(by, "live.find", payload)
        return getattr(answer if isinstance(answer, Reply | Refusal) else await answer, "code", "")

    return ask


@pytest.mark.trio
async def test_questions_that_a_peer_forwards_do_not_use_up_its_own(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 1, 2)
    forwarded = find(nodes[0], nodes[1].peer, False)
    while await forwarded() != "too-often":
        pass
    assert await find(nodes[0], nodes[1].peer, True)() != "too-often"


@pytest.mark.trio
async def test_a_peer_that_connects_again_may_ask_no_more(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 1, 2)
    ask = find(nodes[0], nodes[1].peer, True)
    while await ask() != "too-often":
        pass
    nodes[0].endpoint.cut(nodes[1].peer, "gone")
    net.connect(nodes[1].endpoint, nodes[0].endpoint)
    await trio.sleep(0.05)
    assert nodes[0].endpoint.link(nodes[1].peer) is not None
    assert await ask() == "too-often"


@pytest.mark.trio
@pytest.mark.parametrize("leaves", [5, *in_ci(20)])
async def test_a_hub_asks_each_leaf_once_for_all_others(
    leaves: int, net: FakeNet, autojump_clock: MockClock
) -> None:
    """The hub is each leaf's only witness of all others. All are proved every 10 s, or every second
    for each live member."""
    nodes = await star(net, 1, leaves, settle=60.0)
    hub, seconds = nodes[0], 120.0
    calls = counted(nodes, "live.gather", "live.prove", "live.find")
    everybody = {node.peer for node in nodes}
    for _ in range(int(seconds)):
        await trio.sleep(1)
        assert all(node.members == everybody for node in nodes)
    crowd = max(leaves / defaults.CROWD, 1.0)
    least, most = seconds / (16 * crowd), seconds / defaults.PROVE_AGAIN_S[1] / crowd + 1
    assert not any(method == "live.find" for method, *_ in calls)
    for leaf in nodes[1:]:
        assert least <= calls["live.gather", leaf.peer, hub.peer] <= most
        assert least <= calls["live.prove", hub.peer, leaf.peer] <= most


@pytest.mark.trio
@pytest.mark.parametrize("climbed", [True, False])
async def test_an_old_signature_over_other_nonces_is_no_proof(
    climbed: bool, net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub has an old signature of a dead leaf, and sends it to all peers that ask."""
    nodes = await star(net, 1, 4)
    liar, dead = nodes[0], nodes[-1]
    old = dead.identity.sign(probing.DOMAIN, NONCE)
    if not climbed:  # control: the asker does not check that its nonce leads to the signed root
        monkeypatch.setattr(probing, "merkle_root", lambda *_: NONCE)
    silence(dead)

    def answer(call: Call) -> Reply:
        _, peers = read_gather(call.payload)
        proofs = [old if peer == dead.peer else b"" for peer in peers]
        return Reply(payload=msgpack.packb([[NONCE], proofs]))

    liar.endpoint.handle("live.gather", answer)
    liar.endpoint.handle("live.find", lambda call: Refusal("no-proof", "no"))
    await trio.sleep(30)
    listing = [dead.peer in node.members for node in nodes[1:-1]]
    assert not any(listing) if climbed else all(listing)


@pytest.mark.trio
async def test_a_member_that_no_other_peer_reaches_is_dialled(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """All peers that are asked stay silent about a live member."""
    nodes = await star(net, 2, 3, settle=0.0)
    for hub in nodes[:2]:
        hub.endpoint.handle("live.find", lambda call: Refusal("no-proof", "no"))
        hub.endpoint.handle("live.gather", lambda call: Refusal("no-proof", "no"))
    await trio.sleep(30)
    assert all(nodes[-1].peer in node.members for node in nodes)


@pytest.mark.trio
@pytest.mark.parametrize("compared", [True, False])
async def test_a_machine_that_comes_back_as_another_peer_is_listed_once(
    compared: bool, net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compared:  # control: earlier publishers of that address are ignored
        monkeypatch.setattr(Roster, "at", lambda *_: [])
        monkeypatch.setattr(Roster, "neighbours", lambda *_: [])
    nodes = await star(net, 2, 4)
    old = nodes[-1]
    silence(old)
    new = FakeNode(net, 50, links=0)
    new.address, new.endpoint.port = old.address, old.endpoint.port
    net.at[old.ip, old.endpoint.port] = new.endpoint
    new.directory.publish(addresses=(str(new.address).replace(old.peer, new.peer),))
    for hub in nodes[:2]:
        notice(old, by=hub)
    net.nursery.start_soon(new.run, *nodes[:2])
    both = 0
    for tick in range(100):
        await trio.sleep(0.05)
        if tick == 60:
            for hub in nodes[:2]:
                give_up(old, by=hub)
        both += sum({old.peer, new.peer} <= node.members for node in nodes[:-1])
    assert (both == 0) == compared
    assert all(new.peer in node.members for node in nodes[:-1])


def test_the_addresses_of_one_home_count_as_one_witness() -> None:
    """A home has at least 256 IPv6 networks. Each peer on the own LAN is one witness."""

    def place(ip: str, peer: str = "someone") -> str:
        link: Any = SimpleNamespace(peer=peer, address=(ip, 1))
        return probing._place(link)

    assert place("2600:1:2:3::1") == place("2600:1:2:ff03::1") != place("2600:1:3:3::1")
    assert place("11.1.2.3") == place("11.1.2.200") != place("11.1.3.3")
    assert place("192.168.1.2", "one") != place("192.168.1.2", "another")


@pytest.mark.trio
async def test_two_batches_may_be_due_at_once(net: FakeNet, autojump_clock: MockClock) -> None:
    """One batch has new members, the other one others. Both are asked for their proofs in time."""
    hub, one, two = await star(net, 1, 2)
    probing_hub, now = hub.directory.probing, trio.current_time()
    batches = [Gathered(now), Gathered(now)]
    for batch, peer in zip(batches, (one.peer, two.peer), strict=True):
        batch.numbers.append(NONCE)
        batch.peers[peer] = b""
    probing_hub._gathering._hurried, probing_hub._gathering._next = batches
    probing_hub.wake()
    await trio.sleep(0.5)
    assert all(batch.done.is_set() and all(batch.peers.values()) for batch in batches)
    assert probing_hub._gathering.take(1e9) is None


@pytest.mark.trio
@pytest.mark.parametrize(
    ("each", "pause"), [(0.0, defaults.TURN_S), (0.02, 0.12), (1.0, defaults.TURN_MOST_S)]
)
async def test_with_more_members_there_are_fewer_rounds(
    each: float,
    pause: float,
    net: FakeNet,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "TURN_MEMBER_S", each)
    node = (await star(net, 2, 5))[-1]
    assert len(node.directory.probing.liveness.watched) == 6
    rounds, look = [], Liveness.next_checks

    def count(self: Liveness, now: float) -> list[PeerId]:
        if self is node.directory.probing.liveness:
            rounds.append(now)
        return look(self, now)

    monkeypatch.setattr(Liveness, "next_checks", count)
    for _ in range(1000):
        node.directory.probing.wake()
        await trio.sleep(0.01)
    assert 0.8 * 10 / pause <= len(rounds) <= 10 / pause + 2
