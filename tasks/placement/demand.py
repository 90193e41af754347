"""Decides which model a node serves if its owner names none.

Any peer may name any model and create any number of members that name it. A model is therefore
served only if peers that the owner trusts name it, or if members that want it are linked to this
node from several networks. No I/O. Reasons: docs/adr/0025-what-a-stranger-may-ask.md.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from ...state.membership.record import MemberRecord, Rank, ShardRecord
from ...transport import naming
from ...transport.identity import PeerId
from ..costs.rates import LinkRates
from ..defaults import DEMAND_NETWORKS
from ..engine.interface import Parts
from .holes import Members, replicas
from .plan import has_chain

Slower = Callable[[PeerId, str, Parts, float], float]
"""Returns by what factor the stage of (peer, root of its model, shard) is slower than its member's
claim of some seconds for a token."""


def as_claimed(_peer: PeerId, _root: str, _parts: Parts, _token_s: float) -> float:
    """Return 1, the factor of stages that are as fast as they claim, for all members."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Backing:
    """Evidence for models that does not depend on what unknown members claim."""

    named: frozenset[str] = frozenset()
    """Roots that have a name on this node: its owner added or downloaded the model, or the node
    served it."""
    embedded: str = ""
    """Root of the model that every node has from its installation."""
    trusted: Mapping[PeerId, str] = field(default_factory=dict)
    """By peer whose demand the owner trusts: a phrase for its relation to this node."""
    networks: Mapping[PeerId, str] = field(default_factory=dict)
    """By linked peer: the network (address prefix) from which it is linked to this node."""
    asked: Mapping[str, Collection[PeerId]] = field(default_factory=dict)
    """By root: the peers that have jobs for this model."""
    links: Mapping[PeerId, LinkRates] = field(default_factory=dict)
    """By linked peer with a measured link: its rates."""
    slower: Slower = as_claimed
    """How much slower stages are than their members claim, as this node's gateway measured."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that members name, with the demand for it."""

    root: str
    name: str
    layers: int
    networks: int
    """Number of networks with members that want the model."""
    why: str
    """The reason to serve it, or "" if there is none."""


@dataclass(frozen=True, slots=True)
class ServingChoice:
    """The model to serve and the reason.

    If not `settled`, another model may still turn out to be needed.
    """

    root: str
    why: str
    settled: bool


def choose_model(members: Members, own: PeerId, backing: Backing) -> ServingChoice | None:
    """Return the model to serve, or None if there is no reason to serve any.

    Among the models with a reason, the one whose weakest layer has the fewest replicas comes first.
    Ties go to the model that is wanted in most networks, then to the lower root. Layers that
    members are about to serve count as replicas. The embedded model is considered only if there is
    no reason to serve another model, or if there is a reason to serve it and one of its layers has
    no replica.
    """
    found = candidates(members, own, backing)
    others = {peer: _as_aimed(record) for peer, record in members.items() if peer != own}
    wanted = [each for each in found if each.why and each.root != backing.embedded]
    if wanted:
        weakest = {
            each.root: min(replicas(others, each.root, each.layers)) for each in found if each.why
        }
        wanted += [each for each in found if each.why and not weakest[each.root]]
        best = min(
            wanted,
            key=lambda each: (
                weakest[each.root],
                each.root == backing.embedded,
                -each.networks,
                each.root,
            ),
        )
        return ServingChoice(best.root, best.why, True)
    if any(each.root == backing.embedded for each in found):
        return ServingChoice(backing.embedded, "every node ships with it", len(found) == 1)
    return None


def choose_other(
    members: Members, own: PeerId, root: str, backing: Backing, unfit: Collection[str] = ()
) -> ServingChoice | None:
    """Return a model that no chain of members serves yet, or None if there is none.

    For a node that would leave the model `root`: the other members must be able to serve that model
    without this node. If `root` is "", the node serves the model beside others and leaves none. If
    several nodes could act, only one does at a time: nodes with chunks of the other model come
    first, then those with the lower peer id. Models in `unfit` are skipped.
    """
    others = {peer: record for peer, record in members.items() if peer != own}
    found = [each for each in candidates(members, own, backing) if each.root not in unfit]
    here = next((each for each in found if each.root == root), None)
    for each in sorted(found, key=lambda each: (-each.networks, each.root)):
        if (here is None and root) or each.root == root or not each.why:
            continue

        def goes_first(peer: PeerId, other: str = each.root) -> tuple[bool, PeerId]:
            return other not in members[peer].stored, peer

        later = {peer for peer in others if goes_first(peer) > goes_first(own)}
        gone = {peer: record for peer, record in others.items() if peer not in later}
        may_go = here is None or _is_served(others, root, here.layers, staying=later)
        if may_go and not _is_served(others, each.root, each.layers, coming=gone):
            return ServingChoice(each.root, each.why, True)
    return None


