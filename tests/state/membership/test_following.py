"""Members without a witness, whose end is reported by the peer that brought their last proof."""

import math
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgpack
import pytest
import trio
from trio.testing import MockClock

from shoal.state import defaults
from shoal.state.membership.following import Followers
from shoal.state.membership.liveness import Liveness
from shoal.state.membership.messages import encode_find
from shoal.transport.identity import PeerId, peer_id_of
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Reply
from shoal.transport.rates import Rate, Rates
from tests.state.fake_net import FakeNet, FakeNode
from tests.state.membership.stars import counted, notice, silence

OWN, A, B, X, Y, Z = (peer_id_of(sha256(bytes([n])).digest()) for n in range(6))
ALONE_S, HEARD_S = defaults.PROVE_AGAIN_S[0], defaults.FOLLOW_AGAIN_S


# The side that answers.


def test_a_follower_hears_what_the_source_of_its_proof_has_lost() -> None:
    followers = Followers()
    followers.add(A, X, B, 0.0)
    followers.add(A, Y, Y, 0.0)
    assert followers.lost(X, 1.0) == {}, "the proof came from elsewhere"
    assert followers.lost(B, 1.0, {Y}) == {}
    assert followers.lost(B, 1.0, {X, Y}) == {A: [X]}
    assert followers.lost(B, 1.0, {X}) == {}, "once is enough"
    assert followers.lost(Y, 1.0) == {A: [Y]}


def test_a_member_is_followed_by_the_last_proof_and_for_a_while() -> None:
    followers = Followers()
    followers.add(A, X, B, 0.0)
    followers.add(A, X, X, 10.0)
    assert followers.lost(B, 11.0) == {}
    assert followers.lost(X, 10.0 + defaults.FOLLOWED_S) == {}, "it asks no longer"
    followers.add(A, X, X, 10.0)
    followers.forget(A)
    assert followers.lost(X, 11.0) == {}


def test_what_one_peer_follows_is_bounded() -> None:
    followers = Followers()
    crowd = [PeerId(f"member {number}") for number in range(defaults.FOLLOWED + 10)]
    for peer in crowd:
        followers.add(A, peer, X, 0.0)
    assert followers.lost(X, 1.0) == {A: crowd[10:]}, "the oldest are forgotten"
    assert defaults.FOLLOWED >= defaults.ALONE


# The side that asks.


@pytest.fixture
def node() -> Liveness:
    """A node that is linked with A and B, and that has proved X and Y. A brought the proofs."""
    made = Liveness(OWN)
    made.watch({OWN, A, B, X, Y})
    for peer in (A, B):
        made.linked(peer, peer, 0.0)
    for peer in (X, Y):
        made.proved(peer, 0.0)
        made.brought(peer, A)
    return made


def due(node: Liveness, now: float) -> set[PeerId]:
    return set(node.next_checks(now))


def test_a_member_whose_end_is_reported_is_checked_less_often(node: Liveness) -> None:
    assert node.is_live(X) and due(node, HEARD_S - 0.1) == set()
    assert node.is_live(X)
    assert due(node, HEARD_S) == {X, Y}
    assert node.helpers(X)[0] == A, "it is asked first"


def test_without_such_a_peer_it_is_checked_as_before() -> None:
    node = Liveness(OWN)
    node.watch({A, X})
    node.linked(A, "", 0.0)
    node.proved(X, 0.0)
    assert due(node, ALONE_S) == {X}


