"""The listing takes liveness from measurements, addresses from records, and the rest from feeds."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import msgpack
import pytest
import trio
from trio.testing import MockClock

from shoal.state import defaults
from shoal.state.errors import BadRecord
from shoal.state.feeds.entry import FeedName
from shoal.state.feeds.feed import EntryOutcome, EntryVerdict
from shoal.state.feeds.writer import WrittenFacts
from shoal.state.listing import Listing
from shoal.state.membership.membership import Membership
from shoal.state.membership.record import NOTHING, Capacity, MemberRecord, ModelName, ShardRecord
from shoal.state.service import State
from shoal.state.views.members import ABOUT, CAPACITY, capacity_fact
from shoal.state.views.models import model_fact
from shoal.state.views.placements import shard_fact, shard_key
from shoal.state.views.views import Views
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId

ME, BOB, EVE = (Identity.from_seed(bytes([number]) * 32).peer for number in (1, 2, 3))
ROOT, OTHER = "1" * 64, "2" * 64
CAN = Capacity(8, 2**30, True)
TINY = ModelName("tiny", ROOT, 6, 1000)
ADDRESS = "/ip4/192.0.2.1/tcp/4001"


def shard(run: int = 0, root: str = ROOT) -> ShardRecord:
    return ShardRecord(root, True, 0, 6, True, "float32", 100, run=run)


class Net:
    """Test double of membership and state, with manual records and live peers, and with real
    views."""

    def __init__(self) -> None:
        self.records = {ME: MemberRecord(ME, 1)}
        self.live: set[PeerId] = set()
        self.sure = True
        self.on_change: list[Callable[[], None]] = []
        self.views = Views()
        self.said: dict[str, WrittenFacts] = {}
        self.published: list[dict[str, Any]] = []
        self.listing = Listing(RealHost(), cast(Membership, self), cast(State, self))

    # As the membership.

    def own(self) -> MemberRecord:
        return self.records[ME]

    def members(self) -> dict[PeerId, MemberRecord]:
        return {peer: r for peer, r in self.records.items() if peer in {ME, *self.live}}

    def is_live(self, peer: PeerId) -> bool:
        return peer in self.live

    def is_sure(self) -> bool:
        return self.sure

    def publish(self, **changes: Any) -> None:
        if any(getattr(self.own(), field) != value for field, value in changes.items()):
            self.published.append(changes)
            self.put(replace(self.own(), seq=self.own().seq + 1, **changes))

    def put(self, record: MemberRecord, *, live: bool = True) -> None:
        self.records[record.peer] = record
        if live and record.peer != ME:
            self.live.add(record.peer)
        for told in self.on_change:
            told()

    def gone(self, peer: PeerId) -> None:
        self.live.discard(peer)
        for told in self.on_change:
            told()

    # As the state.

    def say(self, said: WrittenFacts) -> None:
        self.said[said.kind] = said

    def feed(
        self,
        peer: PeerId,
        kind: str,
        facts: Mapping[str, Any],
        *,
        part: int = 0,
        fresh: bool = False,
    ) -> None:
        packed = {key: None if v is None else msgpack.packb(v) for key, v in facts.items()}
        verdict = EntryVerdict(EntryOutcome.NEWS, changed=packed)
        self.views.changed(FeedName(peer, kind, part), verdict)

    def describe(self, peer: PeerId, run: int) -> None:
        """Let a peer's feeds arrive."""
        self.feed(peer, "member", {ABOUT: {"version": "9"}, CAPACITY: capacity_fact(CAN)})
        self.feed(peer, "models", {"tiny": model_fact(TINY)})
        self.serve(peer, run)

    def serve(self, peer: PeerId, run: int) -> None:
        self.feed(peer, "shards", {shard_key(ROOT, 0): shard_fact(shard(run))}, part=1)

    def listed(self, peer: PeerId = BOB) -> MemberRecord:
        return self.listing.members()[peer]


@pytest.fixture
def net() -> Net:
    return Net()


