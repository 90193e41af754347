"""Light nodes that replicate each other's feeds: they agree, whatever the network and liars do."""

from itertools import pairwise
from math import inf
from typing import Any

import pytest

from bench.worlds.keymill import KeyMill
from bench.worlds.replicanode import ReplicaNode, SharedReplica, at_once
from bench.worlds.replicas import Swarm
from bench.worlds.twofaced import ACTS, TwoFaced
from shoal.state import defaults
from shoal.state.feeds.digest import Plot
from shoal.state.feeds.entry import FORKED
from shoal.state.replication.authors import Authors
from shoal.state.replication.interest import Interest
from shoal.state.replication.replica import Replica
from shoal.state.replication.vouches import VOUCHES, write_vouches

PLOT = ("member", 0)


def swarm_of(count: int, links: int, seed: int = 1) -> Swarm:
    swarm = Swarm(seed)
    for _ in range(count):
        swarm.add()
    swarm.settle(PLOT, {"v": {"v": 1}})
    swarm.introduce()
    swarm.connect_at_random(links)
    swarm.begin()
    swarm.advance(3.0)
    return swarm


def test_a_change_reaches_all_nodes_and_depends_only_on_the_seed() -> None:
    sent = []
    for _ in range(2):
        swarm = swarm_of(20, 6)
        assert swarm.same()
        head = swarm.write(swarm.nodes[0], PLOT, {"more": {"v": 2}})[-1].head
        assert not swarm.same()
        swarm.advance(2.0)
        key = swarm.nodes[0].replica.own
        assert all(node.replica.head(key, PLOT) == head for node in swarm.nodes)
        sent.append([node.lane.sent for node in swarm.nodes])
    assert sent[0] == sent[1]


def test_halves_agree_after_a_partition() -> None:
    swarm = swarm_of(12, 6)
    halves = swarm.nodes[:6], swarm.nodes[6:]
    swarm.cut(*halves)
    for _ in range(20):
        swarm.write(swarm.random.choice(swarm.nodes), PLOT, {"x": {"v": swarm.random.random()}})
        swarm.advance(3.0)
    assert all(swarm.same(half) for half in halves)
    assert not swarm.same()
    far = {node.peer for node in halves[1]}
    assert not any(peer in far for node in halves[0] for peer in node.links)
    swarm.faults.heal()
    swarm.advance(30.0)
    assert swarm.same()


def test_two_histories_end_in_one_proof() -> None:
    swarm = Swarm(2)
    liar = swarm.add(TwoFaced)
    honest = [swarm.add() for _ in range(5)]
    for index, node in enumerate(swarm.nodes):
        for other in swarm.nodes[:index]:
            swarm.connect(node, other)
    swarm.begin()
    assert isinstance(liar, TwoFaced)
    seen = {liar.faces().index(liar.face(node.peer)) for node in honest}
    assert seen == {0, 1}
    for what in ("restart", "write", *["equivocate"] * 9):
        swarm.call(liar, lambda what=what: liar.act(what, swarm.now))  # type: ignore[misc]
        swarm.advance(1.0)
    swarm.advance(5.0)
    assert swarm.same(honest)
    heads = {honest[0].replica.head(liar.replica.own, plot) for plot in (PLOT, ("claims", 0))}
    assert FORKED in heads


def test_whatever_a_liar_signs_no_honest_node_breaks() -> None:
    swarm = Swarm(3)
    liar = swarm.add(TwoFaced)
    honest = [swarm.add() for _ in range(3)]
    for node in honest:
        swarm.connect(liar, node)
    swarm.connect(honest[0], honest[1])
    swarm.connect(honest[1], honest[2])
    swarm.begin()
    assert isinstance(liar, TwoFaced)
    for what in ACTS * 3:
        swarm.call(liar, lambda what=what: liar.act(what, swarm.now))  # type: ignore[misc]
        swarm.advance(1.0)
    for node in honest:
        swarm.write(node, PLOT, {"mine": {"v": 1}})
    swarm.advance(10.0)
    assert swarm.same(honest)
    for node in honest:
        for other in honest:
            if other.peer in node.links:
                assert at_once(node.replica.facts(other.replica.own, PLOT))


