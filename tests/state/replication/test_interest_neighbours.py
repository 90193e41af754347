"""Which peers get news or are compared with if not all keep the same feeds."""

from collections import Counter
from collections.abc import Iterable
from random import Random

from shoal.state import defaults
from shoal.state.feeds.digest import Plot
from shoal.state.replication.interest import Neighbours
from shoal.transport.identity import PeerId

PLOT: Plot = ("shards", 3)
BASE = frozenset((("member", 0),))


def neighbours(count: int, keeping: Iterable[int] = ()) -> Neighbours:
    """Return `count` peers, of which those in `keeping` also keep PLOT."""
    made = Neighbours(Random(1).randrange)
    for number in range(count):
        made.add(name(number))
        made_known = made.get(name(number))
        assert made_known is not None
        made_known.keeps = BASE | {PLOT} if number in set(keeping) else BASE
    return made


def name(number: int) -> PeerId:
    return PeerId(f"p{number}")


def test_news_goes_to_few_peers_that_change_slowly() -> None:
    it = neighbours(30)
    it.turn(0.0)
    first = it.keepers(("member", 0))
    assert len(set(first)) == defaults.NEIGHBOURS
    it.turn(1.0)
    assert it.keepers(("member", 0)) == first
    it.turn(1.0 + defaults.NEIGHBOUR_TURN)
    assert len(set(first) & set(it.keepers(("member", 0)))) == defaults.NEIGHBOURS - 1
    for number in range(25):
        it.remove(name(number))
    assert {*it} == {name(number) for number in range(25, 30)} >= set(it.keepers(("member", 0)))


def test_news_of_many_feeds_goes_to_more_peers() -> None:
    """With as few peers as usual, a node might get news from a partition from only two or three."""
    it = neighbours(60, range(60))
    it.turn(0.0)
    few = it.keepers(PLOT)
    many = it.keepers(PLOT, defaults.NEIGHBOURS_MOST)
    assert len(set(few)) == defaults.NEIGHBOURS < len(set(many)) == defaults.NEIGHBOURS_MOST
    assert set(few) < set(many)


def test_news_of_rare_feeds_goes_to_their_replicas() -> None:
    for keeping in ((28,), (27, 28, 29), range(20, 30)):
        it = neighbours(30, keeping)
        it.turn(0.0)
        told = it.keepers(PLOT)
        assert set(told) <= {name(number) for number in keeping}
        assert len(set(told)) == len(told) >= min(len(keeping), defaults.COVER)


def test_a_silent_peer_counts_as_keeping_all() -> None:
    it = Neighbours(Random(1).randrange)
    it.add(name(1))
    it.turn(0.0)
    assert it.keepers(PLOT) == [name(1)] == it.sharing([PLOT])


def test_the_only_replica_of_a_feed_gets_its_turn() -> None:
    it = neighbours(64, (7,))
    drawn = Counter(it.somebody(frozenset((("member", 0), PLOT))) for _ in range(2_000))
    assert drawn[name(7)] > 2_000 / 8
    assert len(drawn) == 64
    assert Counter(it.somebody(BASE) for _ in range(2_000))[name(7)] < 2_000 / 16
    assert Neighbours(Random(1).randrange).somebody(BASE) is None


def test_no_peer_is_compared_with_twice_before_all_had_a_turn() -> None:
    """Eight of nine peers may be liars, and the ninth may have the entries that they withhold."""
    it = neighbours(9, range(9))
    for _ in range(20):
        assert len({it.somebody(None) for _ in range(9)}) == 9
    it.remove(name(0))
    it.add(name(9))
    assert it.somebody(None) == name(9)
