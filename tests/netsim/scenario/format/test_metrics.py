"""Figures have their units, and every reason for a drop is known."""

import re
from pathlib import Path

import pytest

from shoal.netsim.network import link
from shoal.netsim.scenario.format.metrics import REASONS, shown

NETSIM = Path(link.__file__).parents[1]


def test_every_reason_is_known() -> None:
    given = set(link.REASONS.values())
    for path in NETSIM.rglob("*.py"):
        if "netns" not in path.parts:
            given |= set(re.findall(r'\.drop\(\s*"([a-z-]+)"', path.read_text()))
    assert given == set(REASONS)


@pytest.mark.parametrize(
    ("metric", "value", "says"),
    [
        ("rtt.p50", 0.0412, "41.2 ms"),
        ("rtt.p50", 75.0, "75 s"),
        ("rtt.p50", 0.0, "0 s"),
        ("rtt.p50", 3e-7, "0.3 us"),
        ("rtt.count", 3, "3"),
        ("throughput.p95", 5_000_000, "40 Mbit/s"),
        ("packets.loss", 0.0216, "2.16 %"),
        ("packets.sent", 35895.4, "35895"),
        ("punch.attempts", 66.2, "66.2"),
        ("rtt.p50", None, "-"),
        ("drops.nat", 12, "12"),
    ],
)
def test_figures_have_their_units(metric: str, value: float | None, says: str) -> None:
    assert shown(metric, value) == says
