"""walk: all keys in one pass, one message per node, and retries without acknowledgement."""

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht import defaults
from shoal.dht.lookup.cells import cell_radius, cells
from shoal.dht.lookup.query import Querier, Query
from shoal.dht.publishing.parcels import StoreQuery
from shoal.dht.publishing.walk import KnownNodes, Walk
from shoal.dht.records.key import SPACE, distance, key_at, point
from shoal.dht.records.record import Record
from shoal.transport.identity import PeerId
from shoal.transport.rates import DialLimiter
from tests.dht.nodes import Net, Node, blob, contacts, identity, record

ME = identity(1).peer


@pytest.fixture(scope="module")
def net() -> Net:
    return Net(400)


def fresh(net: Net) -> Net:
    for node in net.nodes.values():
        node.up, node.asked = True, 0
        node.store = Node(node.contact, 1).store
    return net


def known(one: Node) -> KnownNodes:
    return KnownNodes(one.table.nearest, one.table.radius())


def by(net: Net, one: Node) -> Querier:
    return Querier(net.random.randbytes, one.contact.peer)


def walk(net: Net, records: list[Record]) -> Walk:
    one = net.any()
    radius = min(SPACE * defaults.REGION_NODES // len(net.nodes), SPACE)
    task = Walk(records, KnownNodes(one.table.nearest, radius), by(net, one))
    net.run(task, by=ME)
    return task


@given(st.integers(1, SPACE), st.integers(0, 2**32))
def test_the_regions_of_a_cell_are_within_its_radius(radius: int, seed: int) -> None:
    random = Random(seed)
    keys = [key_at(random.randrange(SPACE)) for _ in range(20)]
    groups = cells(keys, radius)
    assert [key for group in groups for key in group] == sorted(keys)
    for group in groups:
        for key in group:
            near = key_at(point(key) ^ random.randrange(min(radius + 1, SPACE)))
            assert distance(near, group[0]) <= cell_radius(radius)
    assert cell_radius(radius) <= 2 * radius


def test_every_record_reaches_its_region(net: Net) -> None:
    fresh(net)
    records = [record(blob(number)) for number in range(200)]
    task = walk(net, records)
    for one in records:
        done = task.results[one.place]
        nearest = net.owners(one.key, 20)
        kept = sum(bool(node.store.find([one.key], 0.0)[0]) for node in nearest)
        assert kept >= 18 and len(done.kept) >= 18 and not done.failed


def test_one_message_per_node(net: Net) -> None:
    fresh(net)
    task = walk(net, [record(blob(number)) for number in range(300)])
    assert task.stores <= 1.05 * len(net.nodes)
    assert task.finds <= 20 * 16  # number of cells
    assert sum(node.asked for node in net.nodes.values()) == task.stores + task.finds


def test_nothing_to_publish() -> None:
    task = Walk([], KnownNodes(lambda key, count: [], SPACE), Querier(Random(1).randbytes))
    assert task.done and task.next(0.0) == []


def test_stores_in_flight_are_limited(net: Net) -> None:
    """Late stores have a limit of their own."""
    fresh(net)
    one = net.any()
    records = [record(blob(number)) for number in range(300)]
    task = Walk(records, known(one), Querier(net.random.randbytes))
    under_way: list[StoreQuery] = []
    for turn in range(4000):
        for query in task.next(float(turn)):
            if isinstance(query, StoreQuery):
                under_way.append(query)
            else:
                found = net.nodes[query.contact.peer].find(query.find)
                task.answered(query, found, float(turn), 0.0)
        assert len(under_way) <= defaults.WALK_STORES + defaults.WALK_LATE
        if under_way:
            last = under_way.pop()
            task.stored(last, [""] * len(last.records), float(turn))
        if task.done:
            break
    assert task.done


def test_a_node_that_does_not_answer_is_retried_and_reported(net: Net) -> None:
    fresh(net)
    one = record(blob(1))
    owners = net.owners(one.key, 20)
    for node in owners[:5]:
        node.up = False
    task = walk(net, [one])
    done = task.results[one.place]
    gone = {node.contact.peer for node in owners[:5]}
    assert not gone & set(done.kept) and len(done.kept) >= defaults.REPLICAS_LEAST
    assert set(done.failed) <= gone


@pytest.mark.parametrize("spared", [True, False])
def test_a_silent_node_does_not_delay_a_walk(
    net: Net, monkeypatch: pytest.MonkeyPatch, spared: bool
) -> None:
    """Its store is dropped if there are enough replicas. Twin: otherwise the walk waits."""
    if not spared:
        monkeypatch.setattr(defaults, "STORE_ENOUGH", (99, 1.0))
    fresh(net)
    one = record(blob(1))
    silent = net.owners(one.key, 3)[2].contact.peer
    net.delays = {silent: 30.0}
    began = net.now
    task = walk(net, [one])
    assert (net.now - began < 4.0) == spared
    assert len(task.results[one.place].kept) >= 15


def test_a_failed_node_is_not_retried_if_there_are_enough_replicas(net: Net) -> None:
    fresh(net)
    one = record(blob(1))
    for node in net.owners(one.key, 3):
        node.up = False
    task = walk(net, [one])
    done = task.results[one.place]
    assert task.stores == len(done.kept) + len(done.failed) and done.enough


def test_a_region_that_lost_most_nodes_is_looked_up_again(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They leave between the look-up and the store, so other nodes are the nearest then."""
    monkeypatch.setattr(defaults, "EAGER", 0)  # no stores before the look-up ends
    fresh(net)
    one = record(blob(2))
    me = net.any()
    task = Walk([one], known(me), by(net, me))
    now, rounds = 0.0, 0
    while not task.done and now < 100:
        for query in task.next(now):
            if not isinstance(query, StoreQuery):
                node = net.nodes[query.contact.peer]
                if node.up:
                    task.answered(query, node.find(query.find), now, 0.0)
                else:
                    task.failed(query, now)
                continue
            if not rounds:
                rounds = 1
                for node in net.owners(one.key, 25)[:20]:
                    node.up = False
            node = net.nodes[query.contact.peer]
            if node.up:
                task.stored(query, [""], now)
            else:
                task.store_failed(query, now)
        now += 0.5
    done = task.results[one.place]
    assert task.done and len(done.failed) >= 15
    assert len(done.kept) >= 5
    assert len({*done.kept, *done.failed}) == len(done.kept) + len(done.failed)


def test_codes_are_reported_and_busy_nodes_are_retried(net: Net) -> None:
    fresh(net)
    several = [record(blob(3)), record(blob(3), 2)]
    me = net.any()
    task = Walk(several, known(me), Querier(net.random.randbytes))
    now, asked = 0.0, 0
    codes = {ME: "busy", identity(2).peer: "quota"}
    while not task.done and now < 60:
        for query in task.next(now):
            if isinstance(query, StoreQuery):
                asked += 1
                task.stored(query, [codes[one.author] for one in query.records], now)
            else:
                task.answered(query, net.nodes[query.contact.peer].find(query.find), now, 0.0)
        now = now + 0.1
    assert task.done
    for one in several:
        done = task.results[one.place]
        assert not done.kept and set(done.refused.values()) == {codes[one.author]}
    assert asked == 2 * len(task.results[several[0].place].refused)


def test_unrequested_replies_change_nothing(net: Net) -> None:
    querier = Querier(net.random.randbytes)
    task = Walk([record(blob(1))], KnownNodes(net.any().table.nearest, SPACE), querier)
    (other,) = (Walk([record(blob(1))], KnownNodes(net.any().table.nearest, SPACE), querier),)
    query = other.next(0.0)[0]
    assert not isinstance(query, StoreQuery)
    task.failed(query, 0.0)
    assert task.answered(query, net.any().find(query.find), 0.0, 0.0) == ""
    assert not task.done


def test_too_many_replicas_are_chosen_at_random() -> None:
    """Three hundred identities next to a key cannot keep its records from twenty honest nodes."""
    one = record(blob(1))
    task = Walk([one], KnownNodes(lambda key, count: [], SPACE), Querier(Random(2).randbytes))
    region = sorted(contacts(320), key=lambda each: distance(each.key, one.key))
    chosen = task.replicas(one.key, region)
    assert len(set(chosen)) == defaults.REGION_MOST
    assert len(set(chosen) & set(region[300:])) >= 2
    assert task.replicas(one.key, region[:50]) == region[:50]


def test_a_small_network_stores_everything() -> None:
    small = Net(5)
    records = [record(blob(number)) for number in range(30)]
    task = walk(small, records)
    for one in records:
        assert len(task.results[one.place].kept) >= 4
    assert task.stores <= 5


def test_a_few_records_are_stored_before_the_look_up_ends(net: Net) -> None:
    fresh(net)
    me = net.any()
    one = record(blob(5))
    radius = SPACE * defaults.REGION_NODES // len(net.nodes)

    def first(records: list[Record]) -> list[StoreQuery]:
        task = Walk(records, KnownNodes(me.table.nearest, radius), Querier(net.random.randbytes))
        return [query for query in task.next(0.0) if isinstance(query, StoreQuery)]

    at_once = first([one])
    assert 0 < len(at_once) <= defaults.EAGER_STORES
    assert all(distance(query.contact.key, one.key) <= radius for query in at_once)
    assert first([record(blob(number)) for number in range(defaults.EAGER + 1)]) == []


def test_nodes_stored_at_early_are_not_sent_the_record_again(net: Net) -> None:
    fresh(net)
    one = record(blob(6))
    task = walk(net, [one])
    done = task.results[one.place]
    assert len(done.kept) == len(set(done.kept)) == task.stores


def test_without_unknown_nodes_there_is_no_look_up() -> None:
    small = Net(8)
    me = small.any()
    records = [record(blob(number)) for number in range(40)]
    task = Walk(
        records,
        KnownNodes(me.table.nearest, SPACE, complete=True),
        by(small, me),
    )
    small.run(task, by=ME)
    assert (task.finds, task.stores) == (0, len(me.table))
    assert all(len(done.kept) == len(me.table) for done in task.results.values())


def patient(net: Net, one: Record, linked: set[PeerId]) -> tuple[Walk, list[tuple[float, PeerId]]]:
    """Run a background walk; return it, and the time and the peer of each store."""
    me = net.any()
    sent: list[tuple[float, PeerId]] = []
    task = Walk(
        [one],
        known(me),
        Querier(net.random.randbytes, me.contact.peer, linked=linked.__contains__),
        limiter=DialLimiter(20.0, net.now),
    )
    real = task.next

    def next_and_note(now: float) -> list[Query | StoreQuery]:
        queries = real(now)
        sent.extend((now, each.contact.peer) for each in queries if isinstance(each, StoreQuery))
        return queries

    task.next = next_and_note  # type: ignore[method-assign]
    net.run(task, by=ME)
    return task, sent


def test_a_background_walk_dials_no_node_if_linked_ones_are_enough(net: Net) -> None:
    fresh(net)
    one = record(blob(1_001))
    linked = {node.contact.peer for node in net.owners(one.key, 24)}
    began = net.now
    task, sent = patient(net, one, linked)
    assert {peer for _, peer in sent} <= linked and len(task.results[one.place].kept) >= 15
    assert net.now - began < 20


def test_a_background_walk_dials_one_node_at_a_time_until_enough_store_it(net: Net) -> None:
    fresh(net)
    one = record(blob(1_002))
    linked = {node.contact.peer for node in net.owners(one.key, 20)[::3]}
    task, sent = patient(net, one, linked)
    dialled = [at for at, peer in sent if peer not in linked]
    assert {peer for _, peer in sent[:7]} == linked, "linked nodes come first"
    assert dialled and all(b - a > 19.99 for a, b in itertools.pairwise(dialled))
    done = task.results[one.place]
    assert done.enough and len(done.kept) < len(done.sent), "it stops there"


def test_a_background_walk_dials_each_node_once(net: Net) -> None:
    fresh(net)
    one = record(blob(1_003))
    for node in net.owners(one.key, 20)[1::2]:
        node.up = False
    linked = {node.contact.peer for node in net.owners(one.key, 20)[::2]}
    _, sent = patient(net, one, linked)
    dialled = [peer for _, peer in sent if peer not in linked]
    assert len(dialled) == len(set(dialled))
    fresh(net)
