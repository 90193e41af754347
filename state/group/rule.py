"""The rule of a group: who is a member, in which role, and whose feeds end where.

A pure function of what `group` feeds say. One pass, from the founder down: owners by how many
grants they are away from the founder, then by public key; behind them operators, behind these
clients, each by public key, which is the order of peer ids: to decode those that a few operators
can write takes a second. This order is their seniority. Whoever is looked at has been decided on
by all who stand before, and nobody behind counts against it: so two owners who revoke each other
need no clock. Spec: docs/spec/group.md, The rule.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from ...transport.identity import PeerId, public_key_of
from .. import defaults
from ..digest import Plot
from ..entry import Head
from .facts import Grant, Revocation, Role, Said


@dataclass(frozen=True, slots=True)
class Standing:
    """A peer's place in the group."""

    peer: PeerId
    role: Role
    by: PeerId  # who granted it; the founder itself for the founder
    since: int  # ms, by that one's wall clock
    box: bytes  # b"": the founder's, before it is known


@dataclass(frozen=True, slots=True)
class Order:
    """A group as its feeds have it."""

    standings: Mapping[PeerId, Standing] = field(default_factory=dict)
    """All who were granted a role, most senior first, the revoked among them."""
    revoked: Mapping[PeerId, tuple[PeerId, Revocation]] = field(default_factory=dict)
    """Who is out, by whom, and where its feeds end; who was never granted anything as well."""

    def role(self, peer: PeerId) -> Role | None:
        """The role of a member; None for whoever is none."""
        standing = self.standings.get(peer)
        return None if standing is None or peer in self.revoked else standing.role

    def knows(self, peer: PeerId) -> bool:
        """Whether anything was decided about a peer, for it or against it."""
        return peer in self.standings or peer in self.revoked

    def members(self) -> Iterator[Standing]:
        """Those who are in, most senior first."""
        return (each for each in self.standings.values() if each.peer not in self.revoked)

    def speakers(self) -> Iterator[PeerId]:
        """Those whose `group` feeds count, the revoked among them: all but the clients."""
        return (each.peer for each in self.standings.values() if each.role > Role.CLIENT)

    def ends(self) -> dict[bytes, Mapping[Plot, Head]]:
        """Where the feeds of the revoked end, by public key; what is not named ends at once."""
        return {public_key_of(peer): found.ends for peer, (_, found) in self.revoked.items()}


def decide(founder: PeerId, said: Mapping[PeerId, Said]) -> Order:
    """The group of a founder by what each author says; of the revoked, up to where it ends."""
    return _Pass(founder, said).order()


class _Pass:
    def __init__(self, founder: PeerId, said: Mapping[PeerId, Said]) -> None:
        self._said = said
        about = self._of(founder).about
        box = b"" if about is None else about.box
        self._standings = {founder: Standing(founder, Role.OWNER, founder, 0, box)}
        self._revoked: dict[PeerId, tuple[PeerId, Revocation]] = {}

    def order(self) -> Order:
        level = [*self._standings]
        owners = list(level)
        while level:
            level = self._owners_after(level, set(owners), defaults.GROUP_OWNERS - len(owners))
            owners += level
        operators = self._add(owners, Role.OPERATOR)
        self._add([*owners, *operators], Role.CLIENT)
        return Order(self._standings, self._revoked)

    def _of(self, peer: PeerId) -> Said:
        return self._said.get(peer) or _NOTHING

    def _owners_after(self, level: list[PeerId], placed: set[PeerId], most: int) -> list[PeerId]:
        """The owners that these grant; what these revoke counts from now on."""
        done = placed.difference(level)
        found: dict[PeerId, Standing] = {}
        for peer in level:
            done.add(peer)  # from here on nobody stands before it that is not in here
            for other, revocation in self._of(peer).revoked.items():
                if other not in done:
                    self._revoked.setdefault(other, (peer, revocation))
            for other, grant in self._of(peer).grants.items():
                if grant.role is Role.OWNER and other not in placed:
                    found.setdefault(other, _standing(other, peer, grant))
        some = sorted(found)[: max(most, 0)]
        self._standings |= {peer: found[peer] for peer in some}
        return some

    def _add(self, granters: Iterable[PeerId], role: Role) -> list[PeerId]:
        """Those to whom these grant a role, and nobody a higher one."""
        found: dict[PeerId, Standing] = {}
        for peer in granters:
            for other, grant in self._granted(peer, role):
                if other not in self._standings:
                    found.setdefault(other, _standing(other, peer, grant))
        some = sorted(found)[: defaults.GROUP_MEMBERS - len(self._standings)]
        self._standings |= {peer: found[peer] for peer in some}
        return some

    def _granted(self, peer: PeerId, role: Role) -> Iterable[tuple[PeerId, Grant]]:
        """An operator lets in so many clients at most, whatever its feed says."""
        grants = self._of(peer).grants
        found = ((other, grant) for other, grant in grants.items() if grant.role is role)
        if self._standings[peer].role is Role.OWNER:
            return found
        return sorted(found, key=itemgetter(0))[: defaults.OPERATOR_CLIENTS]


_NOTHING = Said()


def _standing(peer: PeerId, by: PeerId, grant: Grant) -> Standing:
    return Standing(peer, grant.role, by, grant.since, grant.box)
