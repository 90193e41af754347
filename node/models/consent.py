"""Collects evidence that a model is wanted, beyond the claims of unknown members: the owner's own
names, and what trusted peers need.

`tasks/placement/demand.py` decides from the evidence whether to serve a model that the swarm asks
for.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ...dht.content.library import Library
from ...state.group.facts import Role
from ...state.service import State
from ...tasks.costs.links import link_rates
from ...tasks.costs.rates import LinkRates
from ...tasks.jobs.errors import BadSpec
from ...tasks.jobs.spec import root_of
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
    """The parts of a node from which the evidence is collected."""

    endpoint: Endpoint
    dialer: Dialer
    library: Library
    state: State
    inviter: Inviter


def backing_of(node: Witnesses) -> Backing:
    """Collect the current evidence for all models."""
    links = {link.peer: link for link in node.endpoint.links()}
    return Backing(
        named=frozenset(node.library.names().values()),
        embedded=defaults.EMBEDDED_ROOT,
        trusted=_neighbours(node.dialer, links) | _group(node.state) | _inviter(node.inviter),
        networks={peer: met for peer, link in links.items() if (met := _met_at(link))},
        asked=_asked(node.state, links),
        links=_measured(links.values()),
    )


def _measured(links: Iterable[Link]) -> dict[PeerId, LinkRates]:
    """Return the rates of the links whose round trip was measured."""
    seen = ((link.peer, link.status) for link in links)
    return {peer: link_rates(status) for peer, status in seen if status.rtt is not None}


def _inviter(inviter: Inviter) -> dict[PeerId, str]:
    """Return the peer whose invitation this node used, with the reason to trust it."""
    return {} if inviter.peer is None else {inviter.peer: "which invited this node"}


def _group(state: State) -> dict[PeerId, str]:
    """Return the members of this node's private group except clients, each with the reason to trust
    it. Returns none if the node has no group."""
    upkeep = state.upkeep
    if upkeep is None:
        return {}
    members = (each for each in upkeep.group.order.members() if each.role is not Role.CLIENT)
    return {each.peer: "a member of this node's group" for each in members}


def _neighbours(dialer: Dialer, links: dict[PeerId, Link]) -> dict[PeerId, str]:
    """Return the linked peers on this node's own network, each with the reason to trust it.

    Only peers that this node dialled there or found by multicast count. An incoming connection is
    no proof: a router or container can make a distant peer look local.
    """
    return {
        peer: "on the same network"
        for peer, link in links.items()
        if link.path_kind in _NEAR and (_was_dialled_near(link) or dialer.knowledge.found_at(peer))
    }


def _was_dialled_near(link: Link) -> bool:
    """Return whether this node itself dialled one of the link's paths on its own network.

    The path kind of the link is no proof, because the peer may have added the path. A UDP path is
    no proof either, because both sides begin it.
    """
    return any(
        path.dialled and path.medium == "tcp" and path.path_kind in _NEAR
        for path in link.status.paths
    )


def _met_at(link: Link) -> str:
    """Return the network of a peer's address. Returns "" if the address is not public, because it
    then says nothing about the peer's network.

    A peer may appear at the address of a relay or, behind a router or container of this node, at a
    private one.
    """
    ip = link.address[0]
    return network(ip, *defaults.DEMAND_BITS) if nearness_of(ip) is Nearness.PUBLIC else ""


def _asked(state: State, links: dict[PeerId, Link]) -> dict[str, set[PeerId]]:
    """Return, for each model, the linked peers that have submitted jobs for it. At most DEMAND_JOBS
    jobs of each peer are examined."""
    jobs, found = state.views.jobs, dict[str, set[PeerId]]()
    for peer in links:
        for job in islice(jobs.waiting.get(peer, ()), defaults.DEMAND_JOBS):
            standing = jobs.get(job)
            if standing is not None and standing.job is not None:
                with suppress(BadSpec):
                    found.setdefault(root_of(standing.job.spec), set()).add(peer)
    return found