def is_spare(members: Members, own: PeerId, root: str, layers: int) -> bool:
    """Return whether the other members serve a model without this node.

    Only members with a lower peer id count, so that not all replicas are given up at once.
    """
    others = {peer: record for peer, record in members.items() if peer < own}
    return _is_served(others, root, layers)


def _is_served(
    others: Members,
    root: str,
    layers: int,
    *,
    staying: Collection[PeerId] = (),
    coming: Collection[PeerId] = (),
) -> bool:
    """Return whether a chain of the other members serves a model, or will serve it.

    The current layers of a member that claims layers of another model count only if the member is
    in `staying`. The claimed layers of this model count only if the member is in `coming`.
    """
    spans = []
    for peer, record in others.items():
        aim = record.aim_at(root)
        if aim is None:
            leaving = any(other.rank > Rank.CLAIMS or peer not in staying for other in record.aims)
            shards = [] if leaving else [each for each in record.shards if each.root == root]
            spans += [(shard.start, shard.stop) for shard in shards]
        elif aim.rank > Rank.CLAIMS or peer in coming:
            spans.append((aim.start, aim.stop))
    return has_chain(layers, spans)


def _as_aimed(record: MemberRecord) -> MemberRecord:
    """Return the record as if the member already served the layers that it claims."""
    served = {shard.root for shard in record.shards}
    coming = (
        ShardRecord(aim.root, aim.start == 0, aim.start, aim.stop, True, "", 0)
        for aim in record.aims
        if aim.start < aim.stop and aim.root not in served
    )
    return replace(record, shards=(*record.shards, *coming))


def candidates(members: Members, own: PeerId, backing: Backing) -> list[NamedModel]:
    """Return all models that members name, in order of their roots."""
    standing = {root: set(peers) for root, peers in backing.asked.items()}
    said: dict[str, dict[_Words, Set[str]]] = {}
    for peer, record in members.items():
        trusted = "" if peer == own or peer in backing.trusted else None
        network = trusted if trusted is not None else backing.networks.get(peer)
        networks = _NONE if network is None else frozenset((network,))
        for model in record.models:
            if model.layers:
                words = said.setdefault(model.root, {})
                described = model.layers, model.name
                words[described] = words.get(described, _NONE) | networks
        if network is not None:  # other members may be many, and do not count
            for root in _stood_for(record):
                standing.setdefault(root, set()).add(peer)
    return [
        _candidate(root, said[root], standing.get(root, _NONE) - {own}, backing)
        for root in sorted(said)
    ]


_NONE: Set[Any] = frozenset()


_Words = tuple[int, str]
"""(number of layers, name) of a model, as a member states them."""


def _candidate(
    root: str, said: Mapping[_Words, Set[str]], standing: Set[PeerId], backing: Backing
) -> NamedModel:
    """Create a candidate from the descriptions that members state for this root.

    `said` maps each description to the networks of the members that state it, where "" stands for
    this node and all trusted peers. `standing` are the peers that name, serve or ask for the model.
    """
    if len(said) == 1:  # the usual case, and strangers can name thousands of models
        ((layers, name),) = said
    else:
        layers, name = min(
            said, key=lambda words: ("" not in said[words], -len(said[words]), words)
        )
    networks = {backing.networks[peer] for peer in standing if peer in backing.networks}
    trusted = min((peer for peer in standing if peer in backing.trusted), default=None)
    why = ""
    if root in backing.named:
        why = "it has a name on this node"
    elif trusted is not None:
        why = f"{trusted}, {backing.trusted[trusted]}, names or serves it"
    elif len(networks) >= DEMAND_NETWORKS:
        why = f"members in {len(networks)} networks name, serve or ask for it"
    return NamedModel(root, name, layers, len(networks), why)


def waiting_sentence(members: Members, own: PeerId, backing: Backing) -> str:
    """Return a sentence that says why no model is served and what would change that."""
    found = [each for each in candidates(members, own, backing) if not each.why]
    if not found:
        return "no model is known yet; `shoal model add FOLDER` adds one"
    best = min(found, key=lambda each: (-each.networks, each.root))
    name = naming.shown(best.name)
    return (
        f"`{name}` is wanted in {best.networks} of the {DEMAND_NETWORKS} networks that it "
        f"takes to serve a model unasked; `shoal node --model {name}` serves it"
    )


def _stood_for(record: MemberRecord) -> Iterator[str]:
    """Yield the roots that a member names or serves."""
    yield from (model.root for model in record.models)
    yield from (shard.root for shard in record.shards)
