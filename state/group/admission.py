"""Who is let into a private group, and what this node proves at others' doors.

A secret of the group alone opens nothing: who proves one has to be a member by this node's own
list. Only while a node does not yet see itself in that list, which it gets from those it meets
first, the secret is enough. Spec: docs/spec/group.md, Doors.
"""

from collections.abc import Sequence

from ...transport.hello import INVITATION, SWARM, Invitations, Secret, invited
from ...transport.identity import PeerId
from .group import Group

NOT_A_MEMBER, REVOKED, NOT_READY = "not-a-member", "revoked", "not-ready"


class GroupAdmission:
    """The `Admission` of a node in a group."""

    open = False

    def __init__(self, group: Group, invitations: Invitations | None = None) -> None:
        self.swarm = group.charter.ident
        self._group = group
        self._invitations = invitations

    @property
    def secret(self) -> Secret | None:
        """The newest that is known."""
        return next(iter(self._shown()), None)

    @property
    def further(self) -> Sequence[Secret]:
        """Older ones, for whoever did not hear of the newest."""
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
