"""Liveness from own links, reports of witnesses, and proofs, tested without a network."""

from collections import Counter
from hashlib import sha256
from itertools import pairwise
from random import Random

import pytest

from shoal.state import defaults
from shoal.state.membership.liveness import Liveness
from shoal.transport.identity import PeerId, peer_id_of

OWN, A, B, C, D, X, Y, Z = (peer_id_of(sha256(bytes([n])).digest()) for n in range(8))
PLACES = {A: "30.0.1.0/24", B: "30.0.2.0/24", C: "30.0.3.0/24", D: "30.0.3.0/24"}


@pytest.fixture
def node() -> Liveness:
    """A node that knows all members and is linked with A, B, C and D."""
    made = Liveness(OWN)
    made.watch({OWN, A, B, C, D, X, Y, Z})
    for peer, place in PLACES.items():
        made.linked(peer, place, 0.0)
    return made


def asked_for(node: Liveness, now: float) -> list[PeerId]:
    """Return the members in the shared questions that are due."""
    return [peer for peers in node.next_questions(now).values() for peer in peers]


def prove(node: Liveness, now: float, *peers: PeerId) -> None:
    """Run all checks that are due at that time; only these peers send a proof."""
    for peer in asked_for(node, now):
        node.answered(peer, now, now, proved=peer in peers)
    for peer in node.next_checks(now):
        if peer in peers:
            node.proved(peer, now)
        else:
            node.failed(peer, now + defaults.CHECK_S)


def due(node: Liveness, now: float) -> set[PeerId]:
    """Return the members that are asked about or checked now."""
    return {*asked_for(node, now), *node.next_checks(now)}


def is_due(node: Liveness, peer: PeerId, now: float) -> bool:
    """Whether a check of it begins now, or a shared question includes it."""
    return peer in due(node, now)


def test_a_peer_with_a_live_link_is_live(node: Liveness) -> None:
    assert list(node.live()) == [A, B, C, D]
    version = node.version
    node.unlinked(A, 5.0)
    assert list(node.live()) == [B, C, D] and node.version > version
    node.linked(A, "", 6.0)
    assert set(node.live()) == {A, B, C, D}


def test_only_a_proof_makes_a_member_live(node: Liveness) -> None:
    node.told(A, [X, Y], [], 1.0, whole=True)
    node.told(B, [X, Y], [], 1.0, whole=True)
    assert not node.is_live(X)
    assert set(asked_for(node, 1.0)) == {X, Y}
    node.answered(X, 1.0, 1.1, proved=True)
    node.answered(Y, 1.0, 1.1, proved=False)
    assert node.is_live(X) and not node.is_live(Y)


def test_a_member_with_fewer_witnesses_is_proved_more_often(
    node: Liveness,
) -> None:
    prove(node, 0.0, X, Y, Z)
    node.told(A, [Y, Z], [], 0.0, whole=True)
    node.told(B, [Z], [], 0.0, whole=True)
    alone, one, more = defaults.PROVE_AGAIN_S
    first: dict[PeerId, float] = {}
    for tick in range(int(more) * 2 + 2):
        for peer in due(node, tick / 2):
            first.setdefault(peer, tick / 2)
            node.answered(peer, tick / 2, tick / 2, proved=True)
            node.proved(peer, tick / 2)
    assert first == {X: alone, Y: one, Z: more}


def test_liveness_is_sure_once_all_members_were_checked(node: Liveness) -> None:
    assert node.is_sure([A, B]) and not node.is_sure([A, X])
    node.next_checks(0.0)
    assert not node.is_sure([X]), "the check is under way"
    node.proved(X, 0.5)
    node.failed(Y, 1.0)
    assert node.is_sure([A, X, Y]) and not node.is_sure([A, X, Y, Z])
    assert not node.is_sure([PeerId("a member that this node just learned of")])


def test_witnesses_of_one_network_count_as_one(node: Liveness) -> None:
    prove(node, 0.0, X, Y)
    node.told(C, [X], [], 0.0, whole=True)
    node.told(D, [X], [], 0.0, whole=True)
    node.told(B, [Y], [], 0.0, whole=True)
    node.told(D, [X, Y], [], 0.0, whole=True)
    found = due(node, defaults.PROVE_AGAIN_S[1])
    assert X in found and Y not in found
    assert node.helpers(Y)[:2] in ([B, D], [D, B])
    assert set(node.helpers(X)[:2]) == {C, D}  # both are asked before others


