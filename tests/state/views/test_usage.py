"""Usage is summed by client over all providers, and stays exact through every change."""

import random

from shoal.state import defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.views.usage import Usage, UsageCount, usage_fact, usage_key
from shoal.transport.identity import Identity

PEERS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 5)]
FEEDS = [FeedName(peer, "usage", 0) for peer in PEERS]
ROOTS = "1" * 64, "2" * 64


def test_counts_by_client_provider_and_model() -> None:
    view = Usage()
    client = PEERS[0]
    counts = UsageCount(1, 10, 100, 5), UsageCount(2, 20, 200, 6), UsageCount(3, 30, 300, 7)
    view.changed(FEEDS[1], usage_key(client, ROOTS[0]), usage_fact(counts[0]))
    view.changed(FEEDS[1], usage_key(client, ROOTS[1]), usage_fact(counts[1]))
    view.changed(FEEDS[2], usage_key(client, ROOTS[0]), usage_fact(counts[2]))
    assert view.get(client) == UsageCount(6, 60, 600, 18)
    assert view.of(client) == {
        (PEERS[1], ROOTS[0]): counts[0],
        (PEERS[1], ROOTS[1]): counts[1],
        (PEERS[2], ROOTS[0]): counts[2],
    }
    view.forgotten(FEEDS[1])
    assert view.get(client) == counts[2] and list(view.clients()) == [client]
    view.forgotten(FEEDS[2])
    assert view.get(client) is None and view.of(client) == {} and not list(view.clients())


def test_totals_equal_a_fresh_sum() -> None:
    view, rng = Usage(), random.Random(5)
    held: dict[tuple[int, str, str], UsageCount] = {}
    for _ in range(2_000):
        provider, client, root = rng.randrange(4), rng.choice(PEERS), rng.choice(ROOTS)
        key = provider, client, root
        if rng.random() < 0.2:
            held.pop(key, None)
            view.changed(FEEDS[provider], usage_key(client, root), None)
        else:
            held[key] = UsageCount(*(rng.randrange(10**6) for _ in range(4)))
            view.changed(FEEDS[provider], usage_key(client, root), usage_fact(held[key]))
    for client in PEERS:
        mine = [count for key, count in held.items() if key[1] == client]
        assert (view.get(client) or UsageCount()) == sum(mine, UsageCount())


def test_malformed_counts_are_refused() -> None:
    view = Usage()
    good = usage_fact(UsageCount(1))
    for key, fact in (
        (PEERS[0], good),
        ("nobody/" + ROOTS[0], good),
        (usage_key(PEERS[0], "x"), good),
        (usage_key(PEERS[0], ROOTS[0]), good | {"in": 1.5}),
    ):
        view.changed(FEEDS[1], key, fact)
    assert view.bad == 4 and not list(view.clients())
    view.changed(FEEDS[1], usage_key(PEERS[0], ROOTS[0]), good | {"in": -4, "out": 2**62})
    assert view.get(PEERS[0]) == UsageCount(1, 0, defaults.MAX_COUNT, 0)
