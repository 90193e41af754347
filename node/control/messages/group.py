"""Messages about the private group."""

from dataclasses import dataclass
from typing import Annotated, Never

from .encoding import Ask, FixedWord, TextBound

RoleName = Annotated[str, FixedWord(("client", "operator", "owner"))]
Start = Annotated[str, TextBound(256)]
"""An id, or its first characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A member of the group.

    `by` is the member that granted `role`, at the time `since`, in seconds since 1970 by the
    granter's clock. `live` says whether the member is reachable now.
    """

    peer: str
    role: str
    by: str
    since: float
    founder: bool
    live: bool


@dataclass(frozen=True, slots=True)
class RevokedPeer:
    """A peer whose membership was revoked by the member `by`. `since` is in seconds since 1970."""

    peer: str
    by: str
    since: float


@dataclass(frozen=True, slots=True)
class OpenInvitation:
    """An invitation of this node that is still valid.

    `uses` is the number of joins that are left. `expires` is in seconds since 1970.
    """

    ident: str
    role: str
    uses: int
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The private group of this node.

    The most senior members come first. `key` is the number of the newest group key, or None if
    there is none yet. `key_known` says whether this node has that key.
    """

    group: str
    founder: str
    own: str
    members: tuple[MemberView, ...]
    revoked: tuple[RevokedPeer, ...]
    invitations: tuple[OpenInvitation, ...]
    key: int | None
    key_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GetGroup(Ask[GroupView, Never]):
    """Request for the group of this node."""

    op = "group"


@dataclass(frozen=True, slots=True)
class ChangedRole:
    """A member, and the role that it has now."""

    peer: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRole(Ask[ChangedRole, Never]):
    """Request to change the role of a member."""

    op = "group_role"
    peer: Start
    role: RoleName


@dataclass(frozen=True, slots=True)
class Revoked:
    """The peer whose membership was revoked."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke(Ask[Revoked, Never]):
    """Request to revoke the membership of a peer."""

    op = "group_revoke"
    peer: Start


@dataclass(frozen=True, slots=True)
class Rotated:
    """Number of the new group key."""

    key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate(Ask[Rotated, Never]):
    """Request to replace the group key."""

    op = "group_rotate"


@dataclass(frozen=True, slots=True)
class Uninvited:
    """Id of the invitation that was revoked."""

    ident: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uninvite(Ask[Uninvited, Never]):
    """Request to revoke an invitation, which is named by its code, its id or the beginning of its
    id."""

    op = "group_uninvite"
    invitation: Start