def test_a_member_combines_record_and_feeds(net: Net) -> None:
    net.put(MemberRecord(BOB, 7, (ADDRESS,), stored=(OTHER,), runs=(5,)))
    net.describe(BOB, run=5)
    assert net.listed() == MemberRecord(
        BOB, 7, (ADDRESS,), "9", CAN, (TINY,), (shard(5),), (OTHER,), (5,)
    )
    assert net.listed() is net.listed(), "nothing is put together twice"


def test_a_live_member_without_facts_is_listed(net: Net) -> None:
    assert not net.listing.has_met()
    net.put(MemberRecord(BOB, 7))
    assert net.listed() == MemberRecord(BOB, 7) and not net.listing.has_met()
    net.feed(BOB, "member", {ABOUT: {"version": "9"}})
    assert net.listing.has_met()
    net.sure = False  # the liveness of a peer is not known yet
    assert not net.listing.has_met()
    net.sure = True
    net.put(MemberRecord(EVE, 7))
    assert not net.listing.has_met()


def test_the_dead_are_not_listed_whatever_their_feeds_say(net: Net) -> None:
    net.put(MemberRecord(BOB, 7, runs=(5,)))
    net.describe(BOB, run=5)
    net.gone(BOB)
    assert set(net.listing.members()) == {ME}
    assert net.views.placements.of(BOB), "what it said stays"
    net.describe(EVE, run=5)  # it never answered
    assert set(net.listing.members()) == {ME}


def test_shards_of_an_earlier_run_are_not_listed(net: Net) -> None:
    """A killed member is back with another run before its feed says so. Control: the run in its
    feed."""
    net.put(MemberRecord(BOB, 7, runs=(5,)))
    net.describe(BOB, run=5)
    net.gone(BOB)
    net.put(MemberRecord(BOB, 8, runs=(6,)))
    assert net.listed().shards == () and net.listed().models == (TINY,)
    net.serve(BOB, run=6)
    assert net.listed().shards == (shard(6),)


@pytest.mark.parametrize("said", [0, -1, 4, 2**60, "5", None, True])
def test_shards_of_other_runs_are_not_listed(net: Net, said: Any) -> None:
    for run in (5, 0):
        net.put(MemberRecord(BOB, 7, runs=(run,) if run else ()))
        net.feed(BOB, "shards", {shard_key(ROOT, 0): {**shard_fact(shard(5)), "run": said}}, part=1)
        assert net.listed().shards == ()


def test_a_member_stops_taking_work_at_once(net: Net) -> None:
    net.put(MemberRecord(BOB, 7, runs=(5,)))
    net.describe(BOB, run=5)
    net.put(MemberRecord(BOB, 8, runs=()))  # its feed comes later
    assert net.listed().shards == ()


@pytest.mark.trio
async def test_waiters_see_changes_of_records_and_feeds(
    net: Net, autojump_clock: MockClock
) -> None:
    net.put(MemberRecord(BOB, 7, runs=(5,)))

    async def next_after(act: Callable[[], None]) -> bool:
        version = net.listing.version
        act()
        with trio.move_on_after(0.01):
            return await net.listing.changed(version) > version
        return False

    assert await next_after(lambda: net.describe(BOB, run=5))
    assert net.listed().shards
    assert await next_after(lambda: net.views.dropped(BOB))
    assert net.listed() == MemberRecord(BOB, 7, runs=(5,))
    assert await next_after(lambda: net.gone(BOB))
    assert not await next_after(lambda: net.describe(BOB, run=5)), "it does not answer"
    assert not await next_after(lambda: net.feed(ME, "usage", {"x": {}}))


def test_each_own_fact_is_stated_once(net: Net) -> None:
    net.listing.publish(
        addresses=(ADDRESS,), version="1", capacity=CAN, models=(TINY,), stored=(ROOT,)
    )
    (signed,) = net.published
    assert signed == {"addresses": (ADDRESS,), "stored": (ROOT,)}
    assert net.said["member"].facts == {
        (0, ABOUT): {"version": "1"},
        (0, CAPACITY): capacity_fact(CAN),
    }
    assert net.said["models"].facts == {(0, "tiny"): model_fact(TINY)}
    assert net.said["shards"].facts == {}
    own = net.listing.own()
    assert own == MemberRecord(ME, 2, (ADDRESS,), "1", CAN, (TINY,), (), (ROOT,))
    assert net.listing.members()[ME] is own


