"""Sessions that travel through a chain visit its stages in groups, where that makes them faster."""

import heapq
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pytest

from shoal.tasks.engine.grouping import Groups
from shoal.tasks.engine.scheduler import Scheduler
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.scheduling.shares import Share

SECONDS = 12.0
WARM_S = SECONDS / 2  # until the groups have formed


@dataclass
class Stage:
    """A stage with the real scheduler, whose steps take the predicted time."""

    costs: StepCosts
    scheduler: Scheduler = field(default_factory=Scheduler)
    shares: list[Share] = field(default_factory=list)
    busy: bool = False
    rows: dict[int, int] = field(default_factory=dict)  # number of steps by their rows

    def join(self, sessions: int, owners: int) -> None:
        for number in range(sessions):
            self.shares.append(self.scheduler.join(f"gateway {number % owners}", self.costs))


def tokens_per_s(
    stages: list[Stage], sessions: int, hop: float, *, owners: int = 1, serial: int = 0
) -> list[int]:
    """Return the tokens of each session in the second half of a run, with `hop` seconds between two
    stages.

    With `serial`, the sessions are divided into as many groups, of which one at a time is on its
    way: the stages do not overlap.
    """
    for stage in stages:
        stage.join(sessions, owners)
    events: list[tuple[float, int, str, int, list[int]]] = []
    numbers, made = count(), [0] * sessions
    add = partial(_add, events, numbers)
    turns = [list(range(sessions))[turn::serial] for turn in range(serial)]
    back: list[int] = []
    for session in turns[0] if serial else range(sessions):
        add(0.0, "come", 0, [session])
    while events[0][0] < SECONDS:
        now, _, kind, place, who = heapq.heappop(events)
        stage = stages[place]
        if kind == "come":
            share = stage.shares[who[0]]
            stage.scheduler.groups.came(share, now)
            stage.scheduler.want(share, 1, 100, decode=True)
        elif kind == "end":
            stage.busy = False
            for session in who:
                stage.scheduler.groups.left(stage.shares[session], now)
                last = place + 1 == len(stages)
                made[session] += last and now > WARM_S
                if last and serial:
                    back.append(session)
                else:
                    add(now + hop, "come", (place + 1) % len(stages), [session])
            if serial and len(back) == len(turns[0]):
                turns, back = turns[1:] + turns[:1], []
                for session in turns[0]:
                    add(now + hop, "come", 0, [session])
        if kind != "start":
            add(now, "start", place, [])  # after all that happens at the same time
        elif not stage.busy and stage.scheduler.busy:
            _compute(stage, place, now, add)
    return made


def _add(events, numbers, at, kind, place, who) -> None:  # type: ignore[no-untyped-def]
    heapq.heappush(events, (at, next(numbers), kind, place, who))


def _compute(stage: Stage, place: int, now: float, add) -> None:  # type: ignore[no-untyped-def]
    plan = stage.scheduler.plan()
    end = now + stage.costs.fixed + len(plan) * stage.costs.row
    stage.scheduler.groups.stepped(now, end)
    for share, _ in plan:
        stage.scheduler.rest(share)
    stage.busy = True
    stage.rows[len(plan)] = stage.rows.get(len(plan), 0) + 1
    add(end, "end", place, [stage.shares.index(share) for share, _ in plan])


def chain(stages: int, fixed: float, row: float) -> list[Stage]:
    return [Stage(StepCosts(fixed, row, 0.0)) for _ in range(stages)]


def without_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "most", lambda groups: 10**9)


@pytest.mark.parametrize(("hop", "gain"), [(0.01, 1.7), (0.0, 2.0)])
def test_groups_keep_all_stages_busy(
    hop: float, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped = sum(tokens_per_s(chain(4, 0.005, 0.0015), 16, hop))
    without_groups(monkeypatch)
    together = sum(tokens_per_s(chain(4, 0.005, 0.0015), 16, hop))
    assert grouped > gain * together


def test_groups_without_overlap_are_slower_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without_groups(monkeypatch)
    together = sum(tokens_per_s(chain(4, 0.005, 0.0015), 16, 0.01))
    serial = sum(tokens_per_s(chain(4, 0.005, 0.0015), 16, 0.01, serial=4))
    assert serial < 0.6 * together


def test_rows_that_cost_nothing_are_not_divided() -> None:
    stages = chain(4, 0.005, 1e-5)
    tokens_per_s(stages, 16, 0.01)
    assert all(set(stage.rows) == {16} for stage in stages)


def test_a_chain_of_one_stage_has_no_groups() -> None:
    (stage,) = chain(1, 0.005, 0.0015)
    tokens_per_s([stage], 12, 0.0)
    assert set(stage.rows) == {12}
    assert stage.scheduler.groups.count == 1


def test_the_slowest_stage_decides() -> None:
    stages = chain(3, 0.005, 0.0015)
    stages.insert(2, Stage(StepCosts(0.02, 0.0015, 0.0)))
    made = sum(tokens_per_s(stages, 16, 0.01)) / (SECONDS - WARM_S)
    assert made > 3.8 / (0.02 + 3.8 * 0.0015)  # so it computes all the time


def test_gateways_and_sessions_are_served_alike() -> None:
    made = tokens_per_s(chain(4, 0.005, 0.0015), 16, 0.01, owners=4)
    assert min(made) > 0.8 * max(made)


def test_pauses_without_requests_are_not_idle_time() -> None:
    groups, now = Groups(), 0.0
    for _ in range(50):
        groups.left("a", now)
        groups.came("a", now + 0.01)
        groups.stepped(now + 0.01, now + 0.0199)
        now += 0.02
    assert groups.count == 1  # idle for half of the time, but there is one session only
    groups.left("b", now)
    groups.came("b", now + 0.01)
    for _ in range(50):
        groups.stepped(now + 100, now + 101)
        now += 101
    assert groups.count == 1


def test_a_closed_session_is_forgotten() -> None:
    groups = Groups()
    for session in "ab":
        groups.left(session, 0.0)
        groups.came(session, 1.0)
    groups.stepped(1.0, 1.1)
    assert groups.count == 2
    assert groups.most() == 1
    groups.gone("a")
    assert groups.most() == 1
    assert "a" not in groups
    groups.gone("b")
    assert groups.count == 1
