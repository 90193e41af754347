"""Admission of peers to a private group, and the secrets that this node proves to other members.

A peer that proves a group secret must also be a member by this node's own list of members. Only a
new node, which is not in its own list yet, accepts a peer because of the secret alone: it gets the
list from the first peers that it meets. Spec: docs/spec/group.md, Doors.
"""

from collections.abc import Sequence

from ...transport.handshake.hello import INVITATION, SWARM, Invitations, Secret, invited
from ...transport.identity import PeerId
from .group import Group

NOT_A_MEMBER, REVOKED, NOT_READY = "not-a-member", "revoked", "not-ready"


class GroupAdmission:
    """The admission rules of a node in a group (`Admission` of the handshake)."""

    open = False

    def __init__(self, group: Group, invitations: Invitations | None = None) -> None:
        self.swarm = group.charter.ident
        self._group = group
        self._invitations = invitations

    @property
    def secret(self) -> Secret | None:
        """The first secret to prove to a peer: the newest that this node knows, or None if it knows
        none."""
        return next(iter(self._shown()), None)

    @property
    def further(self) -> Sequence[Secret]:
        """Older secrets, to prove to peers that do not know the newest one yet."""
        return self._shown()[1:]

    def find(self, kind: str, ident: bytes) -> Secret | None:
        if kind == SWARM:
            key = self._group.secrets.find(ident)
            return None if key is None else Secret(SWARM, ident, key)
        return invited(self._invitations, kind, ident)

    def used(self, secret: Secret) -> None:
        if secret.kind == INVITATION and self._invitations is not None:
            self._invitations.used(secret.ident)

    def refusal(self, peer: PeerId, kind: str) -> str | None:
        group = self._group
        if not group.decided:
            return NOT_READY
        if group.revoked_by(peer) is not None:
            return REVOKED
        if kind == INVITATION or group.young or group.order.role(peer) is not None:
            return None
        return NOT_A_MEMBER

    def words(self, peer: PeerId, code: str) -> str:
        by = self._group.revoked_by(peer) if code == REVOKED else None
        return "" if by is None else f"revoked by {by}"

    def _shown(self) -> list[Secret]:
        secrets = self._group.secrets
        shown = secrets.shown(self._group.newest)
        return [Secret(SWARM, mark.mark, secrets[mark]) for mark in shown]
