"""Which records are stored, which ones they evict, and which members are dialled."""

from math import inf

import pytest

from shoal.state import defaults
from shoal.state.errors import BadRecord, Forged
from shoal.state.membership import roster as roster_module
from shoal.state.membership.record import DOMAIN, MemberRecord, seal_record
from shoal.state.membership.roster import RecordOffer, Roster, Tag, mark_of, tag_of
from shoal.transport.identity import Identity, PeerId
from shoal.transport.networks import Nearness
from shoal.transport.rates import Rate, Rates
from shoal.transport.signed import seal

OWN = Identity.from_seed(b"\xff" * 32)
WALL = 1_700_000_000_000


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32))


def sealed(number: int, seq: int = WALL, address: str = "/ip4/8.8.8.8/tcp/4001") -> bytes:
    author = identity(number)
    return seal_record(author, MemberRecord(author.peer, seq, (address,)))


def told(roster: Roster, number: int, source: int, now: float = 0.0, seq: int = WALL) -> bool:
    record = roster.receive(sealed(number, seq), identity(source).peer, Nearness.PUBLIC, now)
    return record is not None


@pytest.fixture
def roster() -> Roster:
    found = Roster(OWN.peer)
    found.linked(identity(1).peer, Nearness.PUBLIC)
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the table small, so that floods are short."""
    monkeypatch.setattr(defaults, "MEMBERS", 12)
    monkeypatch.setattr(defaults, "VOUCHED", 6)


def test_news_is_stored_once(roster: Roster) -> None:
    assert told(roster, 2, 1)
    assert not told(roster, 2, 1)
    assert not told(roster, 2, 1, seq=WALL - 1)
    assert told(roster, 2, 1, seq=WALL + 1)


def test_known_seqs_cost_no_signature_check(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(roster, 2, 1)
    monkeypatch.setattr(roster_module, "open_record", None)
    assert not told(roster, 2, 1)


def test_a_forged_record_blames_its_sender(roster: Roster) -> None:
    bad = bytearray(sealed(2))
    bad[60] ^= 1
    for data in (bytes(bad), b"", b"\x93\x01\x02\x03", sealed(2)[:-1]):
        with pytest.raises(Forged):
            roster.receive(data, identity(1).peer, Nearness.PUBLIC, 0.0)
    assert len(roster) == 0


def test_a_malformed_record_blames_its_author(roster: Roster) -> None:
    body = b"\x82\xa3seq\x01\xa9addresses\xa1x"
    bad = seal(identity(2), DOMAIN, body)
    assert roster.receive(bad, identity(1).peer, Nearness.PUBLIC, 0.0) is None
    with pytest.raises(BadRecord):
        roster.receive(bad, identity(2).peer, Nearness.PUBLIC, 0.0)


def test_only_live_peers_are_members(roster: Roster) -> None:
    told(roster, 1, 1)
    told(roster, 2, 1)
    assert set(roster.members()) == {identity(1).peer}
    roster.unlinked(identity(1).peer, 0.0)
    assert not roster.members()


def test_the_own_record_cannot_be_replaced(roster: Roster) -> None:
    own = seal_record(OWN, MemberRecord(OWN.peer, WALL))
    assert roster.receive(own, identity(1).peer, Nearness.PUBLIC, 0.0) is None
    assert len(roster) == 0
    assert roster.reclaimed == WALL
    forged = seal(identity(2), DOMAIN, b"\x81\xa3seq\xcd\xff\xff")
    assert roster.receive(forged, identity(1).peer, Nearness.PUBLIC, 0.0) is not None
    assert roster.reclaimed == WALL


@pytest.mark.usefixtures("small")
def test_hearsay_of_one_peer_is_limited(roster: Roster) -> None:
    assert sum(told(roster, number, 1) for number in range(100, 150)) == defaults.VOUCHED


@pytest.mark.usefixtures("small")
def test_a_flood_beyond_the_quota_costs_no_signature_check(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100, 150):
        told(roster, number, 1)
    monkeypatch.setattr(roster_module, "open_record", None)
    assert not told(roster, 200, 1)


@pytest.mark.usefixtures("small")
def test_floods_evict_each_other_and_no_honest_records(roster: Roster) -> None:
    for source in (2, 3):
        for number in range(100):
            told(roster, 100 * source + number, source)
    assert len(roster) == defaults.MEMBERS
    assert told(roster, 1, 1)  # a live member is always stored
    assert told(roster, 10, 1)  # and so is what only it tells
    assert len(roster) <= defaults.MEMBERS
    assert roster.known(identity(10).peer)


@pytest.mark.usefixtures("small")
def test_live_members_are_never_evicted(roster: Roster) -> None:
    for number in range(defaults.MEMBERS):
        roster.linked(identity(number).peer, Nearness.PUBLIC)
        told(roster, number, number)
    assert not told(roster, 500, 1)
    assert len(roster.members()) == defaults.MEMBERS


@pytest.mark.usefixtures("small")
def test_the_peer_that_told_most_loses_hearsay_and_not_its_own_record(roster: Roster) -> None:
    for source in (1, 2):
        roster.linked(identity(source).peer, Nearness.PUBLIC)
        told(roster, source, source)
        for number in range(100):
            told(roster, 100 * source + number, source)
    assert len(roster) == defaults.MEMBERS
    for number in range(3):
        assert told(roster, 500 + number, 3, now=1.0)
    assert len(roster.members()) == 2


def test_an_author_that_changes_often_is_rate_limited(roster: Roster) -> None:
    taken = sum(told(roster, 1, 1, now=0.0, seq=WALL + step) for step in range(1000))
    assert taken == defaults.AUTHOR_UPDATES[0] + 1
    assert told(roster, 1, 1, now=1.0, seq=WALL + 2000)


def test_missing_records_are_asked_for(roster: Roster) -> None:
    told(roster, 2, 1)
    two, three = identity(2).peer, identity(3).peer

    def lacking(seqs: dict[str, int]) -> list[Tag]:
        offers = {
            tag_of(PeerId(p)): RecordOffer(seq, Nearness.PUBLIC, 0) for p, seq in seqs.items()
        }
        return roster.lacking(offers, Nearness.PUBLIC, 1.0, own_seq=5)

    assert lacking({two: WALL, three: 1, OWN.peer: 5}) == [tag_of(three)]
    assert lacking({two: WALL + 1, OWN.peer: 6}) == [tag_of(two), tag_of(OWN.peer)]
    assert len(lacking({f"p{number}": 1 for number in range(10_000)})) == 2 * defaults.VOUCHED


def test_a_dropped_author_leaves_no_tag(roster: Roster) -> None:
    told(roster, 2, 1)
    tag = tag_of(identity(2).peer)
    assert roster.tagged(tag) is roster.known(identity(2).peer) is not None
    roster.next_dials(2 * defaults.FORGET, 1)
    assert roster.tagged(tag) is None and not roster.has(tag, 1)


def test_an_offer_has_nearness_and_age(roster: Roster) -> None:
    told(roster, 2, 1)
    two = identity(2).peer
    tag = tag_of(two)
    assert roster.offers(500.5) == {tag: RecordOffer(WALL, Nearness.PUBLIC, 501)}
    roster.lacking(
        {tag: RecordOffer(WALL, Nearness.LOOPBACK, 20)}, Nearness.PUBLIC, 500.0, own_seq=5
    )
    assert roster.offers(500.5)[tag].age == 21  # another node had a link 20 s ago
    roster.linked(two, Nearness.PUBLIC)
    assert roster.offers(900.0)[tag].age == 0


# Dialling.


def dialled(roster: Roster, now: float) -> list[PeerId]:
    return [peer for peer, _ in roster.next_dials(now, 20)]


def test_one_end_dials_first(roster: Roster) -> None:
    for number in range(2, 12):
        told(roster, number, 1)
    at_once = set(dialled(roster, 0.0))
    assert at_once == {
        identity(number).peer for number in range(2, 12) if OWN.peer < identity(number).peer
    }
    later = set(dialled(roster, defaults.DIAL_YIELD))
    assert later
    assert len(at_once | later) == 10


def test_failed_dials_are_repeated_with_growing_pauses(roster: Roster) -> None:
    told(roster, 2, 1)
    peer, now, pauses = identity(2).peer, 1.0, []
    for _ in range(4):
        assert dialled(roster, now) == [peer]
        assert dialled(roster, now) == []  # while a dial is in progress
        roster.dialled(peer, now, lambda seconds: seconds)
        pauses.append(roster.next_due() - now)
        assert dialled(roster, now + pauses[-1] - 0.01) == []
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8]


def _dialled_in_vain(roster: Roster, seconds: int) -> int:
    """Return the dials to members that do not exist, with as many records as one peer may send."""
    assert all(told(roster, 1000 + n, 1) for n in range(defaults.VOUCHED))
    count = 0
    for second in range(seconds):
        for peer, _ in roster.next_dials(float(second), 20):
            roster.dialled(peer, float(second), lambda pause: pause)
            count += 1
    return count


def test_dials_to_nonexistent_members_are_limited_for_each_peer(roster: Roster) -> None:
    assert _dialled_in_vain(roster, 60) <= 64 + 30


def test_without_the_limit_they_are_many(roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "_ghosts", Rates(Rate(1e9, 1e9)))
    assert _dialled_in_vain(roster, 60) > 500


def test_a_successful_dial_does_not_count_against_its_source(roster: Roster) -> None:
    assert all(told(roster, 1000 + n, 1) for n in range(100))
    met = set()
    for _ in range(20):
        for peer, _ in roster.next_dials(1.0, 8):
            roster.linked(peer, Nearness.PUBLIC)
            roster.dialled(peer, 1.0, lambda pause: pause)
            met.add(peer)
    assert len(met) == 100


def test_a_misbehaving_peer_is_dialled_late(roster: Roster) -> None:
    told(roster, 1, 1)
    roster.put_off(identity(1).peer)
    roster.unlinked(identity(1).peer, 5.0)
    assert roster.next_due() == 5.0 + defaults.DIAL_PAUSE[1]


def test_a_new_address_is_tried_at_once(roster: Roster) -> None:
    peer = identity(2).peer
    told(roster, 2, 1)
    dialled(roster, 1.0)
    roster.dialled(peer, 1.0, lambda seconds: 100 * seconds)
    moved = sealed(2, WALL + 1, "/ip4/9.9.9.9/tcp/4001")
    roster.receive(moved, identity(1).peer, Nearness.PUBLIC, 2.0)
    ((found, addresses),) = roster.next_dials(2.0, 8)
    assert (found, addresses[0].host) == (peer, "9.9.9.9")


@pytest.mark.parametrize("reach", [Nearness.PUBLIC, Nearness.PRIVATE, Nearness.LOOPBACK])
def test_only_addresses_as_near_as_their_source_are_dialled(
    roster: Roster, reach: Nearness
) -> None:
    near = sealed(2, address="/ip4/127.0.0.1/tcp/4022")
    roster.receive(near, identity(1).peer, reach, 0.0)
    assert bool(dialled(roster, 1.0)) == (reach == Nearness.LOOPBACK)


def test_a_lost_member_is_dialled_for_a_while_and_then_forgotten(roster: Roster) -> None:
    peer = identity(1).peer
    told(roster, 1, 1)
    assert dialled(roster, 1.0) == []
    roster.unlinked(peer, 1.0)
    assert dialled(roster, 2.0) == [peer]
    roster.dialled(peer, 2.0, lambda seconds: seconds)
    assert dialled(roster, 1.0 + defaults.FORGET + 1) == []
    assert roster.known(peer) is None


def test_a_peer_that_does_not_count_is_not_dialled(roster: Roster) -> None:
    peer = identity(1).peer
    told(roster, 1, 1)
    roster.unlinked(peer, 1.0)
    roster.count_only(lambda other: other != peer)
    assert dialled(roster, 2.0) == [] and roster.next_due() == inf
    roster.count_only(lambda other: True)
    assert dialled(roster, 2.0) == [peer]


def test_members_with_the_same_address_are_found(roster: Roster) -> None:
    circuit = f"/ip4/8.8.8.8/tcp/1/p2p/{identity(9).peer}/p2p-circuit/p2p/{identity(5).peer}"
    places = ["/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/1", "/ip4/8.8.8.8/tcp/2", circuit]
    for number, place in enumerate(places, 2):
        roster.receive(sealed(number, address=place), identity(1).peer, Nearness.PUBLIC, 0.0)
    a, b, c, d = (identity(number).peer for number in range(2, 6))
    assert set(roster.authors()) == {a, b, c, d}
    assert roster.at("8.8.8.8", 1) == [a, b]  # a relay's address does not identify a member
    assert roster.neighbours(a) == [b] and roster.neighbours(c) == roster.neighbours(d) == []
    again = sealed(3, WALL + 1, "/ip4/8.8.8.8/tcp/3")
    roster.receive(again, identity(1).peer, Nearness.PUBLIC, 1.0)
    assert roster.neighbours(a) == []


def test_a_member_proved_live_is_not_forgotten(roster: Roster) -> None:
    told(roster, 2, 1)
    told(roster, 3, 1)
    roster.answered(identity(2).peer, defaults.FORGET)
    roster.next_dials(defaults.FORGET + 1, 8)
    assert roster.authors() == {identity(2).peer}


def test_a_member_that_lost_its_link_is_dialled_despite_enough_links(roster: Roster) -> None:
    """Otherwise a partitioned swarm stays so, because each side has enough links."""
    for number in (2, 3):
        told(roster, number, 1)
    roster.linked(identity(2).peer, Nearness.PUBLIC)
    roster.unlinked(identity(2).peer, 10.0)
    later = 10.0 + defaults.DIAL_PAUSE[0]
    assert roster.next_due(lost=True) == later
    assert [peer for peer, _ in roster.next_dials(later, 0)] == []
    assert [peer for peer, _ in roster.next_dials(later, 0, 8)] == [identity(2).peer]
    assert roster.next_due(lost=True) == inf


def test_two_homes_with_the_same_private_address_are_no_rivals(roster: Roster) -> None:
    """Half of all homes have a 192.168.1.2, but two members with one public address are rivals."""
    author = [identity(number) for number in range(8)]

    def publish(number: int, address: str, reach: Nearness) -> None:
        roster.receive(sealed(number, address=address), author[1].peer, reach, 0.0)

    publish(2, "/ip4/192.168.1.2/tcp/4001", Nearness.PUBLIC)
    publish(3, "/ip4/192.168.1.2/tcp/4001", Nearness.PUBLIC)
    publish(4, "/ip4/8.8.4.4/tcp/4001", Nearness.PUBLIC)
    publish(5, "/ip4/8.8.4.4/tcp/4001", Nearness.PUBLIC)
    publish(6, "/ip4/192.168.7.7/tcp/4001", Nearness.PRIVATE)
    publish(7, "/ip4/192.168.7.7/tcp/4001", Nearness.PRIVATE)
    assert roster.neighbours(author[2].peer) == []
    assert roster.neighbours(author[4].peer) == [author[5].peer]
    assert roster.neighbours(author[6].peer) == [author[7].peer]


def test_sums_narrow_down_the_records_to_compare(roster: Roster) -> None:
    own = mark_of(b"own")
    other = Roster(OWN.peer)
    other.linked(identity(1).peer, Nearness.PUBLIC)
    for number in range(2, 60):
        told(roster, number, 1)
        told(other, number, 1)
    assert roster.sums(own) == other.sums(own)
    assert roster.differing(roster.sums(own), other.sums(own)) == []
    told(other, 70, 1)
    told(other, 5, 1, seq=WALL + 1)
    differing = other.differing(other.sums(own), roster.sums(own))
    assert {identity(70).peer, identity(5).peer} <= set(differing)
    assert len(differing) < 20, "a digest of everything"


def test_a_member_whose_link_looks_for_a_path_is_not_dialled(roster: Roster) -> None:
    peer = identity(1).peer
    told(roster, 1, 1)
    roster.unlinked(peer, 1.0, searched=True)
    assert roster.next_due(lost=True) == inf and dialled(roster, 15.0) == []
    roster.unlinked(peer, 20.0)
    assert dialled(roster, 20.0 + defaults.DIAL_PAUSE[0]) == [peer]


def test_a_node_with_enough_links_looks_only_at_the_members_that_it_has_lost(
    roster: Roster,
) -> None:
    for number in range(2, 12):
        told(roster, number, 1)
    three, four = identity(3).peer, identity(4).peer
    for peer in (three, four):
        roster.linked(peer, Nearness.PUBLIC)
        roster.unlinked(peer, 1.0)
    roster.linked(four, Nearness.PUBLIC)
    assert roster.has_lost(three) and not roster.has_lost(four)
    looked_at = list[PeerId]()

    def counts(peer: PeerId) -> bool:
        looked_at.append(peer)
        return True

    roster.count_only(counts)
    assert roster.next_due(lost=True) == 1.0 + defaults.DIAL_PAUSE[0]
    assert looked_at == [three]
    assert [peer for peer, _ in roster.next_dials(9.0, 0, lost=8)] == [three]
    assert looked_at == [three, three]
