"""The rule of a group, which decides the members, their roles, and where revoked feeds end.

The rule is a pure function of the facts in `group` feeds. It visits each member once, in order of
seniority from the founder down: owners by the number of grants between them and the founder, and
then by public key; then operators; then clients, each by public key. Peer ids sort like public
keys, so the ids are not decoded, which could take a second.

When a member is visited, all its seniors have decided about it, and no junior can decide against
it. Therefore no clock is needed if two owners revoke each other. Spec: docs/spec/group.md, The
rule.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...transport.identity import PeerId, public_key_of
from .. import defaults
from ..feeds.digest import Plot
from ..feeds.entry import Head
from .facts import Grant, GroupFacts, Revocation, Role


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """The position of a peer in the group: its role, and which member granted it."""

    peer: PeerId
    role: Role
    by: PeerId  # the member that granted it; the founder itself for the founder
    since: int  # ms, by the granter's wall clock
    box: bytes  # b"" for the founder until its box is known


@dataclass(frozen=True, slots=True)
class Order:
    """The members of a group, as the facts in its feeds define them."""

    standings: Mapping[PeerId, GroupStanding] = field(default_factory=dict)
    """All peers that were granted a role, most senior first. Revoked peers are included."""
    revoked: Mapping[PeerId, tuple[PeerId, Revocation]] = field(default_factory=dict)
    """Revoked peers, each with its revoker and the revocation. A peer may be revoked even if it
    never had a role."""

    def role(self, peer: PeerId) -> Role | None:
        """Return the role of a member, or None if the peer is not a member."""
        standing = self.standings.get(peer)
        return None if standing is None or peer in self.revoked else standing.role

    def knows(self, peer: PeerId) -> bool:
        """Return whether the peer was ever granted a role or revoked."""
        return peer in self.standings or peer in self.revoked

    def members(self) -> Iterator[GroupStanding]:
        """Return the current members, most senior first."""
        return (each for each in self.standings.values() if each.peer not in self.revoked)

    def speakers(self) -> Iterator[PeerId]:
        """Yield the peers whose `group` feeds count: owners and operators, including revoked
        ones."""
        return (each.peer for each in self.standings.values() if each.role > Role.CLIENT)

    def ends(self) -> dict[bytes, Mapping[Plot, Head]]:
        """Return the last valid entries of revoked peers' feeds, by public key.

        If a feed of such a peer is not listed, none of its entries is valid.
        """
        return {public_key_of(peer): found.ends for peer, (_, found) in self.revoked.items()}


def decide(founder: PeerId, said: Mapping[PeerId, GroupFacts]) -> Order:
    """Apply the rule: return the group of a founder, given the facts in each author's `group` feed.

    The facts of a revoked author must be those up to the end of its feed that its revocation sets.
    """
    return _Pass(founder, said).order()


class _Pass:
    def __init__(self, founder: PeerId, said: Mapping[PeerId, GroupFacts]) -> None:
        self._said = said
        about = self._of(founder).about
        box = b"" if about is None else about.box
        self._standings = {founder: GroupStanding(founder, Role.OWNER, founder, 0, box)}
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

    def _of(self, peer: PeerId) -> GroupFacts:
        return self._said.get(peer) or _NOTHING

    def _owners_after(self, level: list[PeerId], placed: set[PeerId], most: int) -> list[PeerId]:
        """Apply the revocations made by the owners in `level`, and return the new owners.

        `placed` are all owners so far. At most `most` new owners are returned.
        """
        done = placed.difference(level)
        for peer in level:
            done.add(peer)  # `done` has all its seniors now
            for other, revocation in self._of(peer).revoked.items():
                if other not in done:
                    self._revoked.setdefault(other, (peer, revocation))
        return self._add(level, Role.OWNER, most)

    def _add(self, granters: Iterable[PeerId], role: Role, most: int) -> list[PeerId]:
        """Give `role` to the peers to which `granters` grant it, and return these peers.

        Peers that have a role already are left out. At most `most` peers get the role: grants of
        senior members come first, and grants of revoked members last. Therefore an owner that fills
        the group with made-up keys no longer keeps other peers out once it is revoked.
        """
        found: dict[PeerId, GroupStanding] = {}
        for peer in sorted(granters, key=self._revoked.__contains__):
            if (left := most - len(found)) <= 0:
                break  # do not read thousands of further grants
            granted = self._granted(peer, role)
            new = [each for each in granted if each not in self._standings and each not in found]
            for other in sorted(new)[:left]:
                found[other] = _standing(other, peer, granted[other])
        self._standings |= {peer: found[peer] for peer in sorted(found)}
        return sorted(found)

    def _granted(self, peer: PeerId, role: Role) -> Mapping[PeerId, Grant]:
        """Return the grants of this role that a member has made.

        Of an operator's grants, at most OPERATOR_CLIENTS count.
        """
        grants = self._of(peer).grants
        found = {other: grant for other, grant in grants.items() if grant.role is role}
        if self._standings[peer].role is Role.OWNER:
            return found
        return {other: found[other] for other in sorted(found)[: defaults.OPERATOR_CLIENTS]}


_NOTHING = GroupFacts()


def _standing(peer: PeerId, by: PeerId, grant: Grant) -> GroupStanding:
    return GroupStanding(peer, grant.role, by, grant.since, grant.box)