def test_a_withdrawn_report_only_causes_a_check(node: Liveness) -> None:
    prove(node, 0.0, X)
    node.told(A, [X], [], 1.0, whole=True)
    node.told(B, [X], [], 1.0, whole=True)
    node.told(A, [], [X], 2.0, whole=False)
    assert node.is_live(X)
    assert is_due(node, X, 2.0) and node.is_doubted(X)
    node.proved(X, 2.1)
    assert node.is_live(X) and X not in node.next_checks(2.2)
    node.told(B, [], [X], 5.0, whole=False)
    assert is_due(node, X, 5.0)
    node.failed(X, 6.0)
    assert not node.is_live(X)
    assert X in node.next_checks(6.0 + defaults.CHECK_PAUSE[0])  # and not for good
    node.proved(X, 7.1)
    assert node.is_live(X)


def test_peers_whose_link_is_in_doubt_are_asked_only_if_there_are_no_others(
    node: Liveness,
) -> None:
    for peer in (A, B, C):
        node.doubt(peer, 5.0)
    assert node.helpers(X) == [D]
    node.doubt(D, 5.0)
    assert len(node.helpers(X)) == defaults.ASKED


def test_rumours_cause_a_limited_number_of_checks(
    node: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checks() -> int:
        fresh = Liveness(OWN)
        fresh.watch({A, B, X})
        fresh.linked(A, "a", 0.0)
        fresh.linked(B, "b", 0.0)
        fresh.told(B, [X], [], 0.0, whole=True)
        prove(fresh, 0.0, X)
        begun = 0
        for tick in range(1, 600):
            now = tick / 10
            fresh.told(A, [X], [], now, whole=False)
            fresh.told(A, [], [X], now, whole=False)
            for peer in fresh.next_checks(now):
                begun += peer == X
                fresh.proved(peer, now)
        assert fresh.is_live(X)
        return begun

    within = 60 / defaults.RECHECK_S
    assert checks() <= within
    monkeypatch.setattr(defaults, "RECHECK_S", 0.0)
    monkeypatch.setattr(defaults, "CHECK_ROUNDS", (600.0, 600.0))
    assert checks() > 2 * within  # control


@pytest.mark.parametrize("paced", [True, False])
def test_members_in_doubt_wait_to_be_checked_together(
    paced: bool, node: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a partition members come into doubt one by one, here 40 within 4 s."""
    if not paced:  # control
        monkeypatch.setattr(defaults, "CHECK_ROUNDS", (600.0, 600.0))
    crowd = [peer_id_of(sha256(f"{number}".encode()).digest()) for number in range(40)]
    node = Liveness(OWN)
    node.watch({A, *crowd})
    node.linked(A, "a", 0.0)
    node.told(A, crowd, [], 0.0, whole=True)
    for peer in crowd:
        node.proved(peer, 10.0)
    rounds, waits = 0, []
    for number, peer in enumerate(crowd):
        now = 20.0 + number / 10
        node.told(A, [], [peer], now, whole=False)
        found = node.next_checks(now)
        rounds += bool(found)
        waits += [now - (20.0 + crowd.index(each) / 10) for each in found]
    assert max(waits) < 1.1
    assert (rounds <= 4 + 4) == paced


def test_one_witness_cannot_use_up_the_checks_of_others(
    node: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_checked() -> bool:
        crowd = [peer_id_of(sha256(f"{n}".encode()).digest()) for n in range(300)]
        fresh = Liveness(OWN)
        fresh.watch({A, B, C, X, *crowd})
        for peer in (A, B, C):
            fresh.linked(peer, peer, 0.0)
        fresh.told(A, crowd, [], 0.0, whole=True)
        fresh.told(C, [*crowd, X], [], 0.0, whole=True)
        fresh.told(B, [X], [], 0.0, whole=True)
        for tick in range(100):  # with time for all of them to be proved
            prove(fresh, tick, X, *crowd)
        assert all(map(fresh.is_live, crowd))
        found: set[PeerId] = set()
        for peer in crowd:
            fresh.told(A, [], [peer], 200.0, whole=False)
        fresh.told(B, [], [X], 200.0, whole=False)
        for _ in range(3):
            found |= set(fresh.next_checks(200.0))
            for peer in found:
                fresh.proved(peer, 200.0)
        return X in found

    monkeypatch.setattr(defaults, "CHECKS", (100.0, 16.0))
    monkeypatch.setattr(defaults, "CALM_CHECKS", (100.0, 16.0))
    assert is_checked()
    monkeypatch.setattr(defaults, "ALARMS", (1e9, 1e9))
    assert not is_checked()  # control: checks go by rank, and X is not first


def test_the_reports_of_one_witness_are_bounded(node: Liveness) -> None:
    crowd = [peer_id_of(sha256(f"{n}".encode()).digest()) for n in range(1000)]
    node.told(A, crowd[:700], [], 0.0, whole=True)
    node.told(A, crowd[700:], [], 0.0, whole=False)
    assert len(node._said[A]) == defaults.TESTIMONIES
    node.forget(A)
    assert not node._said


def test_a_link_without_a_path_is_checked_before_it_counts_as_lost(
    node: Liveness,
) -> None:
    node.told(B, [A], [], 0.0, whole=True)
    node.doubt(A, 10.0)
    assert node.is_live(A) and A not in node.answering()
    assert is_due(node, A, 10.0) and node.helpers(A)[0] == B
    node.proved(A, 10.1)
    node.unlinked(A, 11.0)
    assert node.is_live(A)  # by the proof; its link is quiet
    node.linked(A, PLACES[A], 12.0)
    node.doubt(A, 20.0)
    assert is_due(node, A, 20.0)
    node.failed(A, 21.0)
    assert node.is_live(A)  # its link decides
    node.unlinked(A, 21.0)
    assert not node.is_live(A)


def test_a_link_with_a_path_again_is_not_in_doubt(node: Liveness) -> None:
    node.doubt(A, 10.0)
    node.sure(A)
    assert A in node.answering() and not is_due(node, A, 10.0)


def test_a_member_without_its_last_witness_is_soon_checked_or_dead(node: Liveness) -> None:
    prove(node, 0.0, X, Y)
    node.told(A, [X, Y], [], 0.0, whole=True)
    node.unlinked(A, 5.0)
    assert set(node.next_checks(5.0)) >= {X, Y}
    node.proved(X, 5.2)
    node.void([Y])  # our own loop stalled: nothing is known yet
    assert node.is_live(Y)
    node._budget._level, node._budget._at = 0.0, 10.0  # no more checks for now
    node.next_checks(5.0 + defaults.CHECK_S + 0.1)
    assert node.is_live(X) and not node.is_live(Y)


def test_a_check_during_which_this_node_stalled_is_void(node: Liveness) -> None:
    prove(node, 0.0, X)
    node.told(A, [X], [], 0.0, whole=True)
    node.told(A, [], [X], 5.0, whole=False)
    assert is_due(node, X, 5.0)
    node.void([X])
    assert node.is_live(X) and is_due(node, X, 5.1)


def test_a_dead_member_is_checked_ever_more_rarely(node: Liveness) -> None:
    tried = []
    now = 0.0
    while now < 400.0:
        for peer in node.next_checks(now):
            node.failed(peer, now)
            if peer == X:
                tried.append(now)
        now = max(node.next_due(now), now + 0.1)
    pauses = [round(b - a) for a, b in pairwise(tried)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    assert node.has_failed(X)


def test_a_machine_with_a_new_identity_waits_until_the_old_one_is_dead(
    node: Liveness,
) -> None:
    prove(node, 0.0, X)
    node.told(A, [X], [], 0.0, whole=True)
    assert is_due(node, Y, 3.5)
    node.proved(Y, 3.6, rivals=[X])
    assert node.is_live(X) and not node.is_live(Y)
    assert is_due(node, X, 3.6)
    node.failed(X, 4.6)
    assert not node.is_live(X)
    assert is_due(node, Y, 4.7)
    node.proved(Y, 4.8, rivals=[X])
    assert node.is_live(Y)


def test_two_homes_with_one_address_are_both_live(node: Liveness) -> None:
    prove(node, 0.0, X)
    node.told(A, [X, Y], [], 0.0, whole=True)
    node.proved(Y, 1.5, rivals=[X])
    node.proved(X, 1.7, rivals=[Y])
    node.proved(Y, 3.0, rivals=[X])
    assert node.is_live(X) and node.is_live(Y)


def test_a_linked_machine_with_a_new_identity_waits_as_well(node: Liveness) -> None:
    node.linked(X, "x", 10.0, rivals=[A])
    assert node.is_live(A) and not node.is_live(X)
    assert is_due(node, A, 10.0)
    node.failed(A, 11.0)
    assert node.is_live(A) and not node.is_live(X)  # the link of A decides
    version = node.version
    node.unlinked(A, 14.0)
    assert node.is_live(X) and not node.is_live(A) and node.version > version


@pytest.mark.parametrize("again", [True, False])
def test_a_rival_with_a_live_link_is_live(node: Liveness, again: bool) -> None:
    """Two homes have one private address. The check of one fails, or its link is replaced before.
    Without another check it would keep the other one dead for good."""
    node.linked(X, "x", 10.0, rivals=[A])
    if again:
        node.unlinked(A, 10.1)
        node.linked(A, PLACES[A], 10.2, rivals=[])
        node.linked(X, "x", 10.2, rivals=[A])
        node.linked(A, PLACES[A], 10.3)
    else:
        assert is_due(node, A, 10.0)
        node.failed(A, 11.0)
    assert node.is_live(A) and not node.is_live(X)
    version, now = node.version, 11.0
    while now < 10.0 + defaults.RIVAL_S + 2:
        node.next_checks(now)
        now = max(node.next_due(now), now + 0.1)
    assert node.is_live(A) and node.is_live(X) and node.version > version
    assert not node._waiting


def test_a_liar_at_another_address_delays_only_itself(node: Liveness) -> None:
    node.linked(X, "x", 10.0, rivals=[A])
    assert is_due(node, A, 10.0)
    version = node.version
    node.proved(A, 10.1)
    assert node.is_live(A) and node.is_live(X) and node.version > version
    node.linked(A, PLACES[A], 20.0)
    assert node.is_live(A)


def test_an_unknown_member_is_not_live(node: Liveness) -> None:
    prove(node, 0.0, X)
    version = node.version
    node.watch({A, B, C, D})
    assert not node.is_live(X) and node.version > version


def test_members_without_any_witness_are_limited() -> None:
    crowd = [peer_id_of(sha256(f"{n}".encode()).digest()) for n in range(200)]
    node = Liveness(OWN)
    node.watch({A, *crowd})
    node.linked(A, "a", 0.0)
    for tick in range(1_000):
        now = tick / 2
        for peer in node.next_checks(now):
            node.proved(peer, now)
            node.brought(peer, A)
        assert len(list(node.live())) <= 1 + defaults.ALONE
    assert len(list(node.live())) == 1 + defaults.ALONE  # and they stay


def test_a_round_reads_no_lists_of_witnesses(
    node: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 peers that each report on 512 members took 60 ms in each of up to 20 rounds a second."""
    node.told(A, [X, Y], [], 0.0, whole=True)
    node.told(B, [X], [], 0.0, whole=True)
    prove(node, 0.0, X, Y)
    looks = []
    monkeypatch.setattr(Liveness, "_witnesses", lambda self, watched: looks.append(watched))
    for tick in range(100):
        now = float(tick)
        prove(node, now, X, Y)
        node.next_due(now)
    assert not looks


def test_counts_of_witnesses_by_network_stay_correct() -> None:
    """The counts equal a fresh count at every step."""
    draw = Random(1)
    crowd = [A, B, C, D, X, Y, Z]
    node = Liveness(OWN)
    seen: set[int] = set()
    for step in range(3000):
        now, peer, some = step / 4, draw.choice(crowd), draw.sample(crowd, 3)
        match draw.randrange(8):
            case 0:
                node.watch(frozenset(draw.sample(crowd, 5)))
            case 1 | 2:
                node.linked(peer, draw.choice(["", "30.0.1.0/24", "30.0.2.0/24"]), now)
            case 3:
                draw.choice([node.doubt, node.unlinked])(peer, now)
            case 4:
                draw.choice([node.sure, node.forget])(peer)
            case _:
                node.told(peer, some, draw.sample(crowd, 3), now, whole=step % 2 == 0)
        for watched in node.watched.values():
            there = [by for by in watched.witnesses if by in node.answering()]
            assert watched.networks == Counter(node._links[by] for by in there)
            seen.add(len(watched.networks))
    assert seen == {0, 1, 2, 3}


# Links that rest.


def mesh(size: int, linked: bool = True) -> tuple[dict[PeerId, Liveness], list[PeerId]]:
    """Return nodes that are all linked with each other; with `linked`, each has reported that."""
    peers = [peer_id_of(sha256(f"mesh {n}".encode()).digest()) for n in range(size)]
    nodes = {}
    for own in peers:
        node = nodes[own] = Liveness(own)
        node.watch(frozenset(peers))
        others = [peer for peer in peers if peer != own]
        for peer in others:
            node.linked(peer, peer, 0.0)
        for peer in others if linked else []:
            node.told(peer, [each for each in peers if each != peer], [], 0.0, whole=True)
    return nodes, peers


def test_in_a_mesh_most_links_rest_and_every_node_is_watched() -> None:
    nodes, peers = mesh(25)
    close = {own: set(peers) - {own} - node.resting() for own, node in nodes.items()}
    for peer in peers:
        watchers = {own for own in peers if peer in close[own]}
        assert defaults.WATCHERS <= len(watchers) < 24 / 2
        assert watchers == close[peer], "both ends agree on the watchers"


def test_no_link_rests_without_linked_watchers() -> None:
    nodes, _ = mesh(25, linked=False)
    assert all(not node.resting() for node in nodes.values())
    few, _ = mesh(1 + defaults.WATCHERS)
    assert all(not node.resting() for node in few.values())


def test_resting_links_are_computed_only_after_a_change() -> None:
    node = next(iter(mesh(25)[0].values()))
    resting = node.resting()
    assert node.resting() is resting
    by, of = sorted(node.answering())[:2]
    node.told(by, [], [of], 1.0, whole=False)
    told = node.resting()
    assert told is not resting
    node.unlinked(min(told), 3.0)
    assert min(told) not in node.resting()


def test_a_link_rests_only_while_the_watchers_report_it() -> None:
    """A peer that is near to many but reports no links is not a watcher."""
    node = next(iter(mesh(25)[0].values()))
    resting = min(node.resting())
    for by in node.watchers(resting):
        node.told(by, [], [resting], 1.0, whole=False)
    assert resting not in node.resting()


@pytest.mark.parametrize("ended", [False, True])
def test_watchers_depend_on_the_links_a_peer_reports(ended: bool) -> None:
    """If a peer reports few links, this node is among the nearest; also without its report."""
    nodes, peers = mesh(25)
    node = nodes[peers[0]]
    resting = min(node.resting())
    if ended:
        node.forget(resting)
    else:
        node.told(resting, [peers[0]], [], 1.0, whole=True)
    assert resting not in node.resting(), "this node has to watch it"
    node.told(resting, [each for each in peers if each != resting], [], 2.0, whole=True)
    assert resting in node.resting()


def rumoured(node: Liveness, peer: PeerId, now: float) -> bool:
    """Withdraw a witness's report, and return whether a check is due."""
    by = min(node.watchers(peer))
    node.told(by, [], [peer], now, whole=False)
    return is_due(node, peer, now + defaults.RECHECK_S)


def test_a_failed_check_over_a_silent_resting_link_makes_its_peer_dead() -> None:
    nodes, _ = mesh(25)
    node = next(iter(nodes.values()))
    peer = min(node.resting())
    assert rumoured(node, peer, 10.0)
    node.failed(peer, 12.0, silent=True)
    assert not node.is_live(peer) and peer not in node.answering()
    assert is_due(node, peer, 13.1), "it is checked again"
    node.proved(peer, 13.2)
    assert node.is_live(peer) and peer in node.answering()


def test_a_rumour_causes_no_check_over_a_link_that_does_not_rest() -> None:
    """This node's own pings notice the end of the link as soon."""
    node = next(iter(mesh(25)[0].values()))
    watched = min(node.answering() - node.resting())
    for by in sorted(node.answering()):
        node.told(by, [], [watched], 10.0, whole=False)
    assert not is_due(node, watched, 12.0)


def test_a_rumour_does_not_make_an_active_peer_dead() -> None:
    nodes, _ = mesh(25)
    node = next(iter(nodes.values()))
    peer = min(node.resting())
    assert rumoured(node, peer, 10.0)
    node.failed(peer, 12.0, silent=False)
    assert node.is_live(peer) and peer in node.answering()


def test_checks_are_due_no_sooner_than_their_rate_allows(node: Liveness) -> None:
    crowd = [peer_id_of(sha256(f"{n}".encode()).digest()) for n in range(300)]
    node.watch(set(crowd), 0.0)
    node.told(crowd[0], crowd[1:], [], 0.0, whole=True)
    node.linked(crowd[0], "here", 0.0)
    looks, now = 0, 0.0
    while now < 20.0:
        prove(node, now, *crowd)
        looks, now = looks + 1, node.next_due(now)
    assert looks <= 1 + 20 * (defaults.CALM_CHECKS[1] + defaults.CALM_QUESTIONS[1])


def test_undoubted_members_without_a_witness_are_checked_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def checks() -> int:
        crowd = [peer_id_of(sha256(f"{n}".encode()).digest()) for n in range(300)]
        fresh = Liveness(OWN)
        fresh.watch({A, *crowd}, 0.0)
        fresh.linked(A, "a", 0.0)
        begun: set[PeerId] = set()
        for tick in range(100):
            begun.update(found := fresh.next_checks(float(tick)))
            for peer in found:
                fresh.failed(peer, float(tick))
        return len(begun)

    burst, rate = defaults.CALM_CHECKS
    assert checks() <= burst + 100 * rate
    monkeypatch.setattr(defaults, "CALM_CHECKS", (1e9, 1e9))
    assert checks() == 300  # without the rate


@pytest.mark.parametrize("members", [20, 100])
def test_shared_questions_grow_with_witnesses_and_not_members(members: int) -> None:
    """Each of four witnesses reports on a part of the members; the parts overlap."""
    node, witnesses = Liveness(OWN), [A, B, C, D]
    crowd = [peer_id_of(sha256(f"{n}".encode()).digest()) for n in range(members)]
    node.watch({*witnesses, *crowd}, 0.0)
    for number, by in enumerate(witnesses):
        node.linked(by, by, 0.0)
        said = [peer for place, peer in enumerate(crowd) if place % 4 in (number, number - 1)]
        node.told(by, said, [], 0.0, whole=True)
    questions = node.next_questions(0.0)
    assert len(questions) <= len(witnesses)
    assert Counter(peer for asked in questions.values() for peer in asked) == Counter(crowd)
    assert not node.next_questions(0.0) and not node.next_checks(0.0), "they are under way"


def test_shared_questions_are_rate_limited(node: Liveness) -> None:
    node.watch({A, *(crowd := [PeerId(f"m{n}") for n in range(500)])}, 0.0)
    node.told(A, crowd, [], 0.0, whole=True)
    questions = 0
    for tick in range(600):
        for by, asked in node.next_questions(tick / 10).items():
            assert by == A and len(asked) <= defaults.ASKED_FOR
            questions += 1
            for peer in asked:
                node.answered(peer, tick / 10, tick / 10, proved=True)
    burst, rate = defaults.CALM_QUESTIONS
    assert 4 <= questions <= burst + 60 * rate


def test_a_shared_proof_after_a_doubt_does_not_count(node: Liveness) -> None:
    """A witness could keep the signature of a member that has died meanwhile."""
    for by in (A, B):
        node.told(by, [X], [], 0.0, whole=True)
    prove(node, 0.0, X)
    again = defaults.PROVE_AGAIN_S[2]
    assert asked_for(node, again) == [X]
    node.told(B, [], [X], again + 0.1, whole=False)
    assert X in node.next_checks(again + 0.1), "the question does not delay the check"
    node.failed(X, again + 1.1)
    node.answered(X, again, again + 2.0, proved=True)
    assert not node.is_live(X)


def test_a_live_member_without_a_shared_proof_is_checked_at_once(node: Liveness) -> None:
    node.told(A, [X], [], 0.0, whole=True)
    prove(node, 0.0, X)
    again = defaults.PROVE_AGAIN_S[1]
    assert asked_for(node, again) == [X]
    node.answered(X, again, again + 1.0, proved=False)
    assert node.is_live(X) and X in node.next_checks(again + 1.0)
    node.failed(X, again + 2.0)
    assert not node.is_live(X)


def test_a_new_member_without_a_witness_is_not_checked_at_once() -> None:
    fresh = Liveness(OWN)
    fresh.linked(A, "a", 0.0)
    fresh.watch({A, X}, 5.0)
    assert not is_due(fresh, X, 5.0 + defaults.UNSEEN_S - 0.1)
    assert is_due(fresh, X, 5.0 + defaults.UNSEEN_S)
    fresh = Liveness(OWN)
    fresh.linked(A, "a", 0.0)
    fresh.watch({A, X}, 5.0)
    fresh.told(A, [X], [], 5.0, whole=True)
    assert is_due(fresh, X, 5.0), "a witness is enough"


def test_unseen_members_are_live_without_a_witness_or_never_checked() -> None:
    node = Liveness(OWN)
    node.watch({A, X}, 0.0)
    node.linked(A, "", 0.0)
    assert not node.has_unseen(defaults.UNSEEN_S - 1)  # a witness may still come
    assert node.has_unseen(defaults.UNSEEN_S)
    assert node.next_checks(defaults.UNSEEN_S) == [X]
    node.failed(X, defaults.UNSEEN_S + 1)
    assert not node.has_unseen(1e9)  # a check found nothing
    node.proved(X, 1e9)
    assert node.has_unseen(1e9)
    node.told(A, [X], [], 1e9, whole=True)
    assert not node.has_unseen(1e9)


def nearest(peer: PeerId, crowd: list[PeerId]) -> list[PeerId]:
    """Return the crowd in the order of its XOR distance to a peer, the nearest first."""

    def place(one: PeerId) -> int:
        return int.from_bytes(sha256(str(one).encode()).digest())

    return sorted(crowd, key=lambda one: place(one) ^ place(peer))


def distant() -> tuple[Liveness, PeerId, list[PeerId], list[PeerId]]:
    """Return a node, a linked peer, the peer's watchers, which have no link here, and two linked
    peers that report links with those watchers."""
    crowd = [peer_id_of(sha256(f"distant {n}".encode()).digest()) for n in range(40)]
    peer, *others = crowd
    order = nearest(peer, others)
    watchers, carriers, rest = order[: defaults.WATCHERS], order[-2:], order[defaults.WATCHERS : -2]
    own = order[-3]
    node = Liveness(own)
    node.watch(set(crowd))
    near = [each for each in nearest(own, rest) if each != own][: defaults.WATCHERS]
    for each in (peer, *carriers, *near):
        node.linked(each, each, 0.0)
    node.told(peer, [own, *watchers], [], 0.0, whole=True)
    for carrier in carriers:
        node.told(carrier, watchers, [], 0.0, whole=True)
    node.shown({peer, *carriers, *near})
    return node, peer, watchers, carriers


def test_a_link_rests_if_linked_peers_pass_on_what_the_watchers_report() -> None:
    node, peer, watchers, carriers = distant()
    assert node.watchers(peer) == set(watchers)
    assert peer in node.resting()
    node.told(carriers[0], [], watchers[1:], 1.0, whole=False)
    assert peer not in node.resting(), "one linked peer alone may lie"
    node.told(carriers[0], watchers, [], 2.0, whole=False)
    assert peer in node.resting()
    node.doubt(carriers[1], 3.0)
    assert peer not in node.resting(), "a link that does not answer carries nothing"


def test_a_link_of_which_no_report_went_out_does_not_rest_by_others_reports() -> None:
    """Peers pass on only what concerns a link that they know of."""
    node, peer, _, carriers = distant()
    node.shown(set(carriers))
    assert peer not in node.resting()
    node.shown({peer, *carriers})
    assert peer in node.resting()


def test_what_a_linked_peer_passes_on_causes_a_check_of_a_resting_peer_only() -> None:
    node, peer, _, carriers = distant()
    loud = min(node.answering() - node.resting())
    node.rumoured(carriers[0], [peer, loud], 10.0)
    checked = node.next_checks(10.0)
    assert peer in checked and loud not in checked


def test_what_a_linked_peer_passes_on_causes_a_limited_number_of_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = 1.0 + defaults.WATCHERS  # the reports of `distant` cause checks, too
    monkeypatch.setattr(defaults, "ALARMS", (reports, 0.0))
    node, peer, _, carriers = distant()
    assert peer in node.resting()
    node.rumoured(carriers[0], [peer], 10.0)
    assert peer in node.next_checks(10.0)
    node.proved(peer, 10.1)
    node.rumoured(carriers[0], [peer], 20.0)
    assert peer not in node.next_checks(20.0 + defaults.RECHECK_S)


def test_a_watcher_s_loss_is_passed_on_to_those_that_have_a_link_and_do_not_hear_of_it() -> None:
    by, *others = nearest(X, [A, B, C, D])
    node = Liveness(OWN)
    for peer, place in PLACES.items():
        node.linked(peer, place, 0.0)
    node.told(by, [X, others[0]], [], 0.0, whole=True)
    node.told(others[0], [X, by], [], 0.0, whole=True)
    node.told(others[1], [X], [], 0.0, whole=True)
    assert node.to_tell(by, [X, Y]) == {others[1]: [X]}, "others[2] has no link with X"
    node.doubt(others[1], 1.0)
    assert node.to_tell(by, [X]) == {}


def test_the_loss_of_a_peer_that_is_no_watcher_is_not_passed_on() -> None:
    crowd = [peer_id_of(sha256(f"crowd {n}".encode()).digest()) for n in range(6)]
    order = nearest(X, crowd)
    node = Liveness(OWN)
    for peer in order:
        node.linked(peer, peer, 0.0)
        node.told(peer, [X], [], 0.0, whole=True)
    last, next_one = order[defaults.WATCHERS - 1 :][:2]
    assert set(node.to_tell(last, [X])) == {*order} - {last}
    assert node.to_tell(next_one, [X]) == {}


def test_a_question_is_about_live_members_or_about_others(node: Liveness) -> None:
    """A witness hurries for a new member, and each member in such a question has to sign."""
    node.watch({OWN, A, B, C, D, X, Y})
    node.told(A, [X, Y, Z], [], 0.0, whole=True)
    assert set(asked_for(node, 0.0)) == {X, Y}
    for peer in (X, Y):
        node.answered(peer, 0.0, 0.5, proved=True)
    later = defaults.PROVE_AGAIN_S[1] + 0.5
    node.watch({OWN, A, B, C, D, X, Y, Z}, later)
    assert [*map(set, node.next_questions(later).values())] == [{X, Y}]
    assert [*map(set, node.next_questions(later).values())] == [{Z}]


def test_members_that_may_not_be_checked_do_not_wake_the_loop() -> None:
    """Once ALONE members without a witness are followed, the others wait for a change."""
    node = Liveness(OWN)
    many = [PeerId(f"member {number}") for number in range(2 * defaults.ALONE)]
    node.watch({OWN, A, *many}, 0.0)
    node.linked(A, "", 0.0)
    now = defaults.UNSEEN_S
    while sum(map(node.is_live, many)) < defaults.ALONE:
        for peer in node.next_checks(now):
            node.proved(peer, now)
            node.brought(peer, A)
        now += 1 / defaults.CALM_CHECKS[1]
    for peer in filter(node.is_live, many):
        node.proved(peer, now)
    assert node.next_checks(now + 1.0) == []
    assert node.next_due(now) > now + 60.0
    node.failed(next(filter(node.is_live, many)), now)
    assert node.next_due(now) < now + 1.0
    assert len(node.next_checks(now)) == 1, "there is room for another one"
