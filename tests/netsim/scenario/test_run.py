"""Runs: figures, samples, verdicts, populations and churn; equal for equal seeds."""

from dataclasses import asdict
from typing import Any

import pytest

from shoal.netsim.errors import SimError
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.result import RunResult
from shoal.netsim.scenario.run import ScenarioRun

PAIR = """
[world]
latency = "10ms"
[[host]]
name = "h"
count = 2
program = "udp-echo"
settings = { every = "500ms" }
"""


def test_figures_of_a_quiet_run(run_text: Any) -> None:
    result = run_text(PAIR).result()
    metrics = result.metrics
    assert metrics["echo.sent"] == metrics["echo.answered"] == 40
    assert metrics["rtt"]["p50"] == pytest.approx(0.02)
    assert metrics["packets.sent"] == metrics["packets.delivered"] == 80
    assert result.hosts[0].counters["sent"] == result.hosts[1].counters["received"] == 40
    assert result.series["at"] == [float(n) for n in range(1, 11)]
    assert result.virtual == 10.0 and result.ended == "done"
    assert result.pairs == {"what": "answered", "classes": ["public"], "cells": [[[2, 2]]]}


def test_the_same_seed_the_same_result(run_text: Any) -> None:
    text = PAIR + 'link = "dsl"\n'
    one, two, other = (asdict(run_text(text, seed=seed).result()) for seed in (1, 1, 2))
    assert one == two
    assert one["digest"] != other["digest"]


def test_a_result_survives_its_json(run_text: Any) -> None:
    result = run_text(PAIR + "[[step]]\nat = '1s'\naction = 'crash'\ntarget = 'h1'").result()
    assert RunResult.from_json(asdict(result)) == result


def test_a_run_that_is_stopped_judges_nothing(run_text: Any) -> None:
    text = PAIR + '[[expect]]\nmetric = "hosts.up"\nop = "=="\nvalue = 2\n'
    assert run_text(text).result().met
    result = run_text(text, until=4.0).result()
    assert result.ended == "stopped" and not result.verdicts and not result.met
    assert result.virtual == 4.0


def test_a_late_echo_does_not_count(run_text: Any) -> None:
    slow = PAIR.replace('"10ms"', '"400ms"')
    assert run_text(slow).result().metrics["echo.answered"] > 20
    late = slow.replace("settings = {", 'settings = { timeout = "700ms",')
    assert run_text(late).result().metrics["echo.answered"] == 0


def test_programs_start_when_they_are_told(run_text: Any) -> None:
    run = run_text(PAIR.replace('latency = "10ms"', 'latency = "10ms"\nspread = "8s"'))
    starts = [member.start for member in run.topology.members.values()]
    assert len(set(starts)) == 2 and all(0 < start < 8 for start in starts)
    assert run.result().metrics["echo.sent"] < 40


POPULATION = """
[world]
hosts = 20
population = "home-volunteers-2026"
latency = "core"
{more}
"""


def test_a_population(run_text: Any) -> None:
    run = run_text(POPULATION.format(more='program = "udp-echo"\nsettings = { to = [] }'))
    kinds = {host.kind for host in run.result().hosts}
    assert len(run.topology.members) == 20 and len(kinds) > 3


def test_punching_through_a_population(run_text: Any) -> None:
    text = POPULATION.format(more='relays = 2\nprogram = "punch"\nsettings = { rounds = 3 }')
    result = run_text(text, duration="70s").result()
    assert result.metrics["punch.attempts"] >= 20
    assert 0.4 < result.metrics["punch.success_rate"] < 1.0
    assert result.pairs["what"] == "punched"


def test_other_relays_lead_to_the_same_place(run_text: Any) -> None:
    """Partners that are registered at different relays still find each other."""
    rates = []
    for relays in (1, 3):
        more = f'relays = {relays}\nprogram = "punch"\nsettings = {{ rounds = 3 }}'
        result = run_text(POPULATION.format(more=more), duration="70s").result()
        rates.append(result.metrics["punch.success_rate"])
    assert abs(rates[0] - rates[1]) < 0.15


def test_volunteers_come_and_go(run_text: Any) -> None:
    more = 'program = "udp-echo"\nsettings = { to = [] }\n[churn]\nmodel = "volunteer-mix-fast"'
    result = run_text(POPULATION.format(more=more), duration="30m").result()
    assert {"start", "crash"} <= {deed[1] for deed in result.deeds}
    assert len(set(result.series["up"])) > 1
    slow = more.replace("-fast", "")
    other = run_text(POPULATION.format(more=slow), duration="30m").result()
    assert len(other.deeds) < len(result.deeds)


def test_an_exception_of_a_program_ends_the_run() -> None:
    run = ScenarioRun(parse(f'[sim]\nname = "t"\nduration = "9s"\n{PAIR}'), 1)

    async def broken(*_: Any, **__: Any) -> None:
        raise SimError("broken")

    run.topology.members["h1"].program.run = broken  # type: ignore[method-assign]
    with pytest.raises(SimError, match="broken"):
        run.go()
    result = run.result()
    assert result.ended == "interrupted" and not result.verdicts


def test_progress_is_reported_at_every_sample() -> None:
    told: list[float] = []
    ScenarioRun(parse(f'[sim]\nname = "t"\nduration = "3s"\n{PAIR}'), 1, progress=told.append).go()
    assert told == [1.0, 2.0, 3.0]
