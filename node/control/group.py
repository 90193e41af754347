"""Control socket operations on the private group. Specified in docs/spec/control.md."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...state.group.facts import ROLES, Role
from ...state.group.upkeep import Upkeep
from ...transport.handshake.hello import invitation_ident
from ...transport.identity import PeerId
from ...transport.shortid import meant
from ..errors import BadInvite, ControlError
from ..invite import decode, invitation_key
from .server import Emit, Operation

if TYPE_CHECKING:
    from ..daemon.daemon import Node

_ROLES = ", ".join(ROLES)


class GroupOperations:
    """Operations on the group of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def table(self) -> Mapping[str, Operation]:
        return {
            "group": self.show,
            "group_role": self.change_role,
            "group_revoke": self.revoke,
            "group_uninvite": self.uninvite,
            "group_rotate": self.rotate,
        }

    async def show(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Return members, revoked peers, this node's invitations and the newest secret's number."""
        node, group = self._node, upkeep_of(self._node).group
        live, newest = node.directory.members(), group.newest
        members = [
            {
                "peer": each.peer,
                "role": each.role.word,
                "by": each.by,
                "since": each.since / 1000,
                "founder": each.peer == group.charter.founder,
                "live": each.peer in live,
            }
            for each in group.order.members()
        ]
        revoked = [
            {"peer": peer, "by": by, "since": found.since / 1000}
            for peer, (by, found) in sorted(group.order.revoked.items())
        ]
        invitations = [
            {
                "ident": ident.hex(),
                "role": item.role.word,
                "uses": item.uses,
                "expires": item.expires,
            }
            for ident, item in node.credentials.book.outstanding().items()
        ]
        return {
            "group": group.charter.ident.hex(),
            "founder": group.charter.founder,
            "own": node.identity.peer,
            "members": members,
            "revoked": revoked,
            "invitations": invitations,
            "key": None if newest is None else newest.number,
            "key_known": newest is not None and newest in group.secrets,
        }

    async def change_role(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        upkeep = upkeep_of(self._node)
        peer, role = self._peer(request, upkeep), _role(request)
        await upkeep.management.change_role(peer, role)
        return {"peer": peer, "role": role.word}

    async def revoke(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        upkeep = upkeep_of(self._node)
        peer = self._peer(request, upkeep)
        await upkeep.management.revoke(peer)
        return {"peer": peer}

    async def rotate(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        mark = await upkeep_of(self._node).management.rotate()
        return {"key": mark.number}

    async def uninvite(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Revoke an invitation of this node, given its code or the beginning of its id."""
        book = self._node.credentials.book
        known = [ident.hex() for ident in book.outstanding()]
        hint = "`shoal group` lists them; to remove a peer that joined: `shoal group revoke PEER`"
        text = _text(request, "invitation")
        ident = bytes.fromhex(meant(_ident(text) or text, known, "invitation", hint=hint))
        book.remove(ident)
        await self._node.credentials.save()
        return {"ident": ident.hex()}

    def _peer(self, request: dict[str, Any], upkeep: Upkeep) -> PeerId:
        """Return the member or revoked peer whose id begins with the given text. Raises BadId."""
        order = upkeep.group.order
        known = (*order.standings, *order.revoked)
        hint = "`shoal group` lists the members"
        return PeerId(meant(_text(request, "peer"), known, "peer", hint=hint))


def upkeep_of(node: "Node") -> Upkeep:
    """Return the upkeep of the node's group. Raises ControlError if it has no group."""
    if node.state.upkeep is None:
        raise ControlError(
            "no-group",
            "this node is not in a private group",
            hint="`shoal node --private` creates one, in a folder of its own (`--data DIR`)",
        )
    return node.state.upkeep


def invited_role(node: "Node", request: dict[str, Any]) -> Role:
    """Return the role that a new invitation of this node grants. Raises ControlError,
    GroupRefused."""
    if not node.credentials.private:
        if request.get("role") is not None:
            raise ControlError(
                "no-group",
                "this swarm is open: it has no roles",
                hint="use `shoal invite` without `--role`; `shoal node --private` creates a group",
            )
        return Role.OPERATOR
    upkeep = upkeep_of(node)
    own = upkeep.group.role
    role = _role(request) if request.get("role") is not None else None
    if own is Role.OWNER:
        return role or Role.OPERATOR
    if own is Role.OPERATOR and role in (None, Role.CLIENT):
        return Role.CLIENT
    raise upkeep.management.not_allowed("invite others" if role is None else f"invite {role.word}s")


def may_invite(node: "Node") -> bool:
    """Whether `shoal invite` works on this node."""
    upkeep = node.state.upkeep
    return upkeep is None or (upkeep.group.role or Role.CLIENT) > Role.CLIENT


def status_view(node: "Node") -> dict[str, Any] | None:
    """Return the group part of `shoal status`, or None if the node has no group."""
    if node.state.upkeep is None:
        return None
    group = node.state.upkeep.group
    return {
        "role": None if group.role is None else group.role.word,
        "members": sum(1 for _ in group.order.members()),
    }


def _role(request: dict[str, Any]) -> Role:
    word = request.get("role")
    if not isinstance(word, str) or word not in ROLES:
        raise ControlError("bad-request", "`role` is not a role", hint=f"roles: {_ROLES}")
    return ROLES[word]


def _text(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise ControlError("bad-request", f"`{key}` is not a text of 1 to 256 characters")
    return value


def _ident(code: str) -> str | None:
    """Return the id of the invitation with this code, or None if `code` is not a code."""
    try:
        return invitation_ident(invitation_key(decode(code).secret)).hex()
    except BadInvite:
        return None
