"""Outcomes of a fleet, and of the same with one machine more or less. Pure functions.

`shoal plan` shows the results (docs/plan.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...transport.identity import PeerId
from ..costs.chain import CostedStage, chain_times
from ..costs.rates import LOCAL, LinkRates
from .coverage import Span
from .fleet import Costs, Demand, Fleet, Machine, Pair, PlanModel, named, ordered, pair
from .optimise import optimise
from .predict import MILLI, loads_of, rate_of, routes_of


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A machine in a placement: the layers that it holds, the bytes that these need, how many of
    the sessions run through it, and the seconds of its step for one of them."""

    peer: PeerId
    span: Span
    needed: int
    sessions: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Predicted rates of a placement: tokens/s of all sessions of the demand, and of one session
    alone, and the seconds until the first token of one.

    `stages` is the length of its chain; 0 means that nothing can be served.
    """

    nodes: tuple[PlannedNode, ...]
    tokens_per_s: float
    single_per_s: float
    first_token_s: float
    stages: int
    sessions: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Outcomes of the best placement, of the present one, and of the best one with one machine more
    or less. None: there is no such placement, or it was not asked for."""

    best: Outcome
    present: Outcome | None = None
    added: Outcome | None = None
    removed: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A machine that does not exist yet, and its link to every other machine."""

    machine: Machine
    link: LinkRates


def joined(fleet: Fleet, newcomer: Newcomer) -> Fleet:
    """Return the fleet with the newcomer and its links."""
    peer = newcomer.machine.peer
    links: dict[Pair, LinkRates] = {
        **fleet.links, **{pair(peer, each.peer): newcomer.link for each in fleet.machines}
    }  # fmt: skip
    return replace(fleet.with_one(newcomer.machine), links=links)


def what_if(
    fleet: Fleet,
    model: PlanModel,
    demand: Demand,
    present: Mapping[PeerId, Span],
    change: tuple[Newcomer | None, PeerId | None],
    looks: int,
) -> WhatIf:
    """Return the outcomes of a fleet. Takes seconds for dozens of machines.

    `present` are the layers that are served now, and `change` is the machine that may come, and the
    one that may leave.
    """
    add, remove = change
    return WhatIf(
        best_outcome(fleet, model, demand, looks),
        outcome(Costs(fleet, model, demand), fleet, model, present) if present else None,
        best_outcome(joined(fleet, add), model, demand, looks) if add else None,
        best_outcome(fleet.without(remove), model, demand, looks) if remove else None,
    )


def best_outcome(fleet: Fleet, model: PlanModel, demand: Demand, looks: int) -> Outcome:
    """Return the outcome of the best placement that is found by comparing `looks` plans at
    most."""
    costs = Costs(fleet, model, demand)
    spans, _ = optimise(costs, looks=looks)
    return outcome(costs, fleet, model, named(costs, spans))


def outcome(costs: Costs, fleet: Fleet, model: PlanModel, spans: Mapping[PeerId, Span]) -> Outcome:
    """Return what a placement delivers."""
    numbered = ordered(costs, spans)
    routes = routes_of(costs, numbered, costs.demand.sessions)
    single = routes_of(costs, numbered, 1)
    load, rate = loads_of(routes), rate_of(costs, numbered)
    nodes = tuple(
        PlannedNode(
            costs.peers[each],
            span,
            costs.sizes.of_span(*span),
            load.get(each, 0),
            costs.stage(each, span)[0] / 1e9,
        )
        for each, span in sorted(numbered.items(), key=lambda item: (item[1], item[0]))
    )
    path = single[0].machines if single else ()
    return Outcome(
        nodes,
        rate.demand / MILLI,
        rate.single / MILLI,
        _first_token(costs, fleet, model, [(each, numbered[each]) for each in path]),
        len(path),
        sum(route.sessions for route in routes),
    )


def _first_token(
    costs: Costs, fleet: Fleet, model: PlanModel, chain: Sequence[tuple[int, Span]]
) -> float:
    """Return the predicted seconds until the first token of a session alone in a chain, counted
    from the arrival of its prompt at the first machine. 0 without a chain."""
    stages, before = list[CostedStage](), None
    for each, span in chain:
        machine = costs.machines[each]
        link = fleet.link(before, machine.peer) if before else LOCAL
        stages.append(CostedStage(model.part(span), machine.rates, link))
        before = machine.peer
    return chain_times(stages, LOCAL, costs.demand.prompt).first_token_s if stages else 0.0
