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
        operators = self._add(owners, Role.OPERATOR, self._room)
        self._add([*owners, *operators], Role.CLIENT, self._room)
        return Order(self._standings, self._revoked)

    @property
    def _room(self) -> int:
        return defaults.GROUP_MEMBERS - len(self._standings)

    def _of(self, peer: PeerId) -> Said:
        return self._said.get(peer) or _NOTHING

    def _owners_after(self, level: list[PeerId], placed: set[PeerId], most: int) -> list[PeerId]:
        """The owners that these grant; what these revoke counts from now on."""
        done = placed.difference(level)
        for peer in level:
            done.add(peer)  # from here on nobody stands before it that is not in here
            for other, revocation in self._of(peer).revoked.items():
                if other not in done:
                    self._revoked.setdefault(other, (peer, revocation))
        return self._add(level, Role.OWNER, most)

    def _add(self, granters: Iterable[PeerId], role: Role, most: int) -> list[PeerId]:
        """Those to whom these grant a role, and nobody a higher one; so many at most. The places
        go to those first whom the most senior let in, and to those whom the revoked let in last:
        an owner that fills the group with made-up keys keeps nobody out once it is revoked."""
        found: dict[PeerId, Standing] = {}
        for peer in sorted(granters, key=self._revoked.__contains__):
            if (left := most - len(found)) <= 0:
                break  # nor is looked at what thousands of others grant
            granted = self._granted(peer, role)
            new = [each for each in granted if each not in self._standings and each not in found]
            for other in sorted(new)[:left]:
                found[other] = _standing(other, peer, granted[other])
        self._standings |= {peer: found[peer] for peer in sorted(found)}
        return sorted(found)

    def _granted(self, peer: PeerId, role: Role) -> Mapping[PeerId, Grant]:
        """An operator lets in so many clients at most, whatever its feed says."""
        grants = self._of(peer).grants
        found = {other: grant for other, grant in grants.items() if grant.role is role}
        if self._standings[peer].role is Role.OWNER:
            return found
        return {other: found[other] for other in sorted(found)[: defaults.OPERATOR_CLIENTS]}


_NOTHING = Said()


def _standing(peer: PeerId, by: PeerId, grant: Grant) -> Standing:
    return Standing(peer, grant.role, by, grant.since, grant.box)
