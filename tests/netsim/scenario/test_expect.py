"""Expectations: when they are met, and that each can fail."""

from typing import Any

import pytest

from shoal.netsim.scenario.expect import INVARIANTS
from shoal.netsim.scenario.format.metrics import INVARIANTS as KNOWN
from shoal.netsim.scenario.format.metrics import (
    MEASURES,
    known_metrics,
    measure_of,
    quantile,
    summary,
    value_of,
)

HOSTS = """
[[host]]
name = "h"
count = 2
program = "udp-echo"
settings = { every = "500ms" }
[[step]]
at = "2s"
action = "partition"
groups = [["h1"], ["h2"]]
for = "4s"
"""


def verdicts(run_text: Any, *expected: str) -> list[tuple[bool, float | None]]:
    text = HOSTS + "".join(f"[[expect]]\n{item}\n" for item in expected)
    return [(item.met, item.found) for item in run_text(text).result().verdicts]


def test_metrics_are_compared(run_text: Any) -> None:
    found = verdicts(
        run_text,
        'metric = "rtt.p50"\nop = "<="\nvalue = "50ms"',
        'metric = "rtt.p50"\nop = ">"\nvalue = "50ms"',
        'metric = "drops.cut"\nop = ">"\nvalue = 5',
        'metric = "drops.nat"\nop = "=="\nvalue = 0',
    )
    assert [met for met, _ in found] == [True, False, True, True]


def test_nothing_measured_is_not_met(run_text: Any) -> None:
    text = '[[host]]\nname = "a"\nprogram = "udp-echo"\n[[expect]]\nmetric = "rtt.p50"\nop = "<"\n'
    (verdict,) = run_text(text + 'value = "9s"').result().verdicts
    assert not verdict.met and verdict.found is None


def test_invariants_have_to_hold_in_time(run_text: Any) -> None:
    found = verdicts(
        run_text,
        'invariant = "answered"\nwithin = "2s"',
        'invariant = "answered"\nwithin = "2s"\nafter = "heal"',
        'invariant = "answered"\nwithin = "3s"\nafter = "partition"',
    )
    assert [met for met, _ in found] == [True, True, False]
    assert found[1][1] is not None and 0 < found[1][1] <= 2


def test_every_name_that_is_known_can_be_computed() -> None:
    assert set(INVARIANTS) == set(KNOWN)
    for name in known_metrics():
        assert measure_of(name) is not None
    assert measure_of("rtt") is None and measure_of("drops.bad") is None
    assert measure_of("hosts.up.p50") is None
    assert all(measure.says for measure in MEASURES.values())


@pytest.mark.parametrize(("share", "found"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0), (0.25, 1.75)])
def test_quantiles_lie_between_neighbours(share: float, found: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == found


def test_a_summary() -> None:
    found = summary([3.0, 1.0, 2.0])
    assert found["count"] == 3 and found["mean"] == found["p50"] == 2.0
    assert summary([]) == {"count": 0}
    assert value_of("rtt.p50", {"rtt": summary([])}) is None
