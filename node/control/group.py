"""Control socket operations on the private group. Specified in docs/spec/control.md."""

from collections.abc import Mapping

from ...state.directory import Directory
from ...state.group.facts import ROLES, Role
from ...state.group.upkeep import Upkeep
from ...state.service import State
from ...transport.handshake.hello import invitation_ident
from ...transport.identity import PeerId
from ...transport.shortid import meant
from ..errors import BadInvite, ControlError
from ..invite import decode, invitation_key
from ..swarm.credentials import Credentials
from .messages import group as messages
from .messages.node import GroupPlace
from .server import Emit, Operation, operation


class GroupOperations:
    """Control socket operations on the private group of one node."""

    def __init__(self, state: State, directory: Directory, credentials: Credentials) -> None:
        self._state = state
        self._directory = directory
        self._credentials = credentials

    def table(self) -> Mapping[str, Operation]:
        return dict(
            (
                operation(messages.GetGroup, self.show),
                operation(messages.ChangeRole, self.change_role),
                operation(messages.Revoke, self.revoke),
                operation(messages.Uninvite, self.uninvite),
                operation(messages.Rotate, self.rotate),
            )
        )

    @property
    def _upkeep(self) -> Upkeep:
        return upkeep_of(self._state.upkeep)

    async def show(self, _ask: messages.GetGroup, _emit: Emit) -> messages.GroupView:
        """Return the members, the revoked peers, this node's invitations and the number of the
        newest secret."""
        group = self._upkeep.group
        live, newest = self._directory.members(), group.newest
        members = (
            messages.MemberView(
                peer=each.peer,
                role=each.role.word,
                by=each.by,
                since=each.since / 1000,
                founder=each.peer == group.charter.founder,
                live=each.peer in live,
            )
            for each in group.order.members()
        )
        revoked = (
            messages.RevokedPeer(peer, by, found.since / 1000)
            for peer, (by, found) in sorted(group.order.revoked.items())
        )
        invitations = (
            messages.OpenInvitation(ident.hex(), item.role.word, item.uses, item.expires)
            for ident, item in self._credentials.book.outstanding().items()
        )
        return messages.GroupView(
            group=group.charter.ident.hex(),
            founder=group.charter.founder,
            own=self._directory.own().peer,
            members=tuple(members),
            revoked=tuple(revoked),
            invitations=tuple(invitations),
            key=None if newest is None else newest.number,
            key_known=newest is not None and newest in group.secrets,
        )

    async def change_role(self, ask: messages.ChangeRole, _emit: Emit) -> messages.ChangedRole:
        upkeep = self._upkeep
        peer, role = _peer(ask.peer, upkeep), ROLES[ask.role]
        await upkeep.management.change_role(peer, role)
        return messages.ChangedRole(peer, role.word)

    async def revoke(self, ask: messages.Revoke, _emit: Emit) -> messages.Revoked:
        upkeep = self._upkeep
        peer = _peer(ask.peer, upkeep)
        await upkeep.management.revoke(peer)
        return messages.Revoked(peer)

    async def rotate(self, _ask: messages.Rotate, _emit: Emit) -> messages.Rotated:
        mark = await self._upkeep.management.rotate()
        return messages.Rotated(mark.number)

    async def uninvite(self, ask: messages.Uninvite, _emit: Emit) -> messages.Uninvited:
        """Revoke an invitation of this node. The request names it by its code, its id, or the first
        characters of its id."""
        book, text = self._credentials.book, ask.invitation
        known = [ident.hex() for ident in book.outstanding()]
        hint = "`shoal group` lists them; to remove a peer that joined: `shoal group revoke PEER`"
        ident = bytes.fromhex(meant(_ident(text) or text, known, "invitation", hint=hint))
        book.remove(ident)
        await self._credentials.save()
        return messages.Uninvited(ident.hex())


def _peer(start: str, upkeep: Upkeep) -> PeerId:
    """Return the member or revoked peer whose id begins with `start`. Raises BadId if none or
    several match."""
    order = upkeep.group.order
    known = (*order.standings, *order.revoked)
    return PeerId(meant(start, known, "peer", hint="`shoal group` lists the members"))


def upkeep_of(upkeep: Upkeep | None) -> Upkeep:
    """Return `upkeep`. Raises ControlError `no-group` if it is None, that is, if the node has no
    group."""
    if upkeep is None:
        raise ControlError(
            "no-group",
            "this node is not in a private group",
            hint="`shoal node --private` creates one, in a folder of its own (`--data DIR`)",
        )
    return upkeep


def invited_role(upkeep: Upkeep | None, word: str | None, *, private: bool) -> Role:
    """Return the role that a new invitation of this node grants.

    `word` is the requested role. If it is None, an owner grants the role operator, and an operator
    the role client. `private` says whether the swarm is private; an open swarm has no roles, and
    the result is then operator. Raises ControlError if a role is requested in an open swarm, and
    GroupRefused if this node may not grant the role.
    """
    if not private:
        if word is not None:
            raise ControlError(
                "no-group",
                "this swarm is open: it has no roles",
                hint="use `shoal invite` without `--role`; `shoal node --private` creates a group",
            )
        return Role.OPERATOR
    upkeep = upkeep_of(upkeep)
    own, role = upkeep.group.role, None if word is None else ROLES[word]
    if own is Role.OWNER:
        return role or Role.OPERATOR
    if own is Role.OPERATOR and role in (None, Role.CLIENT):
        return Role.CLIENT
    raise upkeep.management.not_allowed("invite others" if role is None else f"invite {role.word}s")


def may_invite(upkeep: Upkeep | None) -> bool:
    """Return whether this node is allowed to make invitations."""
    return upkeep is None or (upkeep.group.role or Role.CLIENT) > Role.CLIENT


def group_place(upkeep: Upkeep | None) -> GroupPlace | None:
    """Return this node's role and the number of members, as `shoal status` shows them. Returns None
    if the node has no group."""
    if upkeep is None:
        return None
    role = upkeep.group.role
    members = sum(1 for _ in upkeep.group.order.members())
    return GroupPlace(None if role is None else role.word, members)


def _ident(code: str) -> str | None:
    """Return the id (in hex) of the invitation with this code. Returns None if `code` is not a
    valid code."""
    try:
        return invitation_ident(invitation_key(decode(code).secret)).hex()
    except BadInvite:
        return None