def test_shards_are_published_with_the_run(net: Net) -> None:
    net.listing.publish(shards=(shard(), shard(root=OTHER), shard()))
    runs = one, two = net.own().runs
    assert 0 < one != two > 0
    assert net.said["shards"].facts == {
        (1, shard_key(ROOT, 0)): shard_fact(shard(one)),
        (2, shard_key(OTHER, 0)): shard_fact(shard(two, OTHER)),
        (1, shard_key(ROOT, 1)): shard_fact(shard(one)),
    }
    assert [each.run for each in net.listing.own().shards] == [one, two, one]
    net.listing.publish(shards=(shard(root=OTHER), replace(shard(), stop=3)))
    kept, new = net.own().runs
    assert kept == two and new not in runs, "what stays is listed without a gap"
    net.listing.publish(shards=())
    assert net.own().runs == () and net.said["shards"].facts == {}
    net.listing.publish(shards=(shard(),))
    assert net.own().runs and not {*net.own().runs} & {*runs, new}, (
        "news of the emptied feed may arrive late"
    )


def test_serving_again_is_listed_once_it_is_true(net: Net) -> None:
    """Earlier facts of the feed, and their deletion, arrive in between."""
    shown = []
    for run, feed in [(5, 5), (0, 5), (6, 5), (6, 0), (6, 6)]:
        net.put(MemberRecord(BOB, 7, runs=(run,) if run else ()))
        facts = {shard_key(ROOT, 0): shard_fact(shard(feed)) if feed else None}
        net.feed(BOB, "shards", facts, part=1)
        shown.append(bool(net.listed().shards))
    assert shown == [True, False, False, False, True]


def test_publishing_the_same_again_changes_nothing(net: Net) -> None:
    net.listing.publish(models=(TINY,), shards=(shard(),))
    net.said.clear()
    version, own = net.listing.version, net.listing.own()
    net.listing.publish(models=(TINY,), shards=(shard(),))
    assert net.said == {} and net.listing.version == version and net.listing.own() is own


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "v" * 65},
        {"version": "\x1b[31m"},
        {"models": (ModelName("ti\nny", ROOT, 6, 1),)},
        {"models": (ModelName("tiny", "AB" * 32, 6, 1),)},
        {"shards": (ShardRecord(ROOT, True, 3, 3, True, "float32", 1),)},
        {"shards": (ShardRecord(ROOT, True, 0, 3, True, "x" * 17, 1),)},
    ],
)
def test_values_that_others_would_refuse_are_not_published(net: Net, wrong: dict[str, Any]) -> None:
    net.listing.publish(models=(TINY,))
    before, published, own = dict(net.said), len(net.published), net.listing.own()
    with pytest.raises(BadRecord):
        net.listing.publish(**wrong)
    assert net.said == before and len(net.published) == published and net.listing.own() is own


def test_lists_are_cut_to_their_bounds(net: Net) -> None:
    net.listing.publish(
        stored=(ROOT,) * 1000,
        shards=(shard(),) * 20,
        models=[replace(TINY, name=f"m{number}") for number in range(200)],
    )
    own = net.listing.own()
    assert len(own.stored) == defaults.STORED
    assert len(own.shards) == len(net.said["shards"].facts) == defaults.SHARDS
    assert len(own.models) == len(net.said["models"].facts) == defaults.MODELS


def test_facts_of_an_earlier_run_are_removed_at_first(net: Net) -> None:
    assert {kind: dict(said.facts) for kind, said in net.said.items()} == {
        "member": {(0, ABOUT): {"version": ""}, (0, CAPACITY): capacity_fact(NOTHING)},
        "models": {},
        "shards": {},
    }
    mine = net.said["member"].mine
    assert mine(ABOUT) and mine(CAPACITY) and not mine("vouches")


def test_of_thousands_of_shards_of_one_member_few_count(net: Net) -> None:
    net.put(MemberRecord(BOB, 7, runs=(5,)))
    for number in range(2 * defaults.SHARDS):
        root = f"1{number:063x}"
        net.feed(BOB, "shards", {shard_key(root, 0): shard_fact(shard(5, root))}, part=1)
    assert len(net.listed().shards) == defaults.SHARDS
