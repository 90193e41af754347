"""Links as shared facts: noise is not reported, and one end alone makes no link near."""

from itertools import pairwise
from math import inf
from random import Random

import pytest

from shoal.state.defaults import LINKS
from shoal.state.membership.record import LinkSpeed, MemberRecord
from shoal.state.membership.roster import tag_of
from shoal.tasks.costs.links import between
from shoal.tasks.costs.rates import LinkRates
from shoal.tasks.placement.fleet import FAR
from shoal.tasks.placement.links import STEPS_MS, ReportedTrips, links_between, report
from shoal.transport.identity import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def member(peer: PeerId, **trips: float) -> MemberRecord:
    links = tuple(LinkSpeed(tag_of(PeerId(other)), trip) for other, trip in trips.items())
    return MemberRecord(peer, 1, links=links)


def trip(seconds: float, rate: float = 1e7) -> LinkRates:
    return LinkRates(seconds, rate)


def test_round_trips_are_rounded_up_to_steps() -> None:
    found = report({A: trip(0.0101), B: trip(9.9), C: trip(0.0)}, {A, B, C}, ())
    assert [link.round_trip_ms for link in found] == [10.3, 5040.0, 0.25]


def test_only_counted_peers_are_reported_and_not_too_many() -> None:
    trips = {PeerId(f"{number:03}"): trip(0.01) for number in range(2 * LINKS)}
    assert report(trips, {A}, ()) == ()
    assert len(report(trips, set(trips), ())) == LINKS


def test_noise_changes_no_report() -> None:
    luck, said, changes = Random(1), report({A: trip(0.02)}, {A}, ()), 0
    for _ in range(1000):
        found = report(
            {A: trip(0.02 * luck.uniform(0.7, 1.4), luck.uniform(7e6, 1.4e7))}, {A}, said
        )
        changes += found != said
        said = found
    assert not changes
    assert report({A: trip(0.05)}, {A}, said)[0].round_trip_ms == 52.0
    assert report({A: trip(0.02, 5e7)}, {A}, said)[0].rate == 5e7


def test_of_two_ends_the_longer_round_trip_counts() -> None:
    found = links_between([member(A, b=1.0), member(B, a=20.0)])
    assert found == {(A, B): LinkRates(0.02, FAR.rate)}


def test_one_end_alone_makes_no_link_near() -> None:
    """Else a member that claims to be near all others would attract their layers."""
    assert links_between([member(A, b=0.25, c=0.25), member(B), member(C)]) == {
        (A, B): FAR, (A, C): FAR, (B, C): between(FAR, FAR),
    }  # fmt: skip
    assert links_between([member(A, b=500.0), member(B)])[A, B].round_trip_s == 0.5


def test_missing_links_are_estimated_over_the_nearest_common_member() -> None:
    d = PeerId("d")
    found = links_between([
        member(A, c=10.0, d=100.0), member(B, c=20.0, d=100.0), member(C, a=10.0, b=20.0),
        member(d, a=100.0, b=100.0),
    ])  # fmt: skip
    assert 0.01 <= found[A, B].round_trip_s <= 0.03
    assert found[C, d].round_trip_s > 0.08


def test_links_to_strangers_and_to_itself_are_skipped() -> None:
    assert links_between([member(A, a=1.0, z=1.0)]) == {}


def test_the_order_of_members_does_not_matter() -> None:
    members = [member(A, b=1.0, c=2.0), member(B, a=3.0, c=5.0), member(C, a=2.0, b=1.0)]
    assert list(links_between(members).items()) == list(links_between(members[::-1]).items())


def test_steps_ascend_by_a_tenth() -> None:
    """Coarser ones hide which of two chains is shorter."""
    assert all(1.08 < two / one < 1.12 for one, two in pairwise(STEPS_MS))


def test_a_round_trip_counts_if_both_ends_report_it() -> None:
    trips = ReportedTrips()
    here, there = member(A, b=40.0), member(B, a=70.0)
    assert trips.between(here, there) == trips.between(there, here) == 0.07
    assert trips.between(here, member(B)) == 0.0
    assert trips.between(member(A), there) == 0.0, "a new report takes the place of the old one"
    assert trips.between(here, member(B, a=0.25)) == 0.04


def test_third_members_bound_a_round_trip() -> None:
    trips = ReportedTrips()
    here, there, third = member(A, c=30.0), member(B, c=50.0), member(C, a=30.0, b=50.0)
    assert trips.bounds(here, there) == (0.0, inf), "no question was about the third one"
    trips.between(here, third)
    assert trips.bounds(here, there) == pytest.approx((0.02, 0.08))
    assert trips.bounds(here, member(B)) == (0.0, inf), "the third one alone says it"
    liar = member(B, c=0.25)
    assert trips.bounds(here, liar) == pytest.approx((0.02, 0.08)), "the longer report counts"
    trips.between(here, member(C, a=30.0))
    assert trips.bounds(here, there) == (0.0, inf)


def test_a_rate_counts_if_both_ends_report_it_and_the_lower_one() -> None:
    def says(peer: PeerId, other: PeerId, rate: float) -> MemberRecord:
        return MemberRecord(peer, 1, links=(LinkSpeed(tag_of(other), 10.0, rate),))

    trips, here = ReportedTrips(), says(A, B, 125e3)
    assert trips.rate(here, says(B, A, 1e9)) == trips.rate(says(B, A, 1e9), here) == 125e3
    assert trips.rate(here, member(B)) == trips.rate(here, says(B, A, 0.0)) == 0.0
