"""Tests of usage sums, which survive restarts and fit the feed."""

from collections.abc import Collection, Mapping
from typing import Any, cast

import msgpack
import pytest
import trio

from shoal.state.errors import FeedFull
from shoal.state.feeds.kinds import KINDS
from shoal.state.feeds.scan import fact_bytes
from shoal.state.service import State
from shoal.state.views.usage import UsageCount, usage_fact, usage_key
from shoal.tasks import defaults
from shoal.tasks.usage.accounting import Accounting, merged, others_key
from shoal.tasks.usage.metering import UsageMeter, Use
from shoal.transport.identity import Identity, PeerId

OWN, OTHER = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2)]
ROOT = "ab" * 32


def client(number: int) -> PeerId:
    return Identity.from_seed(number.to_bytes(32)).peer


CLIENTS = [client(1000 + number) for number in range(defaults.USAGE_USERS + 40)]


class Feed:
    """Stands for the state: one feed of facts."""

    def __init__(self) -> None:
        self.facts: dict[str, Mapping[str, Any]] = {}
        self.shown = trio.Event()
        self.shown.set()
        self.full = False

    def set(self, kind: str, key: str, value: Mapping[str, Any] | None) -> None:
        assert kind == "usage"
        if self.full and value is not None:
            raise FeedFull("feed-full", "no room")
        if value is None:
            self.facts.pop(key, None)
        else:
            self.facts[key] = value

    def get(self, kind: str, key: str) -> Mapping[str, Any] | None:
        return self.facts.get(key)

    def keys(self, kind: str) -> Collection[str]:
        return list(self.facts)


def desk(feed: Feed) -> tuple[UsageMeter, Accounting]:
    meter = UsageMeter(OWN)
    return meter, Accounting(cast(State, feed), OWN, meter)


def test_sums_survive_restarts() -> None:
    feed = Feed()
    for _ in range(2):  # two lives
        meter, accounting = desk(feed)
        meter.read(Use(OTHER, ROOT), 10)
        meter.made(Use(OTHER, ROOT), tokens=1, seconds=2.0)
        accounting.write()
    assert feed.facts == {usage_key(OTHER, ROOT): usage_fact(UsageCount(0, 20, 2, 4000))}


def test_a_full_feed_gets_the_counts_later() -> None:
    feed = Feed()
    meter, accounting = desk(feed)
    meter.opened(Use(OTHER, ROOT))
    feed.full = True
    accounting.write()
    assert feed.facts == {}
    feed.full = False
    accounting.write()
    assert feed.facts == {usage_key(OTHER, ROOT): usage_fact(UsageCount(1))}


@pytest.mark.trio
async def test_a_job_is_charged_to_its_author_once_that_is_known(autojump_clock: object) -> None:
    feed, meter, authors = Feed(), UsageMeter(OWN), dict[str, PeerId]()
    accounting = Accounting(
        cast(State, feed), OWN, meter, lambda use: authors.get(use.job) if use.job else use.gateway
    )
    for job in ("known", "unknown", "own"):
        meter.opened(Use(OTHER, ROOT, job))
    meter.opened(Use(OWN, ROOT, "known"))
    with trio.move_on_after(defaults.USAGE_PACE + 1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accounting.run)
            await trio.sleep(defaults.USAGE_LOOK * 5)
            authors |= {"known": CLIENTS[0], "own": OWN}
            await trio.sleep(defaults.USAGE_LOOK * 5)
            authors.clear()  # taken out before the sums are written
    assert feed.facts == {
        usage_key(CLIENTS[0], ROOT): usage_fact(UsageCount(2)),
        usage_key(OTHER, ROOT): usage_fact(UsageCount(1)),
    }


@pytest.mark.trio
async def test_a_gateway_that_invents_jobs_is_charged_at_once(autojump_clock: object) -> None:
    looked, meter = [0], UsageMeter(OWN)

    def payer(use: Use) -> PeerId | None:
        looked[0] += 1
        return None

    feed = Feed()
    accounting = Accounting(cast(State, feed), OWN, meter, payer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accounting.run)
        for number in range(1000):
            meter.opened(Use(OTHER, ROOT, f"{number:064x}"))
        await trio.sleep(defaults.USAGE_LOOK * 1.5)
        looked[0] = 0
        await trio.sleep(defaults.USAGE_LOOK)
        assert looked[0] <= defaults.USAGE_UNKNOWN
        nursery.cancel_scope.cancel()
    accounting.write(last=True)
    assert feed.facts == {usage_key(OTHER, ROOT): usage_fact(UsageCount(requests=1000))}


def test_a_stopping_node_charges_the_gateways_of_unknown_jobs() -> None:
    feed, meter = Feed(), UsageMeter(OWN)
    accounting = Accounting(cast(State, feed), OWN, meter, lambda use: None)
    meter.opened(Use(OTHER, ROOT, "unknown"))
    accounting.write()
    assert feed.facts == {}
    accounting.write(last=True)
    assert feed.facts == {usage_key(OTHER, ROOT): usage_fact(UsageCount(1))}


def test_stored_sums_are_read_before_they_are_written() -> None:
    feed = Feed()
    feed.shown = trio.Event()
    meter, accounting = desk(feed)
    meter.opened(Use(OTHER, ROOT))
    accounting.write()
    assert feed.facts == {}
    feed.shown.set()
    accounting.write()
    assert len(feed.facts) == 1


def test_the_smallest_users_are_merged_and_nothing_is_lost() -> None:
    counted = {(peer, ROOT): UsageCount(1, 1, 1, number) for number, peer in enumerate(CLIENTS)}
    sums = merged(OWN, {}, counted)
    assert len(sums) == defaults.USAGE_USERS + 1
    total = UsageCount()
    for count in sums.values():
        total += count
    assert total.requests == len(CLIENTS)
    assert total.busy_ms == sum(range(len(CLIENTS)))
    assert sums[others_key(OWN)] == UsageCount(40, 40, 40, sum(range(40)))
    again = merged(OWN, sums, {(CLIENTS[0], ROOT): UsageCount(busy_ms=10**6)})
    assert usage_key(CLIENTS[0], ROOT) in again, "a user with more usage has its own sum again"
    assert again[others_key(OWN)].requests == 41


@pytest.mark.parametrize("count", [UsageCount(2**53, 2**53, 2**53, 2**53)])
def test_the_feed_has_room_for_the_maximum_of_users(count: UsageCount) -> None:
    value = msgpack.packb(usage_fact(count))
    size = (defaults.USAGE_USERS + 1) * fact_bytes(usage_key(OTHER, ROOT), value)
    kind = KINDS["usage"]
    assert size < kind.live_bytes
    assert kind.keys > defaults.USAGE_USERS + 1


@pytest.mark.trio
async def test_sums_are_written_periodically(autojump_clock: object) -> None:
    feed = Feed()
    meter, accounting = desk(feed)
    meter.opened(Use(OTHER, ROOT))
    with trio.move_on_after(defaults.USAGE_PACE / 2):
        await accounting.run()
    assert feed.facts == {}
    with trio.move_on_after(defaults.USAGE_PACE * 1.5):
        await accounting.run()
    assert len(feed.facts) == 1
