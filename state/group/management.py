"""What people ask of a group through one of its nodes: who is in, in which role, and who is out."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf

from ...transport.host import Host
from ...transport.identity import Identity, PeerId, public_key_of
from .. import defaults
from ..digest import Plot
from ..entry import FORKED, Head
from ..errors import GroupRefused
from ..kinds import all_parts
from ..replica import Replica
from . import facts
from .facts import GROUP, Grant, Role, Said
from .group import Group
from .ownfeed import OwnFeed, say
from .rotation import Rotation
from .secrets import Mark


class Management:
    """Of one node in its group. `until`: waits for what is to be decided."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        group: Group,
        replica: Replica,
        own: OwnFeed,
        rotation: Rotation,
        until: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        self._host = host
        self._identity = identity
        self._group = group
        self._replica = replica
        self._own = own
        self._rotation = rotation
        self._until = until
        self._gained_at = -inf  # when this node began to keep more kinds than before
        replica.interest.on_gained.append(lambda plots: self._gained())

    def _gained(self) -> None:
        self._gained_at = self._host.now()

    async def admit(self, peer: PeerId, role: Role, box: bytes) -> None:
        """Let a peer be a member, in this role at least; on disk when it returns.

        Raises GroupRefused, FeedFull.
        """
        if self._group.revoked_by(peer) is not None:
            raise GroupRefused("revoked", f"the group has revoked `{peer}`")
        held = self._group.order.role(peer)
        if held is None or held < role:
            await self._grant(peer, Grant(role, box, self._wall_ms()))

    async def change_role(self, peer: PeerId, role: Role) -> None:
        """Let a member have exactly this role, also one whom this node had revoked.

        Raises GroupRefused, FeedFull.
        """
        self._require_owner("change roles")
        if peer == self._group.charter.founder:
            if role is Role.OWNER:
                return
            words, hint = _founder(peer)
            raise GroupRefused("founder", words, hint=hint)
        standing = self._group.order.standings.get(peer)
        if standing is None:
            raise GroupRefused(
                "no-member", f"`{peer}` is no member", hint="`shoal group` lists the members"
            )
        grant = Grant(role, standing.box, self._wall_ms())
        others = self._group.granting(peer, grant).revoked
        if peer in others:
            raise GroupRefused(
                "revoked",
                f"`{peer}` is revoked by `{others[peer][0]}`",
                hint="only that owner takes it back",
            )
        granters = [other for other in self._granters(peer, role) if other != self._identity.peer]
        if granters:
            raise GroupRefused(
                "granted-by-others",
                f"`{peer}` has a higher role by the grant of `{granters[0]}`",
                hint="ask that one to change it, or revoke it",
            )
        await self._grant(peer, grant)

    def _granters(self, peer: PeerId, above: Role) -> Iterable[PeerId]:
        """Members whose grants give a peer more than that."""
        owners = (each for each in self._group.order.standings.values() if each.role is Role.OWNER)
        return (
            each.peer
            for each in owners
            if (grant := self._group.said(each.peer).grants.get(peer)) and grant.role > above
        )

    async def _grant(self, peer: PeerId, grant: Grant) -> None:
        """With it this node's own revocation of the peer goes, where there is one."""
        own, role = self._group.role, grant.role
        if own is None or not (own is Role.OWNER or (own is Role.OPERATOR and role is Role.CLIENT)):
            raise self.not_allowed(f"let {role.word}s in")
        said = self._group.said(self._identity.peer)
        if own is Role.OPERATOR and len(said.grants) >= defaults.OPERATOR_CLIENTS:
            raise GroupRefused(
                "too-many-clients",
                f"an operator lets {defaults.OPERATOR_CLIENTS} clients in, and this one has",
                hint=f"ask one of: {self.owners()}",
            )
        if not self._group.would_place(peer, grant):
            most = f"{defaults.GROUP_OWNERS} owners and {defaults.GROUP_MEMBERS} members"
            raise GroupRefused(
                "group-full",
                f"a group has {most} at most, the revoked among them",
                hint="`shoal group role PEER operator` frees the place of an owner",
            )
        fact = facts.grant_fact(role, grant.box, grant.since)
        say(self._own, {facts.grant_key(peer): fact, facts.revocation_key(peer): None})
        await self._until(lambda: self._group.order.role(peer) == role)

    async def revoke(self, peer: PeerId) -> None:
        """A peer is out, and what it says from now on counts nowhere; then the secret is another.

        Raises GroupRefused, FeedFull.
        """
        self._require_owner("revoke")
        order = list(self._group.order.standings)
        own = self._identity.peer
        if peer in order and order.index(peer) <= order.index(own):
            raise self._senior(peer)
        if peer not in order:
            raise GroupRefused(
                "no-member", f"`{peer}` is no member", hint="`shoal group` lists the members"
            )
        fact = facts.revocation_fact(self._ends_now(peer), self._wall_ms())
        self._own.set("group", facts.revocation_key(peer), fact)
        await self._until(lambda: self._group.revoked_by(peer) is not None)
        self._rotation.ask()

    def _senior(self, peer: PeerId) -> GroupRefused:
        """Why this node cannot revoke one that stands before it, or itself."""
        own, founder = self._identity.peer, self._group.charter.founder
        code, message = "senior", f"`{peer}` stands before this node in the group"
        if peer == own:
            code, message = "self", "an owner cannot revoke itself"
        if peer == founder:
            words, hint = _founder(peer)
            return GroupRefused(code, message if peer == own else words, hint=hint)
        owners = [each.peer for each in self._group.order.members() if each.role is Role.OWNER]
        return GroupRefused(
            code, message, hint=f"ask one of: {_listed(owners[: owners.index(peer)])}"
        )

    def _ends_now(self, peer: PeerId) -> Mapping[Plot, Head]:
        """The last entry of each of its feeds; of one who is revoked those of its revocation, for
        what leads there may still be on its way. Raises GroupRefused."""
        revoked = self._group.order.revoked.get(peer)
        if revoked is not None:
            return revoked[1].ends
        key = public_key_of(peer)
        if self._lacks(peer, key):
            raise GroupRefused(
                "not-ready",
                f"not all that `{peer}` has said is here yet, and the rest would count nowhere",
                hint=f"in a moment again, beside members who have it: `shoal group revoke {peer}`",
            )
        heads = ((plot, self._replica.head(key, plot)) for plot in all_parts())
        return {plot: head for plot, head in heads if head is not None and head != FORKED}

    def _lacks(self, peer: PeerId, key: bytes) -> bool:
        """Whether there is something of a peer that is still to be fetched. What others tell of it
        plays no part: who is to be revoked could tell of more for ever."""
        replica = self._replica
        if replica.interest.aside() or self._host.now() < self._gained_at + defaults.WRITE_HOLD:
            return True
        # Its feed was lost: what it says counts until that has come again (`Group.dropped`).
        return replica.head(key, GROUP) is None and self._group.said(peer) != Said()

    async def rotate(self) -> Mark:
        """A new secret for all members; on disk when it returns. Raises GroupRefused, FeedFull."""
        self._require_owner("rotate the key")
        self._rotation.next_number()
        before = self._group.newest
        self._rotation.ask()
        await self._until(lambda: self._group.newest not in (before, None))
        assert self._group.newest is not None
        return self._group.newest

    def _require_owner(self, what: str) -> None:
        if self._group.role is not Role.OWNER:
            raise self.not_allowed(what)

    def not_allowed(self, what: str) -> GroupRefused:
        """Why this node's place does not let it do something, and whom to ask."""
        own = self._identity.peer
        if self._group.revoked_by(own) is not None:
            message = f"the group has revoked this node: it cannot {what}"
            hint = f"ask an owner for `shoal group role {own} ROLE`: {self.owners()}"
            return GroupRefused("revoked", message, hint=hint)
        message = f"{_words(self._group.role)} cannot {what}"
        return GroupRefused("not-owner", message, hint=f"ask one of: {self.owners()}")

    def owners(self) -> str:
        """Whom to ask for what only owners do."""
        owners = [each.peer for each in self._group.order.members() if each.role is Role.OWNER]
        return _listed(owners)

    def _wall_ms(self) -> int:
        return max(0, int(self._host.wall() * 1000))


def _founder(peer: PeerId) -> tuple[str, str]:
    """What is in the way of changing a founder's place, and what goes instead."""
    return (
        f"`{peer}` founded the group: it always stays an owner",
        "found a group without it: `shoal node --private --data DIR`",
    )


def _words(role: Role | None) -> str:
    return "who is no member" if role is None else f"{role.word}s"


def _listed(peers: Iterable[PeerId]) -> str:
    some = list(peers)
    more = len(some) - defaults.OWNERS_LISTED
    listed = ", ".join(some[: defaults.OWNERS_LISTED])
    return f"{listed} and {more} more" if more > 0 else listed
