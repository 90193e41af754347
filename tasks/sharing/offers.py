"""Offers of shared models, and the meaning of a name that a user typed. No I/O.

A model with a root always takes precedence under its name. `NAME@PEER` selects the model that one
member shares; PEER is its id or the beginning of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
class Offer:
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


def offers(members: Members) -> list[Offer]:
    """Return all models that members share, sorted by name and peer."""
    found = (Offer(peer, model) for peer, record in members.items() for model in record.shared)
    return sorted(found, key=lambda offer: (offer.model.name, offer.peer))


def offers_of(members: Members, asked: SharedName) -> list[Offer]:
    """Return the offers that a name means. Raises ShareError if it names a peer that does not share
    such a model, or not only one."""
    found = [offer for offer in offers(members) if offer.model.name == asked.name]
    if not asked.peer:
        return found
    try:
        peer = shortid.meant(asked.peer, {each.peer for each in found}, "peer", hint=_HINT)
    except BadId as error:
        code = "ambiguous-model" if error.code.startswith("ambiguous") else "unknown-model"
        what = f"no shared model `{naming.spelled(asked.name)}` is meant: {error.message}"
        raise ShareError(code, what, hint=_HINT) from None
    return [offer for offer in found if offer.peer == peer]


def pinned(offer: Offer, among: Iterable[Offer]) -> str:
    """Return the name that means this offer only: `NAME@PEER`, as short as `among` allows."""
    peers = {each.peer for each in among if each.model.name == offer.model.name}
    return f"{offer.model.name}@{shortid.short(offer.peer, peers)}"
