"""Links of a scenario: the profile, then the values for both directions, then those for one."""

import pytest

from shoal.netsim.errors import BadScenario
from shoal.netsim.network.link import Burst
from shoal.netsim.population import profiles
from shoal.netsim.scenario.format.links import link_spec
from shoal.netsim.scenario.format.tables import DirectionTable, LinkTable

NOTHING = DirectionTable()


def test_each_layer_over_the_one_before() -> None:
    link = LinkTable(
        "l", "dsl", DirectionTable(loss=0.5, delay=1.0), DirectionTable(delay=2.0), NOTHING, 1
    )
    spec, base = link_spec(link), profiles.link("dsl")
    assert (spec.up.delay, spec.down.delay) == (2.0, 1.0)
    assert spec.up.loss == spec.down.loss == 0.5
    assert (spec.up.rate, spec.down.rate) == (base.up.rate, base.down.rate)


def test_without_a_profile_a_link_is_perfect() -> None:
    spec = link_spec(LinkTable("l", "", NOTHING, NOTHING, NOTHING, 1))
    assert not spec.up.by_chance and spec.down.rate is None


def test_bursts() -> None:
    burst = {"bad": "1%", "good": 0.5, "loss_bad": 1}
    link = LinkTable("l", "", DirectionTable(burst=burst), NOTHING, NOTHING, 1)
    assert link_spec(link).down.burst == Burst(0.01, 0.5, 1.0)


@pytest.mark.parametrize(
    "burst", [{}, {"bad": 0.1}, {"bad": 0, "good": 1, "loss_bad": 1}, {"bad": 2}, {"x": 1}]
)
def test_bursts_that_cannot_be(burst: dict[str, object]) -> None:
    with pytest.raises(BadScenario, match="`burst`"):
        link_spec(LinkTable("l", "", DirectionTable(burst=burst), NOTHING, NOTHING, 1))