@pytest.mark.parametrize("size", [defaults.CROWD // 2, 4 * defaults.CROWD, 100 * defaults.CROWD])
def test_what_proofs_cost_does_not_grow_with_the_swarm(size: int) -> None:
    """Of `size` live members, the times between two proofs of one that has no witness, one that is
    followed, and others that have one or two witnesses."""
    node = Liveness(OWN)
    many = [PeerId(f"member {number}") for number in range(size - 5)]
    node.watch({OWN, A, B, X, Y, Z, *many})
    for peer in (A, B):
        node.linked(peer, peer, 0.0)
        node.told(peer, [Z, *many][:500], [], 0.0, whole=True)
    node.told(A, [Y], [], 0.0, whole=False)
    for peer in (*many, X, Y, Z):
        node.proved(peer, 0.0)
    due(node, 0.1)
    for peer in (X, Y, Z):
        node.proved(peer, 1.0)
    node.brought(X, A)
    times = max(size / defaults.CROWD, 1.0)
    one, more = defaults.PROVE_AGAIN_S[1:]
    watched = node.watched
    assert watched[X].due == 1.0 + min(HEARD_S * times, more)
    assert watched[Y].due == 1.0 + min(one * times, more)
    assert watched[Z].due == 1.0 + more
    assert watched[X].early == max(defaults.TOGETHER_S, min(HEARD_S * times, more) / 4)
    assert more + defaults.CHECK_S < defaults.FOLLOWED_S, "its end is reported until then"
    node.doubt(A, 2.0)
    assert {X} <= due(node, 2.0), "a doubt does not wait"
    node.proved(X, 2.0)
    assert watched[X].due == 2.0 + ALONE_S, "no peer reports its end"


def test_only_the_peer_that_brought_the_proof_causes_a_check(node: Liveness) -> None:
    node.rumoured(B, [X], 5.0)
    assert due(node, 5.0) == set()
    node.rumoured(A, [X], 5.0)
    assert due(node, 5.0) == {X} and node.is_live(X)
    node.failed(X, 6.0)
    assert not node.is_live(X) and node.is_live(Y)


def test_its_reports_cause_a_limited_number_of_checks(
    node: Liveness,
) -> None:
    checks = 0
    for tick in range(600):
        now = 1.0 + tick / 20
        node.rumoured(A, [X], now)
        for peer in due(node, now):
            checks += peer == X
            node.proved(peer, now)
            node.brought(peer, A)
    assert checks <= 31 / defaults.RECHECK_S


@pytest.mark.parametrize("lose", [Liveness.doubt, Liveness.unlinked])
def test_if_its_own_link_fails_the_members_are_checked(
    node: Liveness, lose: Callable[[Liveness, PeerId, float], None]
) -> None:
    lose(node, A, 5.0)
    assert {X, Y} <= due(node, 5.0)
    node.failed(X, 6.0)
    assert not node.is_live(X)


def test_a_member_with_a_witness_relies_on_nobody_else(node: Liveness) -> None:
    node.told(B, [X], [], 1.0, whole=True)
    node.proved(X, 2.0)
    node.brought(X, A)
    node.rumoured(A, [X], 4.0)
    assert due(node, 4.0) == set()


def test_members_that_are_due_soon_are_checked_together(node: Liveness) -> None:
    node.proved(Y, defaults.TOGETHER_S - 0.1)
    assert due(node, HEARD_S) == {X, Y}


def test_members_that_are_due_later_are_not(node: Liveness) -> None:
    node.proved(Y, defaults.TOGETHER_S + 0.1)
    assert due(node, HEARD_S) == {X}


def test_a_rumour_at_the_wrong_time_drops_no_live_member(node: Liveness) -> None:
    """A peer uses up the rounds of checks, and then doubts a member whose check must wait."""
    now = 5.0
    while node._rounds.has(now):
        node.rumoured(A, [Y], now)
        assert due(node, now) == {Y}
        node.proved(Y, now)
        node.brought(Y, A)
        now += defaults.RECHECK_S / 10
        node.watched[Y].proved = 0.0
    node.rumoured(A, [X], now)
    assert due(node, now) == set()
    assert node.next_due(now) <= now + defaults.CHECK_S
    late = now + defaults.CHECK_S + defaults.TURN_S  # the loop may be in its pause
    assert due(node, late) == {X} and node.is_live(X)
    node.failed(X, late + defaults.CHECK_S)
    assert not node.is_live(X)


# Both sides.


async def chain(net: FakeNet) -> list[FakeNode]:
    """Return four nodes in a row, of which each has checked the others."""
    nodes = [FakeNode(net, number, links=0) for number in range(1, 5)]
    for node, known in zip(nodes, ((), *zip(nodes, strict=False)), strict=False):
        net.nursery.start_soon(node.run, *known)
    await trio.sleep(60.0)
    assert len(nodes[0].endpoint.all_links) == 1 and nodes[-1].peer in nodes[0].members
    return nodes


@pytest.fixture
async def net(nursery: trio.Nursery) -> FakeNet:
    return FakeNet(nursery)


@pytest.mark.trio
@pytest.mark.parametrize("told", [True, False])
async def test_the_end_of_a_member_three_links_away_shows_at_once(
    told: bool, net: FakeNet, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _, last, dead = await chain(net)
    if not told:  # control
        monkeypatch.setattr(Followers, "lost", lambda *_: {})
    known = one.directory.probing.liveness.watched[dead.peer]
    while known.proved < trio.current_time() - 0.5:  # noqa: ASYNC110
        await trio.sleep(0.1)  # until no check is due soon
    silence(dead)
    notice(dead, by=last)
    await trio.sleep(defaults.TELL_S + defaults.CHECK_S + 0.4)
    assert (dead.peer in one.members) == (not told)
    await trio.sleep(HEARD_S + defaults.CHECK_S)
    assert dead.peer not in one.members, "it is checked all the same"


@pytest.mark.trio
async def test_a_member_three_links_away_costs_few_questions(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    one, *_ = nodes = await chain(net)
    calls = counted(nodes, "live.find")
    await trio.sleep(10 * HEARD_S)
    assert sum(n for (_, by, _), n in calls.items() if by == one.peer) <= 11
    assert all(node.peer in one.members for node in nodes)


@pytest.mark.trio
@pytest.mark.parametrize("stranger", [True, False])
async def test_a_stranger_follows_nobody(
    stranger: bool, net: FakeNet, autojump_clock: MockClock
) -> None:
    """A peer with a brief link may ask, but would not be told."""
    one, carrier, last, member = await chain(net)
    asker = one.peer
    if stranger:
        other = FakeNode(net, 9, links=0)
        net.connect(other.endpoint, carrier.endpoint, brief=True)
        asker = other.peer
    question = encode_find(1, bytes(defaults.NONCE_BYTES), True, [member.peer])
    assert isinstance(await carrier.endpoint.serve(asker, "live.find", question), Reply)
    told = carrier.directory.probing._followers.lost(last.peer, -math.inf)
    assert (asker in told) == (not stranger)


@pytest.mark.trio
async def test_followers_are_told_a_limited_number_of_times(
    net: FakeNet, autojump_clock: MockClock
) -> None:
    """A witness withdraws and repeats its report again and again."""
    one, carrier, liar, member = nodes = await chain(net)
    carrier.directory.probing.rates.alarms = Rates(Rate(5.0, 0.0))
    told = counted(nodes, "live.lost")
    link: Any = liar.endpoint.all_links[carrier.peer]
    for _ in range(20):
        carrier.directory.probing._follows(one.peer, member.peer, liar.peer)
        for has, lost in (([member.peer], []), ([], [member.peer])):
            body = msgpack.packb([False, has, lost])
            link.post("live.links", payload=body, priority=Priority.CONTROL)
        await trio.sleep(0.2)
    assert told.total() <= 5
