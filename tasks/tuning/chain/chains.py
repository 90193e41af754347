"""The chains of this node's trainers, and how they find their stages."""

from collections.abc import Collection, Sequence

from ....state.directory import Directory
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...engine.families import Architecture
from ...inference.courier import Courier
from ...inference.generation import Apart
from ...inference.shards import Preference, find_route
from ...routing.paths import Hop
from ..stage.stage import TuningStage
from .network import NetworkChain
from .stages import StageCalls


class TuningChains:
    """Maker of chains for the trainers of one node."""

    def __init__(
        self, host: Host, courier: Courier, directory: Directory, stage: TuningStage
    ) -> None:
        """`stage` is this node's own."""
        self._host = host
        self._courier = courier
        self._directory = directory
        self._calls = StageCalls(courier, stage)

    def chain(
        self,
        root: str,
        arch: Architecture,
        apart: Apart | None = None,
        *,
        job: str = "",
        reads: bool = False,
    ) -> NetworkChain:
        """Return a new chain for a model. It opens its stages at its first call. `job` is the job
        that it is for, whose author then pays for it, or "". `reads`: it only computes losses."""
        routes = self if apart is None else _Others(self, apart)
        return NetworkChain(self._host, self._calls, routes, root, arch, job, reads=reads)

    async def find(
        self,
        root: str,
        layers: int,
        avoid: Collection[PeerId],
        without: Collection[PeerId] = (),
    ) -> Sequence[Hop]:
        """Return a chain that covers a model, if possible without the peers in `avoid`, and never
        with those in `without`.

        Raises NoRoute.
        """
        members = {
            peer: record
            for peer, record in self._directory.members().items()
            if not self._courier.is_quiet(peer) and peer not in without
        }
        own, name = self._courier.peer, self._host.entropy(16)
        prefer = Preference(own, name, frozenset(avoid))
        found = find_route(members, root, layers, 0, prefer)
        for hop in found:
            await self._courier.meet(hop.peer)
        return found


class _Others:
    """Chains without some peers."""

    def __init__(self, chains: TuningChains, apart: Apart) -> None:
        self._chains, self._apart = chains, apart

    async def find(self, root: str, layers: int, avoid: Collection[PeerId]) -> Sequence[Hop]:
        found = await self._chains.find(root, layers, avoid, self._apart.without)
        self._apart.used.update(hop.peer for hop in found)
        return found
