"""Messages about the private group."""

from dataclasses import dataclass
from typing import Annotated, Never

from .encoding import Ask, Choice, Text

RoleName = Annotated[str, Choice(("client", "operator", "owner"))]
Start = Annotated[str, Text(256)]
"""An id, or the beginning of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member. `since` is in seconds since 1970, by the granter's clock."""

    peer: str
    role: str
    by: str
    since: float
    founder: bool
    live: bool


@dataclass(frozen=True, slots=True)
class RevokedPeer:
    """A peer whose membership was revoked."""

    peer: str
    by: str
    since: float


@dataclass(frozen=True, slots=True)
class OpenInvitation:
    """An invitation of this node. `uses` are the joins that are left."""

    ident: str
    role: str
    uses: int
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The group of this node, most senior members first. `key` is the number of the newest key."""

    group: str
    founder: str
    own: str
    members: tuple[MemberView, ...]
    revoked: tuple[RevokedPeer, ...]
    invitations: tuple[OpenInvitation, ...]
    key: int | None
    key_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetGroup(Ask[Group, Never]):
    """Ask for the group of this node."""

    op = "group"


@dataclass(frozen=True, slots=True)
class ChangedRole:
    """The member and its new role."""

    peer: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRole(Ask[ChangedRole, Never]):
    """Change the role of a member."""

    op = "group_role"
    peer: Start
    role: RoleName


@dataclass(frozen=True, slots=True)
class Revoked:
    """The peer whose membership was revoked."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke(Ask[Revoked, Never]):
    """Revoke the membership of a peer."""

    op = "group_revoke"
    peer: Start


@dataclass(frozen=True, slots=True)
class Rotated:
    """The number of the new key."""

    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate(Ask[Rotated, Never]):
    """Give the members a new key."""

    op = "group_rotate"


@dataclass(frozen=True, slots=True)
class Uninvited:
    """The id of the invitation that was revoked."""

    ident: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninvite(Ask[Uninvited, Never]):
    """Revoke an invitation, by its code, its id or the beginning of its id."""

    op = "group_uninvite"
    invitation: Start
