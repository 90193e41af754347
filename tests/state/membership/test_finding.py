"""Questions to peers about members that they may reach."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from shoal.state import defaults
from shoal.state.membership import probing
from shoal.state.membership.messages import encode_find, encode_found, read_find
from shoal.transport.identity import PeerId
from shoal.transport.link.calls import Call, Refusal, Reply
from tests.state.fake_net import FakeLink, FakeNet
from tests.state.membership.stars import NONCE, counted, notice, silence, star


@pytest.fixture
async def net(nursery: trio.Nursery) -> FakeNet:
    return FakeNet(nursery)


@pytest.mark.trio
async def test_a_node_without_a_link_asks_a_witness_only_one_step_further(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 2, 3)
    one, two = nodes[2], nodes[3]

    async def found(further: bool) -> list[bytes]:
        net.sent.clear()
        question = encode_find(7, NONCE, further, [two.peer])
        assert isinstance(await one.endpoint.serve(nodes[0].peer, "live.find", question), Reply)
        to = one.peer, nodes[0].peer, "live.found"
        return [payload for *way, payload in net.sent if tuple(way) == to]

    proof = two.identity.sign(probing.DOMAIN, NONCE)
    assert await found(True) == [encode_found(7, 0, proof)]
    assert await found(False) == []


@pytest.mark.trio
async def test_a_slow_member_delays_no_proof_of_another(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """A hub does not know yet that the first of two members is dead."""
    hub, leaf, gone, live = await star(net, 1, 3)
    silence(gone)
    net.sent.clear()
    question = encode_find(7, NONCE, False, [gone.peer, live.peer])
    with trio.move_on_after(0.1):
        await hub.endpoint.serve(leaf.peer, "live.find", question)
    proof = live.identity.sign(probing.DOMAIN, NONCE)
    assert (hub.peer, leaf.peer, "live.found", encode_found(7, 1, proof)) in net.sent


@pytest.mark.trio
async def test_one_question_asks_about_all_members_in_doubt(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 2, 12)
    leaves, gone = nodes[2:6], nodes[6:]
    calls = counted(nodes, "live.find")
    for each in gone:
        silence(each)
        for hub in nodes[:2]:
            notice(each, by=hub)
    await trio.sleep(defaults.TELL_S + defaults.CHECK_S + 0.2)
    assert all(each.peer not in leaf.members for each in gone for leaf in leaves)
    for leaf in leaves:
        assert sum(n for (_, by, _), n in calls.items() if by == leaf.peer) <= 4


@pytest.mark.trio
async def test_each_peer_may_send_one_signature_of_a_member(
    net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """False ones are not verified again and again, nor those of a peer that was not asked."""
    nodes = await star(net, 2, 2)
    verified: list[bytes] = []
    monkeypatch.setattr(probing, "verify", lambda *args: verified.append(args[-1]))

    async def answer(call: Call) -> Reply:
        ident, _, _, peers = read_find(call.payload)
        body = encode_found(ident, 0, bytes(64))
        for by in (*nodes[:2], nodes[3]):
            for _ in range(10):
                nodes[2].endpoint.serve(by.peer, "live.found", body)
        body = encode_found(ident, len(peers), bytes(64))
        nodes[2].endpoint.serve(call.peer, "live.found", body)
        return Reply()

    for hub in nodes[:2]:
        hub.endpoint.handle("live.find", answer)
    await nodes[2].directory.probing.check([nodes[3].peer])
    assert len(verified) == 2


@pytest.mark.trio
async def test_a_helper_does_not_use_a_link_in_doubt(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 2, 3)
    hub, leaf, gone = nodes[0], nodes[2], nodes[3]
    silence(gone)
    notice(gone, by=hub)
    net.sent.clear()
    began = trio.current_time()
    question = encode_find(7, NONCE, False, [gone.peer])
    await net.by_peer[hub.peer].serve(leaf.peer, "live.find", question)
    assert not net.sent and trio.current_time() == began


@pytest.mark.trio
async def test_no_other_peer_is_asked_after_the_proof(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    nodes = await star(net, 2, 4)
    calls = counted(nodes, "live.find", "live.prove")
    await nodes[2].directory.probing.check([nodes[-1].peer])
    await trio.sleep(defaults.CHECK_S)
    assert [method for method, *_ in calls] == ["live.find", "live.prove"]
    assert calls.total() == 2


@pytest.mark.trio
async def test_a_question_counts_as_many_as_it_has_members(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """Each of them may cost a message and a signature."""
    nodes = await star(net, 1, 2)
    crowd = [PeerId(f"nobody {number}") for number in range(defaults.ASKED_FOR)]
    for refused in (False, True):
        question = encode_find(7, NONCE, True, crowd)
        answer = await nodes[0].endpoint.serve(nodes[1].peer, "live.find", question)
        assert isinstance(answer, Refusal) == refused


@pytest.mark.trio
async def test_the_last_proof_leaves_together_with_the_reply(
    net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others leave at once, because the last one may take long."""
    hub, leaf, *others = await star(net, 1, 4)
    post, waits = FakeLink.post, list[bool]()

    def posted(link: FakeLink, method: str, *args: Any, later: bool = False, **more: Any) -> None:
        waits.append(later)
        post(link, method, *args, later=later, **more)

    monkeypatch.setattr(FakeLink, "post", posted)
    question = encode_find(7, NONCE, False, [other.peer for other in others])
    await hub.endpoint.serve(leaf.peer, "live.find", question)
    assert waits == [False, False, True]
    waits.clear()
    silence(others[0])
    await hub.endpoint.serve(leaf.peer, "live.find", question)
    assert waits == [False, False], "the reply waits for the silent member"