def test_a_mill_fills_the_store_but_evicts_no_author() -> None:
    budget = 60 * defaults.AUTHOR_LEAST

    def replica(own: Any, archive: Any, **more: Any) -> Replica:
        made = SharedReplica(own, archive, **more)
        made.authors = Authors(made.own, budget=budget)
        return made

    swarm = Swarm(4, replica=replica)
    honest: list[ReplicaNode] = [swarm.add() for _ in range(4)]
    mill = swarm.add(KeyMill)
    for one, two in zip(honest, honest[1:], strict=False):  # noqa: RUF007
        swarm.connect(one, two)
    swarm.connect(mill, honest[0])
    swarm.begin()
    for node in honest:
        keys = [other.replica.own for other in swarm.nodes if other.peer in node.links]
        swarm.write(node, PLOT, {VOUCHES: write_vouches(keys)})
    assert isinstance(mill, KeyMill)
    swarm.call(mill, lambda: mill.lure(honest[0].peer))
    swarm.advance(60.0 + defaults.PATIENT_PAUSE)
    assert mill.named > 1_000
    for node in honest:
        assert {other.replica.own for other in honest} <= set(node.replica.authors.keys())
        assert node.replica.authors.total <= budget
        assert sum(size for size, _ in node.archive.sizes().values()) <= budget
    assert len(honest[0].replica.authors) == 60
    assert swarm.same(honest)


SMALL: tuple[Plot, ...] = (("shards", 3), ("shards", 4), ("jobs", 0))


def mixed(seed: int) -> tuple[Swarm, list[ReplicaNode]]:
    """Build a ring of six nodes that keep all, eight nodes that keep some, each linked to two of
    the ring, and two liars among all; return the honest nodes too.
    """
    swarm = Swarm(seed)
    large: list[ReplicaNode] = [swarm.add() for _ in range(6)]
    small: list[ReplicaNode] = []
    for _ in range(8):
        keeps = swarm.random.sample(SMALL, swarm.random.randrange(3))
        small.append(swarm.add(interest=Interest(keeps)))
    liars = [swarm.add(TwoFaced) for _ in range(2)]
    for one, two in pairwise([*large, large[0]]):
        swarm.connect(one, two)
    for node in small:
        for other in (*swarm.random.sample(large, 2), *swarm.random.sample(small, 2)):
            if other is not node:
                swarm.connect(node, other)
    for liar in liars:
        assert isinstance(liar, TwoFaced)
        liar.mood = "pretend"
        for node in [*large, *small]:
            swarm.connect(liar, node)
    swarm.begin()
    return swarm, [*large, *small]


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(1, 5))
def test_partial_replicas_agree_with_all_others_that_keep_a_part(seed: int) -> None:
    swarm, honest = mixed(seed)
    for node in honest:
        swarm.write(node, PLOT, {VOUCHES: write_vouches(other.replica.own for other in honest)})
    swarm.advance(5.0)
    for index in range(24):
        if index == 6:
            swarm.cut(honest[:3] + honest[6:10], honest[3:6] + honest[10:])
        if index == 9:
            for node in honest[6:]:
                if swarm.random.randrange(2):
                    needed = swarm.random.sample(SMALL, 2)
                    swarm.call(node, lambda: node.replica.interest.need(needed, swarm.now))  # noqa: B023
                    gone = node.replica.interest.expire(inf)
                    at_once(node.replica.forget(gone))
        if index == 12:  # before links are given up: no node here would dial again
            swarm.faults.heal()
        swarm.write(swarm.random.choice(honest), swarm.random.choice(SMALL), {"x": {"v": index}})
        swarm.advance(2.0)
    swarm.advance(90.0)
    assert swarm.same_where_kept(honest)
    written = 0
    for node in honest:
        for plot in SMALL:
            head = node.replica.head(node.replica.own, plot)
            keepers = [other for other in honest if other.replica.interest(plot)]
            assert all(other.replica.head(node.replica.own, plot) == head for other in keepers)
            written += head is not None
        for other in honest:
            for plot in SMALL:
                if other is not node and not node.replica.interest(plot):
                    assert node.replica.head(other.replica.own, plot) is None
    assert written > 5
