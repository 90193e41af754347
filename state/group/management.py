"""Operations on a group that a user can request from a node: admit, change a role, revoke,
rotate."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import inf

from ...transport.host.seam import Host
from ...transport.identity import PeerId, public_key_of
from .. import defaults
from ..errors import GroupRefused
from ..feeds.digest import Plot
from ..feeds.entry import FORKED, Head
from ..feeds.kinds import all_parts
from ..replication.replica import Replica
from . import facts
from .facts import GROUP, Grant, GroupFacts, Role
from .group import Group, Mark
from .ownfeed import OwnFeed, say
from .rotation import Rotation


class Management:
    """The operations on its group that one node offers.

    `until` waits until a condition on the group holds; the condition is checked after each
    decision.
    """

    def __init__(
        self,
        host: Host,
        group: Group,
        replica: Replica,
        own: OwnFeed,
        rotation: Rotation,
        until: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        self._host = host
        self._group = group
        self._replica = replica
        self._own = own
        self._rotation = rotation
        self._until = until
        self._gained_at = -inf  # when this node last began to store more kinds of feeds
        replica.interest.on_gained.append(lambda plots: self._gained())

    def _gained(self) -> None:
        self._gained_at = self._host.now()

    async def admit(self, peer: PeerId, role: Role, box: bytes) -> None:
        """Admit a peer in at least this role. The grant is on disk when this returns.

        Does nothing if the peer has this role or a higher one. Raises GroupRefused if the group
        does not allow the admission, and FeedFull if the grant does not fit into this node's feed.
        """
        if self._group.revoked_by(peer) is not None:
            raise GroupRefused("revoked", f"the group has revoked `{peer}`")
        held = self._group.order.role(peer)
        if held is None or held < role:
            await self._grant(peer, Grant(role, box, self._wall_ms()))

    async def change_role(self, peer: PeerId, role: Role) -> None:
        """Give a member exactly this role, even if this node has revoked it.

        Raises GroupRefused if the group does not allow the change, and FeedFull if the grant does
        not fit into this node's feed.
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
                "no-member", f"`{peer}` is not a member", hint="`shoal group` lists the members"
            )
        grant = Grant(role, standing.box, self._wall_ms())
        others = self._group.granting(peer, grant).revoked
        if peer in others:
            raise GroupRefused(
                "revoked",
                f"`{peer}` is revoked by `{others[peer][0]}`",
                hint="only that owner can undo the revocation",
            )
        granters = [other for other in self._granters(peer, role) if other != self._group.own]
        if granters:
            raise GroupRefused(
                "granted-by-others",
                f"`{granters[0]}` has granted `{peer}` a higher role",
                hint="ask that owner to change the role, or revoke the peer",
            )
        await self._grant(peer, grant)

    def _granters(self, peer: PeerId, above: Role) -> Iterable[PeerId]:
        """Yield the owners that grant a peer a higher role than `above`."""
        owners = (each for each in self._group.order.standings.values() if each.role is Role.OWNER)
        return (
            each.peer
            for each in owners
            if (grant := self._group.said(each.peer).grants.get(peer)) and grant.role > above
        )

    async def _grant(self, peer: PeerId, grant: Grant) -> None:
        """Write the grant of a role, and withdraw this node's own revocation of the peer.

        Raises GroupRefused if this node may not make the grant or the grant would have no effect.
        """
        own, role = self._group.role, grant.role
        if own is None or not (own is Role.OWNER or (own is Role.OPERATOR and role is Role.CLIENT)):
            raise self.not_allowed(f"admit {role.word}s")
        said = self._group.said(self._group.own)
        if own is Role.OPERATOR and len(said.grants) >= defaults.OPERATOR_CLIENTS:
            raise GroupRefused(
                "too-many-clients",
                f"this operator has admitted {defaults.OPERATOR_CLIENTS} clients, the maximum",
                hint=f"ask one of: {self.owners()}",
            )
        if not self._group.would_place(peer, grant):
            most = f"{defaults.GROUP_OWNERS} owners and {defaults.GROUP_MEMBERS} members"
            raise GroupRefused(
                "group-full",
                f"a group has at most {most}, including revoked ones",
                hint="`shoal group role PEER operator` turns an owner into an operator",
            )
        fact = facts.grant_fact(role, grant.box, grant.since)
        say(self._own, {facts.grant_key(peer): fact, facts.revocation_key(peer): None})
        await self._until(lambda: self._group.order.role(peer) == role)

    async def revoke(self, peer: PeerId) -> None:
        """Revoke a member, so that its later entries no longer count, and request a new secret.

        Raises GroupRefused if the group does not allow it, and FeedFull if the revocation does not
        fit into this node's feed.
        """
        self._require_owner("revoke")
        order = list(self._group.order.standings)
        own = self._group.own
        if peer in order and order.index(peer) <= order.index(own):
            raise self._senior(peer)
        if peer not in order:
            raise GroupRefused(
                "no-member", f"`{peer}` is not a member", hint="`shoal group` lists the members"
            )
        fact = facts.revocation_fact(self._ends_now(peer), self._wall_ms())
        self._own.set("group", facts.revocation_key(peer), fact)
        await self._until(lambda: self._group.revoked_by(peer) is not None)
        self._rotation.ask()

    def _senior(self, peer: PeerId) -> GroupRefused:
        """Return the error for an attempt to revoke this node itself or one of its seniors."""
        own, founder = self._group.own, self._group.charter.founder
        code, message = "senior", f"`{peer}` is senior to this node in the group"
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
        """Return the last entry of each feed of a peer, for its revocation to name.

        If the peer is revoked already, returns the entries that the earlier revocation names,
        because some of its entries may not have arrived here yet. Raises GroupRefused if entries of
        a peer that is not revoked may be missing here.
        """
        revoked = self._group.order.revoked.get(peer)
        if revoked is not None:
            return revoked[1].ends
        key = public_key_of(peer)
        if self._lacks(peer, key):
            raise GroupRefused(
                "not-ready",
                f"not all entries of `{peer}` are here yet, and the missing ones would not count",
                hint=f"retry in a moment, with other members running: `shoal group revoke {peer}`",
            )
        heads = ((plot, self._replica.head(key, plot)) for plot in all_parts())
        return {plot: head for plot, head in heads if head is not None and head != FORKED}

    def _lacks(self, peer: PeerId, key: bytes) -> bool:
        """Return whether entries of a peer may still be missing at this node.

        The heads that peers offer are not considered, because the peer to revoke could prevent its
        revocation by always offering further heads.
        """
        replica = self._replica
        if replica.interest.aside() or self._host.now() < self._gained_at + defaults.WRITE_HOLD:
            return True
        # The peer's feed was lost here, but its facts count until the feed has been fetched again
        # (`Group.dropped`).
        return replica.head(key, GROUP) is None and self._group.said(peer) != GroupFacts()

    async def rotate(self) -> Mark:
        """Make a new secret for all members, and return its mark.

        The secret is on disk when this returns.

        Raises GroupRefused if the group does not allow it or the disk does not accept it in time.
        """
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
        """Return the error for an operation that this node's role does not allow.

        `what` completes the sentence "… cannot …" in its message.
        """
        own = self._group.own
        if self._group.revoked_by(own) is not None:
            message = f"the group has revoked this node: it cannot {what}"
            hint = f"ask an owner for `shoal group role {own} ROLE`: {self.owners()}"
            return GroupRefused("revoked", message, hint=hint)
        message = f"{_words(self._group.role)} cannot {what}"
        return GroupRefused("not-owner", message, hint=f"ask one of: {self.owners()}")

    def owners(self) -> str:
        """Return a list of the owners that a user can ask, as text for a message."""
        owners = [each.peer for each in self._group.order.members() if each.role is Role.OWNER]
        return _listed(owners)

    def _wall_ms(self) -> int:
        return max(0, int(self._host.wall() * 1000))


def _founder(peer: PeerId) -> tuple[str, str]:
    """Return (message, hint) of the error for an attempt to change the founder's role."""
    return (
        f"`{peer}` founded the group: it always stays an owner",
        "create a group without it: `shoal node --private --data DIR`",
    )


def _words(role: Role | None) -> str:
    return "a node that is not a member" if role is None else f"{role.word}s"


def _listed(peers: Iterable[PeerId]) -> str:
    some = list(peers)
    more = len(some) - defaults.OWNERS_LISTED
    listed = ", ".join(some[: defaults.OWNERS_LISTED])
    return f"{listed} and {more} more" if more > 0 else listed
