"""Each member is listed once, as it describes itself, within bounds."""

from shoal.state import defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.membership.record import NOTHING, Capacity
from shoal.state.replication.vouches import VOUCHES, write_vouches
from shoal.state.views.members import (
    ABOUT,
    CAPACITY,
    JOBS,
    Member,
    Members,
    capacity_fact,
    jobs_fact,
)
from shoal.transport.identity import Identity

ALICE, BOB = (Identity.from_seed(seed * 32).peer for seed in (b"a", b"b"))
HERS = FeedName(ALICE, "member", 0)
BIG = Capacity(cores=8, memory_bytes=2**34, engine=True, flops=1e12, bandwidth=2e10)


def test_a_member_is_assembled_from_its_facts() -> None:
    view = Members()
    assert view.get(ALICE) is None and ALICE not in view
    view.changed(HERS, CAPACITY, capacity_fact(BIG))
    assert view.get(ALICE) == Member(ALICE, "", BIG)
    view.changed(HERS, ABOUT, {"version": "0.2", "later": 1})
    assert view.get(ALICE) == Member(ALICE, "0.2", BIG)
    assert list(view) == [ALICE] and ALICE in view and BOB not in view and len(view) == 1
    view.changed(HERS, CAPACITY, None)
    assert view.get(ALICE) == Member(ALICE, "0.2", NOTHING)
    view.forgotten(HERS)
    assert view.get(ALICE) is None and not len(view)


def test_facts_of_a_member_are_bounded() -> None:
    view = Members()
    told = {"cores": 2**60, "memory": -1, "engine": 1, "flops": 1e300, "bandwidth": -5}
    view.changed(HERS, CAPACITY, told)
    member = view.get(ALICE)
    assert member is not None
    assert member.capacity == Capacity(
        defaults.MAX_CORES, 0, engine=False, flops=defaults.MAX_RATE, bandwidth=0.0
    )


def test_unknown_facts_make_no_member() -> None:
    view = Members()
    view.changed(HERS, "later", {"keys": [b"k" * 32]})
    view.changed(HERS, ABOUT, {"version": "x\x1b[2J"})
    view.changed(HERS, CAPACITY, {"cores": "many"})
    assert view.get(ALICE) is None and view.bad == 3


def test_a_change_reports_its_author() -> None:
    view = Members()
    watch = view.watch()
    view.changed(HERS, ABOUT, {"version": "0.2"})
    change = watch.next_now()
    assert change is not None and change.subject == ALICE and change.value == view.get(ALICE)


def test_the_job_kinds_of_a_member() -> None:
    view = Members()
    view.changed(HERS, JOBS, jobs_fact(["prompt", "sum"]))
    assert view.get(ALICE) == Member(ALICE, jobs=("prompt", "sum"))
    for kinds in (None, "prompt", [5], ["x" * 33], ["k"] * (defaults.JOB_KINDS + 1)):
        view.changed(HERS, JOBS, {"kinds": kinds})
        assert view.get(ALICE) is None, kinds


def test_the_fact_vouches_does_not_count_as_malformed() -> None:
    """Fails if the view reads it: healthy nodes would report malformed facts."""
    view = Members()
    view.changed(HERS, VOUCHES, write_vouches([b"k" * 32]))
    view.changed(HERS, VOUCHES, None)
    assert view.bad == 0 and view.get(ALICE) is None
