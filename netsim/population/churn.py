"""Churn of volunteers: when they come online, how they leave, and when their gateways get new
addresses. Contains the model and the code that executes it.

Each volunteer has random generators of its own. The figures and their sources are in `churn.toml`.
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final, NotRequired, TypedDict

import trio

from ..errors import BadScenario
from ..faults import Faults
from ..host import Host, Program
from .data import table, unknown
from .mix import Volunteer

_FILE: Final = "churn.toml"
DAY_H: Final = 24.0  # hours
LEAST_S: Final = 1.0  # minimum length of a session or an absence


@dataclass(frozen=True, slots=True)
class Habit:
    """Habits of one class of volunteers. Times are in hours.

    `share` is the class's share of the volunteers, from 0 to 1. `session` describes the length of a
    session: (shape, scale) of a Weibull distribution if `weibull` is True, otherwise (minimum,
    maximum) of a uniform one. A `daily` volunteer comes online on each day with probability
    `chance`, at the local hour `start` (mean, standard deviation). Other volunteers alternate
    between sessions and absences; `absence` is (median, sigma) of a log-normal distribution.
    """

    name: str
    share: float
    session: tuple[float, float]
    weibull: bool
    absence: tuple[float, float] = (0.0, 0.0)
    start: tuple[float, float] = (0.0, 0.0)
    chance: float = 1.0
    daily: bool = False


@dataclass(frozen=True, slots=True)
class ChurnModel:
    """A model of churn. All its times are divided by `speed`, to shorten simulations.

    `departures` maps each kind of departure to its share. `redial_share` is the share of gateways
    that get a new public address from time to time, every `redial_every` hours.
    """

    name: str
    habits: tuple[Habit, ...]
    departures: Mapping[str, float]
    redial_share: float
    redial_every: float
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class OnlineTime:
    """One session of a volunteer, in virtual seconds.

    `departure` says how it ends: "clean", "crash" or "sleep".
    """

    start: float
    end: float
    departure: str


class StayEntry(TypedDict, total=False):
    """Length of sessions in the data file, in hours.

    Either a Weibull distribution (`weibull_shape`, `scale_h`), or a uniform distribution between
    two lengths (`least_h`, `most_h`).
    """

    weibull_shape: float
    scale_h: float
    least_h: float
    most_h: float


class HabitEntry(TypedDict):
    """A class of volunteers in the data file.

    It has either `absence`, the time between sessions, or `start` and `chance`, for daily sessions.
    """

    percent: float
    session: StayEntry
    absence: NotRequired[dict[str, float]]
    start: NotRequired[dict[str, float]]
    chance: NotRequired[float]


def names() -> list[str]:
    """Return the names of the built-in models."""
    return list(table(_FILE))


@cache
def load(name: str = "volunteer-mix") -> ChurnModel:
    """Return a built-in model by its name.

    Raises BadScenario, with a hint at the nearest name, if there is none.
    """
    if name not in names():
        raise unknown("model of churn", name, names())
    entry = table(_FILE)[name]
    base = table(_FILE)[entry.get("like", name)]
    habits = tuple(_habit(label, item) for label, item in base["class"].items())
    shares = {how: share / 100 for how, share in base["departure"].items()}
    for what, whole in (
        ("classes", sum(habit.share for habit in habits)),
        ("departures", sum(shares.values())),
    ):
        if abs(whole - 1) > 1e-6:
            raise BadScenario(f"the shares of the {what} of {name} sum up to {100 * whole:g} %")
    redial = base["redial"]
    return ChurnModel(
        name, habits, shares, redial["percent"] / 100, redial["every_h"], entry.get("speed", 1.0)
    )


def _habit(name: str, item: HabitEntry) -> Habit:
    """Convert the entry of a class in the data file."""
    session, share = item["session"], item["percent"] / 100
    weibull = "weibull_shape" in session
    stay = (
        (session["weibull_shape"], session["scale_h"])
        if weibull
        else (session["least_h"], session["most_h"])
    )
    if "start" in item:
        start = item["start"]["mean_hour"], item["start"]["sigma_h"]
        return Habit(name, share, stay, weibull, start=start, chance=item["chance"], daily=True)
    away = item["absence"]["median_h"], item["absence"]["sigma"]
    return Habit(name, share, stay, weibull, absence=away)


def habit_of(model: ChurnModel, random: Random) -> Habit:
    """Draw the class of a volunteer."""
    return random.choices(model.habits, [habit.share for habit in model.habits])[0]


def sessions(
    model: ChurnModel, habit: Habit, random: Random, utc_hours: float = 0.0
) -> Iterator[OnlineTime]:
    """Yield the sessions of one volunteer, without end.

    Times are in seconds since the start of the simulation, which is at midnight UTC. `utc_hours` is
    the difference of the volunteer's local time from UTC. A volunteer that is not `daily` starts at
    a random point of its first session and absence.
    """
    stays = _daily(habit, random, utc_hours) if habit.daily else _alternating(habit, random)
    for start, end in stays:
        how = random.choices(list(model.departures), list(model.departures.values()))[0]
        begin = start * 3600 / model.speed
        yield OnlineTime(begin, max(end * 3600 / model.speed, begin + LEAST_S), how)


def _stay(habit: Habit, random: Random) -> float:
    """Draw the length of a session, in hours."""
    a, b = habit.session
    return random.weibullvariate(b, a) if habit.weibull else random.uniform(a, b)


def _away(habit: Habit, random: Random) -> float:
    """Draw the length of an absence, in hours."""
    median, sigma = habit.absence
    return max(random.lognormvariate(math.log(median), sigma), LEAST_S / 3600)


def _alternating(habit: Habit, random: Random) -> Iterator[tuple[float, float]]:
    """Yield (start, end) of sessions that alternate with absences, in hours.

    A cycle is a session and the absence after it. Time 0 is a random point of the first cycle. The
    first cycle is drawn with a probability in proportion to its length, because a random time falls
    into long cycles more often.
    """
    lengths = [(_stay(habit, random), _away(habit, random)) for _ in range(64)]
    stay, away = random.choices(lengths, [sum(pair) for pair in lengths])[0]
    now = -random.random() * (stay + away)
    while True:
        if now + stay > 0:
            yield max(now, 0.0), now + stay
        now += stay + away
        stay, away = _stay(habit, random), _away(habit, random)


def _daily(habit: Habit, random: Random, utc_hours: float) -> Iterator[tuple[float, float]]:
    """Yield (start, end) of the sessions of a daily volunteer, in hours."""
    day, last = -1, 0.0
    while True:
        start = day * DAY_H + random.gauss(*habit.start) - utc_hours
        end = start + _stay(habit, random)
        comes = random.random() < habit.chance
        if comes and end > 0 and end > last:
            yield max(start, last, 0.0), end
            last = end + LEAST_S / 3600
        day += 1


# Execution of the model.

Stop = Callable[[Host], Awaitable[None]]
"""Function that ends the program of a host in an orderly way."""


async def power_off(host: Host) -> None:
    """Cut the power of a host. Used for programs that need no orderly end."""
    await host.crash()


async def churn(
    faults: Faults,
    volunteers: Sequence[Volunteer],
    program: Callable[[Volunteer], Program[object] | None],
    *,
    model: str | ChurnModel = "volunteer-mix",
    stop: Stop = power_off,
) -> None:
    """Start, stop, crash and suspend the programs of volunteers by a model, until cancelled.

    `program` returns the program of a volunteer, and `stop` ends it in an orderly way. Light hosts
    are switched on and off instead, and keep the state of their protocols.
    """
    chosen = load(model) if isinstance(model, str) else model
    async with trio.open_nursery() as nursery:
        for one in volunteers:
            nursery.start_soon(_Life(faults, one, program, chosen, stop).run)
            if one.gateways:
                nursery.start_soon(_redial, faults, one, chosen)


async def _redial(faults: Faults, one: Volunteer, model: ChurnModel) -> None:
    """Give a volunteer's gateway a new public address every `model.redial_every` hours, if the
    gateway is among the share that the model re-dials.
    """
    random = faults.world.streams.get(one.name, "redial")
    every = model.redial_every * 3600 / model.speed
    first = random.random() * every
    if random.random() >= model.redial_share:
        return
    await trio.sleep(first)
    while True:
        faults.redial(one.gateways[0])
        await trio.sleep(every)


class _Life:
    """Execution of one volunteer's sessions."""

    def __init__(
        self,
        faults: Faults,
        one: Volunteer,
        program: Callable[[Volunteer], Program[object] | None],
        model: ChurnModel,
        stop: Stop,
    ) -> None:
        self._faults = faults
        self._one = one
        self._program = program
        self._model = model
        self._stop = stop

    async def run(self) -> None:
        """Start and end the volunteer's sessions, until cancelled."""
        random = self._faults.world.streams.get(self._one.name, "churn")
        habit = habit_of(self._model, random)
        hours = self._one.drawn.region.utc_hours
        began = trio.current_time()
        if not isinstance(self._one.host, Host):
            self._one.host.crash()  # off until its first session
        for session in sessions(self._model, habit, random, hours):
            await trio.sleep_until(began + session.start)
            await self._arrive()
            await trio.sleep_until(began + session.end)
            await self._leave(session.departure)

    async def _arrive(self) -> None:
        """Start a session: wake the host, switch it on, or start its program."""
        host = self._one.host
        if self._faults.asleep(host):
            self._faults.resume(host)
        elif isinstance(host, Host):
            if host.program is None:
                await host.start(self._program(self._one))
            elif host.up:
                await host.start(host.program)
            else:
                await host.restart()
            self._faults.note("start", (host.name,))

    async def _leave(self, how: str) -> None:
        """End a session. `how` is "clean", "crash" or "sleep"."""
        host = self._one.host
        if how == "sleep":
            self._faults.sleep(host)
        elif how == "crash" or not isinstance(host, Host):
            await self._faults.crash(host)
        else:
            await self._stop(host)
            self._faults.note("stop", (host.name,))
