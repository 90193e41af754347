"""What this node keeps of the swarm's state: all of it, or, on a small machine, what it uses.

What others say of the models that it has or serves, and where it is to choose for itself what to
serve, of all models; and of jobs, where it does them. An owner of a private group keeps all. Who
is in the swarm and what models are called is always kept.
"""

from collections.abc import Iterable, Iterator

import trio

from ..dht.library import Library
from ..state.digest import Plot
from ..state.directory import Directory
from ..state.group.facts import Role
from ..state.interest import WORK
from ..state.kinds import KINDS, all_parts, part_of_root
from ..state.service import State
from ..transport.host import Host
from . import defaults
from .config import NodeConfig

SHARDS = "shards"


def keeps_all(host: Host, config: NodeConfig) -> bool:
    """Whether all is kept: as the owner says, else where memory and disk have room for the state of
    a swarm of 10,000 and more."""
    if config.state != "auto":
        return config.state == "all"
    return (
        host.machine().memory_total >= defaults.STATE_MEMORY
        and host.files.free_space(config.data) >= defaults.STATE_DISK
    )


def needed(roots: Iterable[str], *, chooses: bool, works: bool) -> Iterator[Plot]:
    """The kinds and parts that a node has use for. `roots`: of the models that it has or serves;
    `chooses`: it is to find out for itself what to serve; `works`: it does others' jobs."""
    if works:
        yield from WORK
    parts = KINDS[SHARDS].parts if chooses else {part_of_root(root) for root in roots}
    for part in parts:
        yield SHARDS, part


class Keeping:
    """Of one node."""

    def __init__(self, library: Library, directory: Directory, state: State) -> None:
        self._library = library
        self._directory = directory
        self._state = state
        self.chooses = False
        """Whether it is to find out for itself what to serve."""
        self.works = False
        """Whether it does others' jobs."""

    def needed(self) -> list[Plot]:
        """What it has use for now."""
        upkeep = self._state.upkeep
        if upkeep is not None and upkeep.group.role is Role.OWNER:
            return list(all_parts())  # to name in a revocation where each feed ends
        own = self._directory.own()
        roots = {*self._library.roots(), *(shard.root for shard in own.shards)}
        return list(needed(roots, chooses=self.chooses, works=self.works))

    def look(self) -> bool:
        """Let the state know; whether there is more to fetch than before."""
        before = self._state.interest.kept
        self._state.need(self.needed())
        return self._state.interest.kept != before

    async def run(self) -> None:
        """Let the state know, until cancelled."""
        while True:
            self.look()
            await trio.sleep(defaults.NEEDED_LOOK)
