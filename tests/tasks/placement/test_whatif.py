"""What one machine more or less would bring, and what a faster one would not."""

from dataclasses import replace

import pytest

from shoal.tasks.costs.rates import DeviceRates
from shoal.tasks.placement.fleet import Demand, Fleet, Machine
from shoal.tasks.placement.whatif import Newcomer, Outcome, best_outcome, what_if
from shoal.transport.identity import PeerId
from tests.tasks.placement.fleets import DISTANT, NEAR, fleet, machine, model

DEMAND = Demand(8, 256, 64)


def outcome(machines: list[Machine], demand: Demand = DEMAND) -> Outcome:
    return best_outcome(fleet(machines), model(), demand, 50)


def test_a_machine_more_or_less() -> None:
    machines = [machine("a", 4), machine("b", 4)]
    newcomer = Newcomer(machine("new", 8, 3), NEAR)
    found = what_if(
        fleet(machines), model(), DEMAND, {PeerId("a"): (0, 4)}, (newcomer, PeerId("b")), 50
    )
    assert found.best.stages == 2
    assert found.added is not None and found.removed is not None and found.present is not None
    assert found.added.stages == 1 and found.added.tokens_per_s > 1.5 * found.best.tokens_per_s
    assert found.removed.stages == 0 and found.removed.tokens_per_s == 0.0
    assert found.present.stages == 0 and found.present.first_token_s == 0.0


def test_a_distant_machine_brings_nothing_to_a_chain() -> None:
    machines = [machine("a", 4), machine("b", 4)]
    newcomer = Newcomer(machine("new", 4, 1.2), DISTANT)
    found = what_if(fleet(machines), model(), Demand(1), {}, (newcomer, None), 50)
    assert found.added is not None and found.present is None
    assert found.added.single_per_s == pytest.approx(found.best.single_per_s)


def test_a_higher_clock_with_the_same_memory_does_little_for_tokens_and_much_for_prompts() -> None:
    """Row 48: the roofline shows the cap of a clock that is raised alone."""
    rates = DeviceRates(1e11, 5e11, 1e12, load=1e9)
    one = replace(machine("a", 8), rates=rates)
    fast = replace(
        one,
        rates=DeviceRates(
            rates.bandwidth, 10 * rates.float32, 10 * rates.bfloat16, load=rates.load
        ),
    )
    demand = Demand(1, 4000, 64)
    before, after = (best_outcome(Fleet((each,), {}), model(), demand, 50) for each in (one, fast))
    assert 1.0 <= after.single_per_s / before.single_per_s <= 1.2
    assert before.first_token_s / after.first_token_s >= 8


def test_nodes_show_their_layers_memory_and_sessions() -> None:
    found = outcome([machine("a", 4), machine("b", 4), machine("c", 4)])
    assert [(each.span, each.needed) for each in found.nodes][:1] == [((0, 4), 4 * 10**8)]
    assert sum(each.sessions for each in found.nodes) == 16 and found.sessions == 8
    assert all(each.step_s > 0 for each in found.nodes)
