"""Which feeds of others a node keeps, and for how long."""

from math import inf

from shoal.state import defaults
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.kinds import all_parts
from shoal.state.replication.interest import BASE, TUNING, WORK, Interest, both

SHARD: Plot = ("shards", 3)
OTHER: Plot = ("shards", 4)


def kept(interest: Interest) -> set[Plot]:
    return {plot for plot in all_parts() if interest(plot)}


def test_without_a_choice_all_kinds_are_kept() -> None:
    interest = Interest()
    interest.need([SHARD], 0.0)
    interest.wrote(("jobs", 0))
    assert interest.stored is None and interest.aside() == [] and interest.next_at() == inf
    assert interest.expire(inf) == frozenset() and kept(interest) == set(all_parts())


def test_needed_feeds_are_kept_at_once_and_dropped_after_a_while() -> None:
    interest = Interest([])
    gained: list[frozenset[Plot]] = []
    interest.on_gained.append(gained.append)
    assert kept(interest) == BASE
    assert interest.need([SHARD], 0.0)
    assert not interest.need([SHARD], 0.5)  # no change
    assert kept(interest) == {*BASE, SHARD} and gained == [{SHARD}]
    interest.need([OTHER], 1.0)
    assert kept(interest) == {*BASE, SHARD, OTHER} and gained[1:] == [{OTHER}]
    assert interest.next_at() == 1.0 + defaults.UNUSED_KEPT
    assert interest.expire(defaults.UNUSED_KEPT) == frozenset()
    assert interest.expire(1.0 + defaults.UNUSED_KEPT) == {SHARD}
    assert kept(interest) == {*BASE, OTHER} and SHARD in interest.aside()


def test_feeds_needed_again_in_time_are_not_dropped() -> None:
    interest = Interest([SHARD])
    gained: list[frozenset[Plot]] = []
    interest.on_gained.append(gained.append)
    interest.need([], 0.0)
    interest.need([SHARD], 1.0)
    assert interest.expire(inf) == frozenset() and kept(interest) == {*BASE, SHARD}
    assert gained == []


def test_a_writer_of_jobs_or_claims_keeps_both() -> None:
    interest = Interest([])
    interest.wrote(("member", 0))
    assert kept(interest) == BASE
    interest.wrote(("claims", 0))
    interest.need([], 0.0)
    assert interest.expire(inf) == frozenset() and kept(interest) == BASE | WORK


def test_common_interest_is_the_intersection() -> None:
    one, other = frozenset((SHARD, OTHER)), frozenset((OTHER,))
    assert both(None, None) is None
    assert both(one, None) == both(None, one) == one
    assert both(one, other) == other


def test_a_node_that_takes_part_in_training_keeps_what_the_others_write() -> None:
    interest = Interest([])
    interest.wrote(("tuning", 0))
    assert kept(interest) == BASE | TUNING
    interest.wrote(("jobs", 0))
    interest.need([], 0.0)
    assert kept(interest) == BASE | TUNING | WORK
