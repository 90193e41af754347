"""Predicted placements of models: the control socket operation, and the same from a file.

Specified in docs/spec/control.md.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ...dht.content.folder import json_file
from ...dht.content.manifest import Manifest
from ...dht.defaults import CONFIG_LIMIT
from ...dht.errors import ModelError
from ...state.directory import Directory
from ...state.membership.record import MemberRecord
from ...tasks.defaults import FLOAT32_PARAMETERS
from ...tasks.engine.families import DTYPE_BYTES, Architecture, architecture, weight_bytes
from ...tasks.engine.interface import DType, Parts
from ...tasks.errors import BadNodes
from ...tasks.placement.coverage import Span
from ...tasks.placement.demand import Slower, as_claimed
from ...tasks.placement.fleet import DEMAND, Demand, Fleet, Machine, PlanModel
from ...tasks.placement.improve import believed
from ...tasks.placement.links import links_between
from ...tasks.placement.nodesfile import FILE_BYTES, NodesFile, read_newcomer, read_nodes
from ...tasks.placement.placing import Facts
from ...tasks.placement.precision import smaller
from ...tasks.placement.shard import choose_dtype
from ...tasks.placement.whatif import Outcome, PlannedNode, best_outcome, what_if
from ...transport import shortid
from ...transport.errors import HostError
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from .. import defaults
from ..daemon.content import ContentParts
from ..daemon.embedded import embedded_folder
from . import offline
from .messages.encoding import extended
from .messages.plans import MakePlan, OutcomeView, PlannedNodeView, PlanView, PrecisionView
from .server import Emit, Operation, operation

CONFIG: Final = "config.json"
PEERS: Final = "`shoal peers` lists the peers"
NEWCOMER: Final = PeerId("the added machine")


class PlanOperations:
    """The control socket operation `plan` of one node."""

    def __init__(
        self,
        host: Host,
        content: ContentParts,
        directory: Directory,
        slower: Slower = as_claimed,
    ) -> None:
        """`slower` tells how much slower members are than they claim, as this node measured."""
        self._host = host
        self._slower = slower
        self._content = content
        self._directory = directory

    def table(self) -> Mapping[str, Operation]:
        return dict((operation(MakePlan, self.plan),))

    async def plan(self, ask: MakePlan, _emit: Emit) -> PlanView:
        """Predict placements of a model on the live members that have an engine."""
        meaning = await self._content.names.resolve(ask.name)
        manifest = await self._content.sources.manifest(meaning.root)
        members = list(self._directory.members().values())
        if ask.remove is not None:
            peers = [record.peer for record in members]
            ask = replace(ask, remove=shortid.meant(ask.remove, peers, "peer", hint=PEERS))
        served = _served(members, manifest.root)
        described = await self._host.offload(_model, manifest)
        model = await self._host.offload(PlanModel.of, *described)
        # Not in a thread, because the gateway changes what it has measured meanwhile.
        nodes = fleet_of(members, manifest.root, model, self._slower)
        return await self._host.offload(lambda: plan_view(ask, described, nodes, served))


def fleet_of(
    members: Collection[MemberRecord], root: str, model: PlanModel, slower: Slower
) -> NodesFile:
    """Return the members with an engine as machines, at most PLAN_MEMBERS, those with most memory
    first. Their speed is what they measured with their shard of the model, and what this node
    measured of them, as far as placement believes it."""
    facts = Facts(root, model)
    able = [record for record in members if record.capacity.engine]
    able.sort(key=lambda record: (-record.capacity.memory_bytes, record.peer))
    able = able[: defaults.PLAN_MEMBERS]
    rates = believed([facts.rates(record, slower) for record in able])
    machines = tuple(
        Machine(record.peer, record.capacity.memory_bytes, each)
        for record, each in zip(able, rates, strict=True)
    )
    return NodesFile(Fleet(machines, links_between(able)), DEMAND)


def _served(members: list[MemberRecord], root: str) -> dict[PeerId, Span]:
    """Return the layers of a model that members serve now."""
    return {
        record.peer: (shard.start, shard.stop)
        for record in members
        for shard in record.shards
        if shard.root == root
    }


async def plan_from_file(host: Host, data: Path, ask: MakePlan, path: Path) -> PlanView:
    """Predict placements of a model on the machines that a file describes.

    The model is one of the library, the embedded one, or the path of a folder with a config.json.
    Raises BadNodes if the file is invalid, and ModelError if there is no such model.
    """
    try:
        text = await host.offload(partial(host.files.read, path, limit=FILE_BYTES + 1))
    except (OSError, HostError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadNodes(f"cannot read {path}: {reason}") from None
    nodes = await host.offload(read_nodes, text)
    described = await _described(host, data, ask.name)
    return await host.offload(lambda: plan_view(ask, described, nodes, {}))


class _Described(NamedTuple):
    """A model that is to be placed, and the dtype in which it is computed."""

    arch: Architecture
    dtype: DType


async def _described(host: Host, data: Path, name: str) -> _Described:
    """Describe a model for `plan_from_file`. Raises ModelError if there is no such model."""
    folder = Path(name)
    if await host.offload(host.files.size, folder / CONFIG) is not None:
        return await host.offload(_model_in, host, folder)
    try:
        return _model(await offline.manifest_of(host, data, name))
    except ModelError as error:
        # A data folder has the embedded model only after its daemon's first start.
        if error.code != "unknown-model" or name != defaults.EMBEDDED_MODEL:
            raise
        return await host.offload(_model_in, host, embedded_folder())


def _model(manifest: Manifest) -> _Described:
    return _Described(architecture(manifest.config), choose_dtype(manifest, "auto"))


def _model_in(host: Host, folder: Path) -> _Described:
    """Describe the model of a folder of which only the config.json is needed. Blocks."""
    arch = architecture(json_file(host.files, folder / CONFIG, CONFIG_LIMIT))
    size = weight_bytes(arch, Parts(True, 0, arch.layers, True), "float32")
    small = size < FLOAT32_PARAMETERS * DTYPE_BYTES["float32"]
    return _Described(arch, "float32" if small else "bfloat16")


def plan_view(
    ask: MakePlan, described: _Described, nodes: NodesFile, served: Mapping[PeerId, Span]
) -> PlanView:
    """Predict and describe placements. Blocks for seconds with dozens of machines.

    Raises BadNodes if the machine to add or to remove is invalid.
    """
    fleet, demand = nodes.fleet, _demand(ask, nodes.demand)
    arch, dtype = described
    newcomer = read_newcomer(ask.add, NEWCOMER) if ask.add is not None else None
    leaver = PeerId(ask.remove) if ask.remove is not None else None
    if leaver is not None and leaver not in {each.peer for each in fleet.machines}:
        raise BadNodes(f"`{leaver[:64]}` is not among the machines, so it cannot be removed")
    found = what_if(
        fleet, PlanModel.of(arch, dtype), demand, served, (newcomer, leaver), _looks(fleet)
    )

    def seen(outcome: Outcome | None) -> OutcomeView | None:
        return _outcome_view(outcome) if outcome is not None else None

    return PlanView(
        model=ask.name,
        layers=arch.layers,
        dtype=dtype,
        machines=len(fleet.machines),
        sessions=demand.sessions,
        prompt=demand.prompt,
        answer=demand.answer,
        best=_outcome_view(found.best),
        present=seen(found.present),
        added=seen(found.added),
        removed=seen(found.removed),
        smaller=tuple(_smaller(fleet, described, demand)),
    )


def _looks(fleet: Fleet) -> int:
    """Return how many placements are compared for one result."""
    least, most = defaults.PLAN_LOOKS
    return max(least, min(most, defaults.PLAN_WORK // max(1, len(fleet.machines))))


def _smaller(fleet: Fleet, described: _Described, demand: Demand) -> Iterator[PrecisionView]:
    """Yield the best placements in the precisions to which the model could be quantised."""
    arch, dtype = described
    for cost in smaller(arch, dtype):
        model = PlanModel.quantised(arch, dtype, cost.precision)
        found = _outcome_view(best_outcome(fleet, model, demand, _looks(fleet)))
        yield extended(PrecisionView, found, precision=cost.precision, loss=cost.loss)


def _demand(ask: MakePlan, told: Demand) -> Demand:
    """Return the demand that is asked for, or else the one that is described with the machines."""
    return Demand(
        ask.sessions or told.sessions, ask.prompt or told.prompt, ask.answer or told.answer
    )


def _outcome_view(outcome: Outcome) -> OutcomeView:
    return OutcomeView(
        tokens_per_s=outcome.tokens_per_s,
        single_per_s=outcome.single_per_s,
        first_token_s=outcome.first_token_s,
        stages=outcome.stages,
        sessions=outcome.sessions,
        nodes=tuple(map(_node_view, outcome.nodes)),
    )


def _node_view(node: PlannedNode) -> PlannedNodeView:
    start, stop = node.span
    return PlannedNodeView(
        node.peer, f"{start}:{stop}", node.needed, node.sessions, 1000 * node.step_s
    )
