"""Chooses which parts of the swarm's state this node stores: all or, on a small machine, only what
it needs.

A small node stores the feeds about shards of the models that it has or serves. If it chooses for
itself what to serve, it stores the feeds about shards of all models. If it works on jobs, it also
stores the feeds about jobs. An owner of a private group stores everything. Every node stores the
members and the names of models.
"""

from collections.abc import Iterable, Iterator

from ...state.directory import Directory
from ...state.feeds.digest import Plot
from ...state.feeds.kinds import KINDS, all_parts, part_of_root
from ...state.group.facts import Role
from ...state.replication.interest import WORK
from ...state.service import State
from ...transport.host.seam import Host
from .. import defaults
from ..settings.config import NodeConfig
from .base import Base

SHARDS = "shards"  # the kind of feed that says which layers a node serves


def keeps_all(host: Host, config: NodeConfig) -> bool:
    """Return whether this node stores all state.

    The owner decides. With `auto`, the node does so if its memory and disk have space for the state
    of a swarm of more than 10,000 nodes.
    """
    if config.state != "auto":
        return config.state == "all"
    return (
        host.machine().memory_total >= defaults.STATE_MEMORY
        and host.files.free_space(config.data) >= defaults.STATE_DISK
    )


def needed(roots: Iterable[str], *, chooses: bool, works: bool) -> Iterator[Plot]:
    """Yield (kind of feed, part of that kind) for each part of the state that a node needs.

    `roots` are the models that it has or serves. `chooses` says whether it chooses for itself what
    to serve, and `works` whether it works on jobs of other nodes.
    """
    if works:
        yield from sorted(WORK)
    parts = KINDS[SHARDS].parts if chooses else {part_of_root(root) for root in roots}
    for part in sorted(parts):
        yield SHARDS, part


class StateInterest:
    """Updates which parts of the state one node stores, as its needs change.

    They change with the models in the library, the shards that are served, and the role in a group.
    """

    def __init__(self, base: Base, directory: Directory, state: State) -> None:
        self._library = base.library
        self._directory = directory
        self._state = state
        self._chooses = base.engine is not None and base.config.model is None
        self._works = base.works
        base.library.on_change.append(self.look)

    def needed(self) -> list[Plot]:
        """Return (kind of feed, part of that kind) for each part of the state that this node needs
        now."""
        upkeep = self._state.upkeep
        if upkeep is not None and upkeep.group.role is Role.OWNER:
            return list(all_parts())  # a revocation names the last valid entry of each feed
        own = self._directory.own()
        roots = {*self._library.roots(), *(shard.root for shard in own.shards)}
        return list(needed(roots, chooses=self._chooses, works=self._works))

    def look(self) -> bool:
        """Update which parts of the state this node stores. Return whether that has changed."""
        before = self._state.interest.stored
        self._state.need(self.needed())
        return self._state.interest.stored != before

    async def run(self) -> None:
        """Repeat `look` whenever this node publishes something else about itself, which may be
        other shards, until cancelled."""
        while True:
            self.look()
            await self._directory.own_changed()
