"""Tests of which models jobs can use, by what other members claim to serve."""

import time
from contextlib import suppress
from random import Random

import pytest

from shoal.state.membership.record import MemberRecord, ShardRecord
from shoal.tasks.errors import NoRoute
from shoal.tasks.inference.shards import find_route
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.models import JobModels, served
from shoal.transport.identity import Identity, PeerId

ROOT = "ab" * 32
AUTHOR, SERVER = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2)]


def record(peer: PeerId, *layers: tuple[int, int], root: str = ROOT) -> MemberRecord:
    """A member that serves shards of six layers."""
    shards = tuple(
        ShardRecord(root, start == 0, start, stop, stop == 6, "float32", 4096)
        for start, stop in layers
    )
    return MemberRecord(peer, seq=1, shards=shards)


@pytest.mark.parametrize(
    ("layers", "whole"),
    [(((0, 6),), True), (((0, 3),), False), (((3, 6),), False), ((), False)],
)
def test_whether_all_of_a_model_is_served(layers: tuple[tuple[int, int], ...], whole: bool) -> None:
    assert served({SERVER: record(SERVER, *layers)}) == ({ROOT} if whole else set())
    both = {SERVER: record(SERVER, (0, 3)), AUTHOR: record(AUTHOR, (3, 6))}
    assert served(both) == {ROOT}


PEERS = [Identity.from_seed(number.to_bytes(32)).peer for number in range(1, 121)]


def test_a_model_is_served_if_and_only_if_it_has_a_route() -> None:
    lot = Random(1)
    found = 0
    for _ in range(500):
        members = {peer: _by_lot(peer, lot) for peer in PEERS[: lot.randint(1, 8)]}
        whole = any(_has_route(members, layers) for layers in range(1, 5))
        assert served(members) == ({ROOT} if whole else set())
        found += whole
    assert 100 < found < 400


def _by_lot(peer: PeerId, lot: Random) -> MemberRecord:
    """Create a member with random claims about a model of about four layers."""
    shards = []
    for _ in range(lot.randint(0, 3)):
        start = lot.randint(0, 3)
        ends = lot.random() < 0.8, start, lot.randint(start + 1, 4), lot.random() < 0.3
        dtype = lot.choice(("float32", "float32", "float32", "bfloat16", "none"))
        shards.append(ShardRecord(ROOT, *ends, dtype, lot.choice((0, 99, 99))))
    return MemberRecord(peer, seq=1, shards=tuple(shards))


def _has_route(members: dict[PeerId, MemberRecord], layers: int) -> bool:
    with suppress(NoRoute):
        return bool(find_route(members, ROOT, layers, 1))
    return False


def test_each_claimed_end_of_a_model_costs_one_step() -> None:
    """With a search for each of these 960 ends this takes seconds."""
    members = {peer: record(peer, (0, 3)) for peer in PEERS[:60]}
    for number, peer in enumerate(PEERS[60:]):
        shards = (
            ShardRecord(ROOT, False, 1, 2 + 16 * number + end, True, "float32", 99)
            for end in range(16)
        )
        members[peer] = MemberRecord(peer, seq=1, shards=tuple(shards))
    began = time.process_time()
    assert not served(members)
    assert time.process_time() - began < 0.3


class Node:
    """A node's models, the members that serve them, and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.members = {SERVER: record(SERVER, (0, 6))}
        self.looks = 0
        self.own = {ROOT}
        self.models = JobModels(
            self._members, lambda: self.now, works_for=lambda root: root in self.own
        )

    def _members(self) -> dict[PeerId, MemberRecord]:
        self.looks += 1
        return self.members


def test_a_job_for_an_unserved_model_fails_after_a_while() -> None:
    node = Node()
    assert node.models.can_use(ROOT) and not node.models.is_missing(ROOT)
    node.members.clear()
    node.now += defaults.SERVED_FOR
    assert not node.models.can_use(ROOT) and not node.models.is_missing(ROOT)
    node.now += defaults.MODEL_PATIENCE - 1
    assert not node.models.can_use(ROOT)
    node.now += 1
    assert node.models.can_use(ROOT) and node.models.is_missing(ROOT)
    node.members[SERVER] = record(SERVER, (0, 6))
    node.now += defaults.SERVED_FOR
    assert node.models.can_use(ROOT) and not node.models.is_missing(ROOT)
    node.members.clear()
    node.now += defaults.SERVED_FOR
    assert not node.models.can_use(ROOT), "it is waited for again"


def test_a_model_that_this_node_has_no_reason_to_know_is_left_to_others() -> None:
    node = Node()
    node.own.clear()
    assert not node.models.can_use(ROOT), "however well strangers serve it"
    node.members.clear()
    node.now += defaults.SERVED_FOR
    assert not node.models.can_use(ROOT)
    node.now += defaults.MODEL_PATIENCE
    assert node.models.can_use(ROOT), "any node gives up a job for a model without servers"


def test_thousands_of_jobs_share_one_lookup() -> None:
    node = Node()
    for _ in range(1000):
        assert node.models.can_use(ROOT)
    assert node.looks == 1


def test_models_that_strangers_name_are_remembered_in_bounds() -> None:
    node = Node()
    roots = [f"{number:064x}" for number in range(3 * defaults.MODELS_WAITED_FOR)]
    assert not any(map(node.models.can_use, roots)), "their models may still be served"
    assert node.looks == 1, "however many models they name"
    node.now += defaults.MODEL_PATIENCE
    given_up = [node.models.can_use(root) for root in reversed(roots)]
    assert given_up.count(True) == defaults.MODELS_WAITED_FOR, "those named last"
