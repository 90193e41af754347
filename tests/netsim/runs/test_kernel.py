"""Which expectations a run in a real kernel measures."""

from pathlib import Path

import pytest

from shoal.netsim.errors import BadScenario
from shoal.netsim.runs.kernel import refuse_unsupported
from shoal.netsim.scenario.format.parse import parse

TEXT = """[sim]
name = "x"
duration = "10s"
[[host]]
name = "p"
count = 2
[[expect]]
metric = "{metric}"
op = ">="
value = {value}
"""


@pytest.mark.parametrize(
    ("metric", "value"), [("links.pairs", "0.5"), ("links.count", "1"), ("boot.p95", '"1s"')]
)
def test_measured_expectations_are_accepted(metric: str, value: str) -> None:
    refuse_unsupported(parse(TEXT.format(metric=metric, value=value)), Path("x.toml"))


def test_other_expectations_are_refused_with_their_line() -> None:
    scenario = parse(TEXT.format(metric="packets.loss", value="0.1"))
    with pytest.raises(BadScenario, match=r"x\.toml:7: the kernel backend does not measure"):
        refuse_unsupported(scenario, Path("x.toml"))
