"""docs/spec/scenario.md is generated from the tables, and each of its examples is valid."""

import re
from pathlib import Path

import pytest

from shoal.netsim.population.latency import FORMATS
from shoal.netsim.scenario.format.links import link_spec
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.format.tables import Scenario
from shoal.netsim.scenario.reference import reference
from shoal.netsim.scenario.run import ScenarioRun

SPEC = Path(__file__).resolve().parents[3] / "docs" / "spec" / "scenario.md"
TEXT = SPEC.read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
FILES = dict(re.findall(r"```text (\S+)\n(.*?)```", TEXT, re.DOTALL))
SIM = '[sim]\nname = "x"\nduration = "1s"\n'
HOST = '[[host]]\nname = "a"\nprogram = "idle"\n'


def test_the_reference_is_up_to_date() -> None:
    assert reference() == TEXT, (
        "run: python -m shoal.netsim.scenario.reference > docs/spec/scenario.md"
    )


def scenario(example: str) -> Scenario:
    """Complete an example that is only a table of a file."""
    link = 'link = "wifi"\n' if 'id = "wifi"' in example else ""
    text = example if "[sim]" in example else SIM + example + HOST + link
    return parse(text, beside=FILES.__getitem__)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_a_scenario(example: str) -> None:
    ScenarioRun(scenario(example), 1)


def test_every_form_of_latencies_has_an_example() -> None:
    given = {form for example in EXAMPLES for form in re.findall(r'latency = "(\w+)', example)}
    assert given == {"40ms", "core", *FORMATS}


def test_the_example_of_seconds_is_read_as_seconds() -> None:
    example = next(each for each in EXAMPLES if "latency_unit" in each)
    matrix = scenario(example).matrix
    assert matrix is not None and matrix(0, 1) == pytest.approx((0.040 + 0.042) / 4)


def test_the_example_of_bursts_has_the_loss_that_it_names() -> None:
    example = next(each for each in EXAMPLES if "burst" in each)
    burst = link_spec(scenario(example).links[0]).up.burst
    assert burst is not None and 100 * burst.loss == pytest.approx(1.2, abs=0.05)
    assert 100 * burst.bad / (burst.bad + burst.good) == pytest.approx(2.4, abs=0.05)
    assert "for 5 packets on average" in TEXT and 1 / burst.good == 5
