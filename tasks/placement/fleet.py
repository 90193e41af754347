"""Machines, links and a model as whole numbers, from which plans are compared.

Every node must reach the same plan from the same facts. So machines are sorted by peer id, seconds
become whole nanoseconds here, and plans are compared by integers alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...transport.identity import PeerId
from ..costs.rates import DeviceRates, LinkRates
from ..costs.seconds import step_seconds, transfer_seconds
from ..costs.work import EqualRows, ModelWork, ShardWork
from ..defaults import KV_TOKENS_LEAST
from ..engine.families import Architecture, kv_token_bytes, tensor_shapes
from ..engine.interface import DType, Parts
from ..engine.layouts import Precision, fitting
from .coverage import LayerSizes, Span
from .precision import LAYOUTS

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of sessions for whose steps times are computed."""
MOST_SECONDS: Final = 1e6
"""Longest time that a plan tells apart from a longer one."""
FAR: Final = LinkRates(round_trip_s=0.1, rate=2e6)
"""An unmeasured link: to another continent, at the rate of a home's uplink."""

Pair = tuple[PeerId, PeerId]
"""Two peers, the lower id first."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that could hold layers. `memory` is in bytes."""

    peer: PeerId
    memory: int
    rates: DeviceRates


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines, and the measured links between them. `far` stands for every other link."""

    machines: tuple[Machine, ...]
    links: Mapping[Pair, LinkRates]
    far: LinkRates = FAR

    def link(self, a: PeerId, b: PeerId) -> LinkRates:
        """Return the rates of the link between two machines."""
        return self.links.get(pair(a, b), self.far)

    def without(self, *peers: PeerId) -> "Fleet":
        """Return the fleet without these machines."""
        kept = tuple(each for each in self.machines if each.peer not in peers)
        return replace(self, machines=kept)

    def with_one(self, machine: Machine) -> "Fleet":
        """Return the fleet with one more machine."""
        return replace(self, machines=(*self.machines, machine))


def pair(a: PeerId, b: PeerId) -> Pair:
    """Return the key of the link between two peers."""
    return (a, b) if a < b else (b, a)


@dataclass(frozen=True, slots=True)
class PlanModel:
    """A model to place: the memory of its layers, and the work of all of them together.

    `kv_token` is the bytes of keys and values of one position in one layer.
    """

    sizes: LayerSizes
    work: ShardWork
    kv_token: int
    context: int

    @classmethod
    def of(cls, arch: Architecture, dtype: DType) -> "PlanModel":
        """Describe a model. Blocking: takes up to a second for a hostile one.

        Raises EngineError if the engine cannot compute it.
        """
        work = ModelWork(arch, dtype).of(Parts(True, 0, arch.layers, True))
        token = -(-kv_token_bytes(arch, 0, arch.layers, dtype) // arch.layers)
        return cls(LayerSizes.of(arch, dtype), work, token, arch.context)

    @classmethod
    def quantised(cls, arch: Architecture, dtype: DType, precision: Precision) -> "PlanModel":
        """Describe a model as it would be in int8 or int4. Blocking, as `of`."""
        shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
        return cls.of(replace(arch, layouts=fitting(shapes, LAYOUTS[precision])), dtype)

    def part(self, span: Span) -> ShardWork:
        """Return the work of some layers, each with the mean work of all layers."""
        work, layers = self.work, self.sizes.layers
        count, head = span[1] - span[0], span[1] == layers
        return replace(
            work,
            layers=count,
            row_flops=work.row_flops * count // layers,
            weight_bytes=work.weight_bytes * count // layers,
            expert_bytes=work.expert_bytes * count // layers,
            attention=tuple(
                each._replace(
                    pair_flops=each.pair_flops * count // layers,
                    kv_bytes=each.kv_bytes * count // layers,
                )
                for each in work.attention
            ),
            state_bytes=work.state_bytes * count // layers,
            head_flops=work.head_flops if head else 0,
            head_bytes=work.head_bytes if head else 0,
        )


@dataclass(frozen=True, slots=True)
class Demand:
    """Sessions that run at once, with their typical numbers of tokens."""

    sessions: int = 8
    prompt: int = 1024
    answer: int = 256

    @property
    def positions(self) -> int:
        """Positions of one session at its end."""
        return self.prompt + self.answer


DEMAND: Final = Demand()
"""Default demand, since no node measures it."""


class Costs:
    """Times in nanoseconds of one model's layers on each machine of a fleet, and between machines.

    Machines are numbered in the order of their peer ids. A machine whose layers fit counts as
    having room for `least` sessions at least, perhaps shorter ones than those of the demand.
    """

    def __init__(self, fleet: Fleet, model: PlanModel, demand: Demand, least: int = 0) -> None:
        self._least = least
        self.machines = tuple(sorted(fleet.machines, key=lambda machine: machine.peer))
        self.peers = tuple(machine.peer for machine in self.machines)
        self.memory = tuple(machine.memory for machine in self.machines)
        self.sizes, self.demand, self.layers = model.sizes, demand, model.sizes.layers
        self._kv_token = model.kv_token
        self._positions = max(1, min(demand.positions, model.context))
        rated = [_stage_times(each.rates, model.work, self._positions) for each in self.machines]
        self.fixed = [times[0] for times in rated]
        self.layer = [times[1] for times in rated]
        self.head = [times[2] for times in rated]
        size = model.work.hidden_bytes
        links = [[fleet.link(a, b) for b in self.peers] for a in self.peers]
        self.hop = [[_nanoseconds(transfer_seconds(each, 0)) for each in row] for row in links]
        self.wire = [
            [_nanoseconds(size / each.rate) if each.rate else 0 for each in row] for row in links
        ]
        self._known: dict[tuple[int, Span], tuple[int, ...]] = {}
        self.capacities: dict[tuple[int, int, bool, bool], int] = {}
        """Results of `chains.capacity`."""
        self.evenest: dict[tuple[tuple[int, ...], int], int] = {}
        """Slowest steps of the evenest splits (`chains.split`), by machines and sessions."""
        self.rates: dict[tuple[tuple[int, Span], ...], tuple[int, int]] = {}
        """Results of `predict.better_rate`: the rates of plans, -1 where not computed."""
        self._served: dict[tuple[int, Span], tuple[int, tuple[int, ...]]] = {}

    def fits(self, number: int, span: Span) -> bool:
        """Return whether a machine has memory for these layers."""
        return self.sizes.of_span(*span) <= self.memory[number]

    def room(self, number: int, span: Span) -> int:
        """Return how many sessions have memory for their keys and values on a machine."""
        left = self.memory[number] - self.sizes.of_span(*span)
        if left < 0:
            return 0
        token = self._kv_token * (span[1] - span[0])
        if not token:
            return BATCHES[-1]
        most = min(self._positions, KV_TOKENS_LEAST) + left // token
        return max(self._least, min(BATCHES[-1], most // self._positions))

    def served(self, number: int, span: Span) -> tuple[int, tuple[int, ...]]:
        """Return (`room`, `stage`) of a machine with these layers, computed once."""
        key = number, span
        if key not in self._served:
            self._served[key] = self.room(number, span), self.stage(number, span)
        return self._served[key]

    def stage(self, number: int, span: Span) -> tuple[int, ...]:
        """Return the nanoseconds of a step of a machine with these layers, for each of BATCHES."""
        key = number, span
        if key not in self._known:
            count, head = span[1] - span[0], span[1] == self.layers
            self._known[key] = tuple(
                self.fixed[number] + count * layer + (more if head else 0)
                for layer, more in zip(self.layer[number], self.head[number], strict=True)
            )
        return self._known[key]


def batch_index(sessions: int) -> int:
    """Return the number in BATCHES of the smallest batch that has room for these sessions."""
    return min(max(0, sessions - 1).bit_length(), len(BATCHES) - 1)


def _stage_times(
    rates: DeviceRates, work: ShardWork, positions: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return a machine's nanoseconds: of any step, of one layer and of the head for each of
    BATCHES."""
    fixed = rates.factor * rates.efficiency.step_s
    layers, heads = [], []
    for batch in BATCHES:
        rows = (EqualRows(1, positions // 2, batch),)
        bare = step_seconds(rates, work, rows)
        layers.append(max(1, _nanoseconds((bare - fixed) / work.layers)))
        heads.append(_nanoseconds(step_seconds(rates, work, rows, batch) - bare))
    return _nanoseconds(fixed), tuple(layers), tuple(heads)


def _nanoseconds(seconds: float) -> int:
    """Return a time in whole nanoseconds, at most MOST_SECONDS."""
    return round(1e9 * min(MOST_SECONDS, max(0.0, seconds)))


def ordered(costs: Costs, spans: Mapping[PeerId, Span]) -> dict[int, Span]:
    """Return the spans by the numbers of their machines, in order. Unknown peers are left out."""
    return {at: spans[peer] for at, peer in enumerate(costs.peers) if peer in spans}


def named(costs: Costs, spans: Mapping[int, Span]) -> dict[PeerId, Span]:
    """Return the spans by the peers of their machines."""
    return {costs.peers[at]: spans[at] for at in sorted(spans)}
