"""Offers of shared models, and the meaning of a name that a user typed. No I/O.

A model with a root always takes precedence under its name. `NAME@PEER` selects the model that one
member shares; PEER is its id or the beginning of it.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ...state.membership.record import MemberRecord, SharedModel
from ...transport import naming, shortid
from ...transport.identity import PeerId
from ...transport.shortid import BadId
from .errors import ShareError

Members = Mapping[PeerId, MemberRecord]
WORD: Final = "no root: its owner's word"
_HINT: Final = "`shoal model list` shows its sharers"


@dataclass(frozen=True, slots=True)
class SharedOffer:
    """A model that a member shares."""

    peer: PeerId
    model: SharedModel


@dataclass(frozen=True, slots=True)
class SharedName:
    """Parsed text of a user: a name, and the beginning of a peer's id, or ""."""

    name: str
    peer: str


def read_name(text: str) -> SharedName:
    """Parse `NAME` or `NAME@PEER`. The part after `@` is a peer only if it begins like one, because
    `NAME@HASH` names a root."""
    name, at, rest = naming.normal(text).rpartition("@")
    if at and rest.startswith(shortid.COMMON):
        return SharedName(name, rest)
    return SharedName(naming.normal(text), "")


def offers(members: Members) -> list[SharedOffer]:
    """Return all models that members share, sorted by name and peer."""
    found = [SharedOffer(peer, model) for peer in sorted(members) for model in members[peer].shared]
    found.sort(key=lambda offer: offer.model.name)  # keeps the order of the peers
    return found


def offers_of(members: Members, asked: SharedName) -> list[SharedOffer]:
    """Return the offers that a name means. Raises ShareError if it names a peer that does not share
    such a model, or not only one."""
    found = [
        SharedOffer(peer, model)
        for peer, record in members.items()
        for model in record.shared
        if model.name == asked.name
    ]
    found.sort(key=lambda offer: offer.peer)
    if not asked.peer:
        return found
    try:
        peer = shortid.meant(asked.peer, {each.peer for each in found}, "peer", hint=_HINT)
    except BadId as error:
        code = "ambiguous-model" if error.code.startswith("ambiguous") else "unknown-model"
        what = f"no shared model `{naming.spelled(asked.name)}` is meant: {error.message}"
        raise ShareError(code, what, hint=_HINT) from None
    return [offer for offer in found if offer.peer == peer]


def called(members: Members, rooted: Set[str]) -> list[tuple[str, SharedOffer]]:
    """Return all offers, each with the name by which a user asks for it.

    This is NAME, or NAME@PEER if a model with a root has the same name. `rooted` has the names of
    those models. The time grows linearly with the offers, because members may share many models.
    """
    found = []
    for name, each in groupby(offers(members), key=lambda offer: offer.model.name):
        same = list(each)
        pins = _pins(same) if name in rooted else {}
        found += [(pins.get(offer.peer, name), offer) for offer in same]
    return found


def _pins(same: Sequence[SharedOffer]) -> dict[PeerId, str]:
    """Return by peer the shortest name that means its offer only. The offers have one name, and are
    in the order of their peers: only neighbours have the longest common beginning."""
    peers = list(dict.fromkeys(offer.peer for offer in same))
    name = same[0].model.name
    return {
        peer: f"{name}@{shortid.short(peer, peers[max(0, at - 1) : at + 2])}"
        for at, peer in enumerate(peers)
    }


def pinned(offer: SharedOffer, among: Iterable[SharedOffer]) -> str:
    """Return the name that means this offer only: `NAME@PEER`, as short as `among` allows."""
    peers = {each.peer for each in among if each.model.name == offer.model.name}
    return f"{offer.model.name}@{shortid.short(offer.peer, peers)}"
