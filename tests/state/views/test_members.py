"""Each member is listed once, as it describes itself, within bounds."""

import math
from typing import Final

import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.membership.record import (
    NOTHING,
    Capacity,
    DeviceSpeed,
    LinkSpeed,
    SharedModel,
)
from shoal.state.replication.vouches import VOUCHES, write_vouches
from shoal.state.views.members import (
    ABOUT,
    CAPACITY,
    JOBS,
    LINKS,
    SHARED,
    Member,
    Members,
    capacity_fact,
    jobs_fact,
    links_fact,
    shared_fact,
)
from shoal.transport.identity import Identity
from shoal.transport.message import pack

ALICE, BOB = (Identity.from_seed(seed * 32).peer for seed in (b"a", b"b"))
HERS = FeedName(ALICE, "member", 0)
GPU = DeviceSpeed("cuda:0", "sm_90", 80 * 2**30, 3e12, 5e13, 8e14, 256)
BIG = Capacity(cores=8, memory_bytes=2**34, engine=True, load_rate=2e9, devices=(GPU,))


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
    told = {"cores": 2**60, "memory": -1, "engine": 1, "load": 1e300}
    view.changed(HERS, CAPACITY, told)
    member = view.get(ALICE)
    assert member is not None
    assert member.capacity == Capacity(
        defaults.MAX_CORES, 0, engine=False, load_rate=defaults.MAX_RATE
    )


WHOLE: Final = ["cpu", "AVX2", 2**30, 1e10, 1e11, 1e11, 8]


def _with(index: int, value: object) -> list[object]:
    return [*WHOLE[:index], value, *WHOLE[index + 1 :]]


@pytest.mark.parametrize(
    "devices",
    [
        "cpu",
        {"cpu": WHOLE},
        [WHOLE] * (defaults.DEVICES + 1),
        [WHOLE[:2]],
        [_with(0, "x\x1b[2J")],
        [_with(0, "x" * (defaults.DEVICE_TEXT_BYTES + 1))],
        [_with(1, b"AVX2")],
        [_with(2, -1)],
        [_with(2, 1.5)],
        [_with(3, math.nan)],
        [_with(4, math.inf)],
        [_with(5, -1.0)],
        [_with(5, defaults.MAX_RATE * 2)],
        [_with(6, defaults.MAX_BATCH + 1)],
    ],
)
def test_hostile_devices_make_the_fact_absent(devices: object) -> None:
    view = Members()
    view.changed(HERS, CAPACITY, {"cores": 2, "devices": devices})
    assert view.get(ALICE) is None and view.bad == 1


def test_devices_of_a_later_version_are_read() -> None:
    view = Members()
    view.changed(HERS, CAPACITY, {"cores": 2, "devices": [[*WHOLE, "more"], WHOLE[:3]]})
    member = view.get(ALICE)
    assert member is not None
    assert [each.batch for each in member.capacity.devices] == [8, 0]


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


LINK: Final = LinkSpeed(b"12345678", 20.0, 1e7)


def test_links_are_listed_and_forgotten() -> None:
    view = Members()
    other = LinkSpeed(b"abcdefgh", 0.25)
    view.changed(HERS, LINKS, links_fact((LINK, other)))
    member = view.get(ALICE)
    assert member is not None and member.links == (LINK, other)
    view.changed(HERS, LINKS, None)
    assert view.get(ALICE) is None


@pytest.mark.parametrize(
    "links",
    [
        5, [5], [[b"12345678"]], [[b"1234567", 1.0]], [[b"123456789", 1.0]], [["12345678", 1.0]],
        [[b"12345678", -1.0]], [[b"12345678", math.nan]], [[b"12345678", math.inf]],
        [[b"12345678", 1e9]], [[b"12345678", 1.0, -1.0]], [[b"12345678", 1.0, math.nan]],
        [[b"12345678", 1.0], [b"12345678", 2.0]],
        [[number.to_bytes(8), 1.0] for number in range(defaults.LINKS + 1)],
    ],
)  # fmt: skip
def test_links_out_of_bounds_make_the_fact_absent(links: object) -> None:
    view = Members()
    view.changed(HERS, LINKS, {"links": links})
    assert view.get(ALICE) is None and view.bad == 1


def test_the_largest_list_of_links_fits_a_fact() -> None:
    links = [LinkSpeed(number.to_bytes(8), 1000.1, 1e7) for number in range(defaults.LINKS)]
    assert len(pack(links_fact(links))) < defaults.FACT_BYTES / 4


LLAMA: Final = SharedModel("llama", "llama.cpp", 4096, ("chat", "text", "top-k"))


def test_shared_models_are_listed_and_forgotten() -> None:
    view = Members()
    other = SharedModel("l\xe4ma", "Ollama")
    view.changed(HERS, SHARED, shared_fact((LLAMA, other)))
    member = view.get(ALICE)
    assert member is not None and member.shared == (LLAMA, other)
    view.changed(HERS, SHARED, None)
    assert view.get(ALICE) is None


@pytest.mark.parametrize(
    "models",
    [
        5, [5], [["llama"]], [["", "x", 0, []]], [["a b", "x", 0, []]], [["a@b", "x", 0, []]],
        [["ll\u0430ma", "x", 0, []]], [["deadbeef", "x", 0, []]], [["a" * 65, "x", 0, []]],
        [["a", "x" * 33, 0, []]], [["a", "x\x1b[2J", 0, []]], [["a", "x", -1, []]],
        [["a", "x", 2**50, []]], [["a", "x", 0, ["y" * 33]]], [["a", "x", 0, ["y"] * 17]],
        [["a", "x", 0, ["\u202e"]]], [["a", "x", 0, []], ["a", "y", 0, []]],
        [[f"m{number}", "x", 0, []] for number in range(defaults.SHARED + 1)],
    ],
)  # fmt: skip
def test_shared_models_out_of_bounds_make_the_fact_absent(models: object) -> None:
    view = Members()
    view.changed(HERS, SHARED, {"models": models})
    assert view.get(ALICE) is None and view.bad == 1


def test_the_largest_list_of_shared_models_fits_a_fact() -> None:
    takes = ("t" * 32,) * defaults.SHARED_WORDS
    names = [f"{number:02}" + "\xe4" * 62 for number in range(defaults.SHARED)]
    small = tuple(SharedModel(name, "e" * 32, 2**40, ("chat", "text", "top-k")) for name in names)
    assert len(pack(shared_fact(small))) < defaults.FACT_BYTES / 2
    large = tuple(SharedModel(name, "e" * 32, 2**40, takes) for name in names)
    view = Members()
    view.changed(HERS, SHARED, shared_fact(large))
    assert view.get(ALICE) is not None
