"""A private swarm with one shared key: the smallest admission by a secret."""

from collections.abc import Sequence
from hashlib import sha256

from shoal.transport.handshake.hello import INVITATION, SWARM, Invitations, Secret, invited
from shoal.transport.identity import PeerId


class SwarmKey:
    """Admission of peers that prove the key (16 bytes or more) or an invitation of this node."""

    open = False
    further: Sequence[Secret] = ()

    def __init__(self, key: bytes, invitations: Invitations | None = None) -> None:
        self.swarm = sha256(b"shoal/swarm/1\0" + key).digest()[:16]
        self.secret = Secret(SWARM, b"", key)
        self._invitations = invitations

    def find(self, kind: str, ident: bytes) -> Secret | None:
        if kind == SWARM:
            return self.secret if not ident else None
        return invited(self._invitations, kind, ident)

    def used(self, secret: Secret) -> None:
        if secret.kind == INVITATION and self._invitations is not None:
            self._invitations.used(secret.ident)

    def refusal(self, peer: PeerId, kind: str) -> str | None:
        return None

    def words(self, peer: PeerId, code: str) -> str:
        return ""
