"""Fleets and a model for the tests of placement by speed."""

from collections.abc import Sequence

from shoal.tasks.costs.rates import DeviceRates, LinkRates
from shoal.tasks.costs.work import ShardWork
from shoal.tasks.placement.coverage import LayerSizes
from shoal.tasks.placement.fleet import Costs, Demand, Fleet, Machine, PlanModel, pair
from shoal.transport.identity import PeerId

LAYER = 10**8
NEAR, DISTANT = LinkRates(0.001, 1e8), LinkRates(0.1, 2e6)


def model(layers: int = 8) -> PlanModel:
    """A model of which a layer has 100 MB, and KV of 1 kB a position."""
    sizes = LayerSizes(layers, LAYER, 0, 0, layers * LAYER)
    work = ShardWork(
        "bfloat16", layers, layers * LAYER, layers * LAYER, 0, 0.0, (), 0, 10**7, 10**7, 8192
    )
    return PlanModel(sizes, work, 1000, 4096)


def machine(name: str, layers: float, speed: float = 1.0) -> Machine:
    """A machine with memory for some layers and 50 MB of KV, that reads `speed` times 100 GB/s."""
    rates = DeviceRates(speed * 1e11, speed * 2e13, speed * 4e13, load=1e9)
    return Machine(PeerId(name), int((layers + 0.5) * LAYER), rates)


def fleet(machines: Sequence[Machine], regions: str = "") -> Fleet:
    """Machines with near links within a region and distant ones between regions. `regions` has one
    letter for each machine; by default all are in one."""
    where = {each.peer: region for each, region in zip(machines, regions, strict=False)}
    links = {
        pair(a.peer, b.peer): NEAR if where.get(a.peer) == where.get(b.peer) else DISTANT
        for a in machines
        for b in machines
        if a.peer < b.peer
    }
    return Fleet(tuple(machines), links)


def costs(machines: Sequence[Machine], regions: str = "", sessions: int = 1) -> Costs:
    """Costs of the model on a fleet."""
    return Costs(fleet(machines, regions), model(), Demand(sessions, 256, 64))
