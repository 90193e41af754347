"""Collects the evidence for serving a model: its owner's names, and the claims of trusted peers.

`tasks/placement/demand.py` decides with it whether to serve a model that the swarm asks for.
"""

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ...dht.content.library import Library
from ...state.group.facts import Role
from ...state.service import State
from ...tasks.jobs.errors import BadSpec
from ...tasks.jobs.prompt import root_of
from ...tasks.placement.demand import Backing
from ...transport.bytestream import PathKind
from ...transport.dial.endpoint import Endpoint
from ...transport.identity import PeerId
from ...transport.link.link import Link
from ...transport.networks import Nearness, nearness_of, network
from ...transport.strategies.dialer import Dialer
from .. import defaults
from ..swarm.remembering import Inviter

_NEAR: Final = (PathKind.LAN, PathKind.LOOPBACK)


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The parts of a node that have the evidence."""

    endpoint: Endpoint
    dialer: Dialer
    library: Library
    state: State
    inviter: Inviter


def backing_of(node: Witnesses) -> Backing:
    """Collect the current evidence."""
    links = {link.peer: link for link in node.endpoint.links()}
    return Backing(
        named=frozenset(node.library.names().values()),
        embedded=defaults.EMBEDDED_ROOT,
        trusted=_neighbours(node.dialer, links) | _group(node.state) | _inviter(node.inviter),
        networks={peer: met for peer, link in links.items() if (met := _met_at(link))},
        asked=_asked(node.state, links),
    )


def _inviter(inviter: Inviter) -> dict[PeerId, str]:
    return {} if inviter.peer is None else {inviter.peer: "which invited this node"}


def _group(state: State) -> dict[PeerId, str]:
    """Return the members of this node's private group that may serve."""
    upkeep = state.upkeep
    if upkeep is None:
        return {}
    members = (each for each in upkeep.group.order.members() if each.role is not Role.CLIENT)
    return {each.peer: "a member of this node's group" for each in members}


def _neighbours(dialer: Dialer, links: dict[PeerId, Link]) -> dict[PeerId, str]:
    """Return the peers on this node's own network that it dialled there or found by multicast. An
    incoming connection is no proof: a router or a container can make a stranger look local."""
    return {
        peer: "on the same network"
        for peer, link in links.items()
        if link.path_kind in _NEAR and (_was_dialled_near(link) or dialer.knowledge.found_at(peer))
    }


def _was_dialled_near(link: Link) -> bool:
    """Whether this node itself dialled a path on its own network. `Link` does not tell, because
    the peer may have added the path. A UDP path does not tell either: both sides begin it."""
    return any(
        path.dialled and path.medium == "tcp" and path.path_kind in _NEAR
        for path in link.status.paths
    )


def _met_at(link: Link) -> str:
    """Return the network of a peer, or "" if its address does not show one. A peer may appear at a
    relay's address or, through a router or container of this node, at a private address."""
    ip = link.address[0]
    return network(ip, *defaults.DEMAND_BITS) if nearness_of(ip) is Nearness.PUBLIC else ""


def _asked(state: State, links: dict[PeerId, Link]) -> dict[str, set[PeerId]]:
    """Return the models that linked peers have jobs for, from a few jobs of each peer."""
    jobs, found = state.views.jobs, dict[str, set[PeerId]]()
    for peer in links:
        for job in islice(jobs.waiting.get(peer, ()), defaults.DEMAND_JOBS):
            standing = jobs.get(job)
            if standing is not None and standing.job is not None:
                with suppress(BadSpec):
                    found.setdefault(root_of(standing.job.spec), set()).add(peer)
    return found
