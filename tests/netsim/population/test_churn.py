"""Sessions against their models; and the driver does what it drew."""

import math
from itertools import islice, pairwise
from random import Random
from statistics import mean, median

import pytest
import trio

from shoal.netsim.errors import BadScenario
from shoal.netsim.faults import Deed, Faults
from shoal.netsim.host import Host
from shoal.netsim.light import Sends
from shoal.netsim.network.packet import Addr
from shoal.netsim.population import churn
from shoal.netsim.population.churn import Habit, OnlineTime, habit_of, load, sessions
from shoal.netsim.population.mix import populate
from shoal.netsim.world import World

HOUR = 3600.0
MODEL = load()


def habit(name: str) -> Habit:
    return next(item for item in MODEL.habits if item.name == name)


def stays(name: str, count: int, utc_hours: float = 0.0, seed: int = 1) -> list[OnlineTime]:
    return list(islice(sessions(MODEL, habit(name), Random(seed), utc_hours), count))


def test_classes_have_their_shares() -> None:
    random = Random(1)
    found = [habit_of(MODEL, random).name for _ in range(5000)]
    for item in MODEL.habits:
        assert found.count(item.name) / 5000 == pytest.approx(item.share, abs=0.02)


@pytest.mark.parametrize(
    ("name", "shape", "scale"), [("casual", 0.6, 3.7), ("always-on", 0.8, 168)]
)
def test_sessions_are_weibull(name: str, shape: float, scale: float) -> None:
    """The median of Weibull is scale * ln(2)^(1/shape): 2 h for the casual ones."""
    hours = [(stay.end - stay.start) / HOUR for stay in stays(name, 5000)[1:]]
    assert median(hours) == pytest.approx(scale * math.log(2) ** (1 / shape), rel=0.08)
    assert mean(hours) == pytest.approx(scale * math.gamma(1 + 1 / shape), rel=0.1)


def test_departures_have_their_shares() -> None:
    found = [stay.departure for stay in stays("casual", 5000)]
    for how, share in MODEL.departures.items():
        assert found.count(how) / 5000 == pytest.approx(share, abs=0.025)


@pytest.mark.parametrize("utc_hours", [0.0, 8.0, -6.0])
def test_daily_volunteers_come_in_the_morning_of_their_place(utc_hours: float) -> None:
    found = stays("daily", 400, utc_hours)[1:]
    local = [(stay.start / HOUR + utc_hours) % 24 for stay in found]
    assert median(local) == pytest.approx(10, abs=0.4)
    assert all(8 <= (stay.end - stay.start) / HOUR <= 11 for stay in found)
    days = (found[-1].start - found[0].start) / HOUR / 24
    assert len(found) / days == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("name", [item.name for item in MODEL.habits])
def test_sessions_follow_each_other(name: str) -> None:
    found = stays(name, 300)
    assert found[0].start >= 0
    assert all(stay.end > stay.start for stay in found)
    assert all(a.end < b.start for a, b in pairwise(found))


def test_some_volunteers_are_online_at_the_beginning() -> None:
    first = [stays("casual", 1, seed=seed)[0].start for seed in range(200)]
    there = sum(start == 0.0 for start in first) / 200
    expected = 5.57 / (5.57 + 12 * math.exp(0.5))  # mean stay, mean absence
    assert there == pytest.approx(expected, abs=0.1)


def test_a_faster_model_has_the_same_shape() -> None:
    fast = list(islice(sessions(load("volunteer-mix-fast"), habit("casual"), Random(1)), 20))
    slow = stays("casual", 20)
    for a, b in zip(fast, slow, strict=True):
        assert a.start == pytest.approx(b.start / 60) and a.departure == b.departure


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(BadScenario) as caught:
        load("volunter-mix")
    assert "did you mean `volunteer-mix`?" in caught.value.hint


class Beat:
    """Program that only runs."""

    async def run(self, host: Host, *, task_status: "trio.TaskStatus[str]") -> None:
        task_status.started("beating")
        await trio.sleep_forever()


def lives(seed: int, *, count: int = 15, hours: float = 48.0) -> list[Deed]:
    """Return what a driver did to whole hosts."""
    world = World(seed)
    faults = Faults(world)
    people = populate(world, count)

    async def main() -> None:
        with trio.move_on_after(hours * HOUR):
            await churn.churn(faults, people, lambda one: Beat())

    world.run(main)
    return faults.timeline


def test_the_driver_follows_the_draws_reproducibly() -> None:
    timeline = lives(5)
    assert timeline == lives(5) != lives(6)
    assert {deed.what for deed in timeline} >= {"start", "stop", "crash", "sleep", "redial"}
    for name in {deed.targets[0] for deed in timeline if deed.what == "start"}:
        turns = [deed.what for deed in timeline if deed.targets == (name,)]
        there = [what in ("start", "resume") for what in turns]
        assert there == [n % 2 == 0 for n in range(len(turns))]  # it comes, goes, comes


class Clockwork:
    """Core that counts its seconds."""

    def __init__(self) -> None:
        self.wake_at = 0.0
        self.seconds = 0

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        return ()

    def on_time(self, now: float) -> Sends:
        self.wake_at = now + 60
        self.seconds += 60
        return ()


def test_light_hosts_are_up_during_their_sessions() -> None:
    world = World(3)
    faults = Faults(world)
    cores: dict[str, Clockwork] = {}

    def core(name: str) -> Clockwork:
        cores[name] = Clockwork()
        return cores[name]

    people = populate(world, 20, core=core)
    random = Random("3/v0/churn")  # the stream of the first volunteer
    first = sessions(MODEL, habit_of(MODEL, random), random, people[0].drawn.region.utc_hours)
    expected = sum(
        max(0.0, min(stay.end, 100 * HOUR) - stay.start)
        for stay in islice(first, 60)
        if stay.start < 100 * HOUR
    )

    async def main() -> None:
        with trio.move_on_after(100 * HOUR):
            await churn.churn(faults, people, lambda one: None)

    world.run(main)
    assert cores["v0"].seconds == pytest.approx(expected, abs=60 * 60)
    assert 0 < min(core.seconds for core in cores.values()) < 100 * HOUR
