"""Chooses which of the swarm's state this node stores: all, or, on a small machine, what it needs.

A small node stores the feeds of the models that it has or serves, or of all models if it chooses
for itself what to serve; and those of jobs, if it runs them. An owner of a private group stores
everything. Every node stores the members and the names of models.
"""

from collections.abc import Iterable, Iterator

import trio

from ...dht.content.library import Library
from ...state.directory import Directory
from ...state.feeds.digest import Plot
from ...state.feeds.kinds import KINDS, all_parts, part_of_root
from ...state.group.facts import Role
from ...state.replication.interest import WORK
from ...state.service import State
from ...transport.host.seam import Host
from .. import defaults
from ..settings.config import NodeConfig

SHARDS = "shards"


def keeps_all(host: Host, config: NodeConfig) -> bool:
    """Whether to store all state. The owner decides; with `auto`, memory and disk must have space
    for the state of a swarm of 10,000 nodes and more."""
    if config.state != "auto":
        return config.state == "all"
    return (
        host.machine().memory_total >= defaults.STATE_MEMORY
        and host.files.free_space(config.data) >= defaults.STATE_DISK
    )


def needed(roots: Iterable[str], *, chooses: bool, works: bool) -> Iterator[Plot]:
    """Yield the kinds and parts of state that a node needs. `roots`: models that it has or serves;
    `chooses`: it chooses for itself what to serve; `works`: it runs other nodes' jobs."""
    if works:
        yield from WORK
    parts = KINDS[SHARDS].parts if chooses else {part_of_root(root) for root in roots}
    for part in parts:
        yield SHARDS, part


class Keeping:
    """Keeps the interest of one node's state in line with what the node needs.

    `chooses`: the node chooses for itself what to serve; `works`: it runs other nodes' jobs.
    """

    def __init__(
        self, library: Library, directory: Directory, state: State, *, chooses: bool, works: bool
    ) -> None:
        self._library = library
        self._directory = directory
        self._state = state
        self.chooses = chooses
        self.works = works

    def needed(self) -> list[Plot]:
        """Return the kinds and parts that this node needs now."""
        upkeep = self._state.upkeep
        if upkeep is not None and upkeep.group.role is Role.OWNER:
            return list(all_parts())  # a revocation names where each feed ends
        own = self._directory.own()
        roots = {*self._library.roots(), *(shard.root for shard in own.shards)}
        return list(needed(roots, chooses=self.chooses, works=self.works))

    def look(self) -> bool:
        """Update the interest; return whether it has changed."""
        before = self._state.interest.kept
        self._state.need(self.needed())
        return self._state.interest.kept != before

    async def run(self) -> None:
        """Update the interest every NEEDED_LOOK seconds, until cancelled."""
        while True:
            self.look()
            await trio.sleep(defaults.NEEDED_LOOK)
