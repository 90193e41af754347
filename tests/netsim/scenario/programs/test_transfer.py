"""Transfers: at the rate of the link, and failed if no host listens."""

from typing import Any

import pytest

from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.run import ScenarioRun

TEXT = """\
[sim]
name = "t"
duration = "30s"
[world]
latency = "10ms"
[[link]]
id = "l"
rate = "8Mbit/s"
[[host]]
name = "a"
link = "l"
program = "tcp-transfer"
settings = {{ to = "b", size = "4MB", every = "9s", timeout = "8s" }}
[[host]]
name = "b"
program = "tcp-transfer"
settings = {{ to = [] }}
{more}
"""


def metrics(more: str = "") -> Any:
    return ScenarioRun(parse(TEXT.format(more=more)), 1).go().metrics


def test_a_transfer_fills_its_link() -> None:
    found = metrics()
    assert found["transfers.finished"] == 3 and found["transfers.failed"] == 0
    assert found["throughput"]["p50"] == pytest.approx(1e6 * 1448 / 1500, rel=0.05)


def test_transfers_that_are_cut_have_failed() -> None:
    found = metrics('[[step]]\nat = "5s"\naction = "crash"\ntarget = "b"\n')
    assert found["transfers.finished"] == 1 and found["transfers.failed"] >= 1
