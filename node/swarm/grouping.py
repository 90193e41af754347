"""Connects a private group to the rest of the node: admits invited peers, applies this node's role,
and reports a revocation.

The rules of the group itself are in `state/group/`.
"""

from collections.abc import Callable

from ...state.errors import StateError
from ...state.group.facts import BOX_BYTES, Role
from ...state.group.group import REVOKED
from ...state.group.rule import Order
from ...state.group.upkeep import Upkeep
from ...state.membership.membership import Membership
from ...state.service import State
from ...transport.dial.endpoint import Endpoint
from ...transport.handshake.hello import INVITATION, SWARM
from ...transport.identity import PeerId
from ...transport.link.calls import Call, Refusal, Reply
from ...transport.link.link import Link
from .. import defaults
from ..errors import NodeError
from ..health import Health
from .credentials import Credentials

JOIN = "swarm.join"
CLIENT = "this node is a client of its group: it serves nothing for others"
_CONDITION = "group"
_TROUBLE = "group-trouble"
_FULL_HINT = "let other owners or operators let new members in"


class Grouping:
    """Group service of one node: admits invited peers, applies this node's role, and reports a
    revocation of this node."""

    def __init__(
        self,
        state: State,
        credentials: Credentials,
        endpoint: Endpoint,
        membership: Membership,
        health: Health,
        regrouped: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """`regrouped` is called after each change of the group's members, with the reason why this
        node must serve nothing, or with None."""
        self._state = state
        self._credentials = credentials
        self._endpoint = endpoint
        self._membership = membership
        self._health = health
        # (Peer that claims that this node is revoked, its message), or None if there is none.
        self._told: tuple[PeerId, str] | None = None
        self._joined: dict[tuple[PeerId, bytes], None] = {}  # (new member, invitation used)
        self._regrouped = regrouped
        endpoint.handle(JOIN, self._on_join)
        endpoint.on_refused(self._refused)
        endpoint.on_link(self._linked)
        endpoint.on_link_lost(self._lost)

    async def enter(self) -> None:
        """Enter the group that the credentials name, if there is one."""
        group = self._credentials.group
        if group is not None:
            await self._state.enter(group, alone=self._credentials.alone)

    async def run(self) -> None:
        """Apply this node's role to its membership and its serving whenever the group changes,
        until cancelled."""
        upkeep = await self._state.in_group()
        seen: Order | None = None
        while True:
            if upkeep.group.order is not seen:
                seen = upkeep.group.order
                self._membership.screen(upkeep.group.counts)
                self._regrouped(CLIENT if upkeep.group.role is Role.CLIENT else None)
            self.report()
            if upkeep.trouble is None:
                self._health.clear(_TROUBLE)
            else:
                hint = upkeep.trouble.hint or _FULL_HINT
                self._health.report(_TROUBLE, upkeep.trouble.message, hint=hint)
            await upkeep.decided()

    # Joining.

    async def _on_join(self, call: Call) -> Reply | Refusal:
        """Admit a peer whose link an invitation has opened, and return the group's credentials.
        Refuse any other peer."""
        link = self._endpoint.link(call.peer)
        admitted = None if link is None else link.status.admitted
        if admitted is None or admitted.kind != INVITATION:
            return Refusal("not-invited", "only invited nodes join")
        upkeep, handed = self._state.upkeep, self._credentials.handed
        try:
            if (
                call.peer,
                admitted.invitation,
            ) not in self._joined:  # a repeated call must not write the disk again
                await self._credentials.save()  # the accepted hello used up one join
            if upkeep is None or handed is None:
                self._note(call.peer, admitted.invitation)
                return Reply({"private": False})
            role = self._credentials.book.role(admitted.invitation)
            if role is None or len(call.payload) != BOX_BYTES:
                return Refusal("not-invited", "the invitation has been revoked")
            await self._admit(upkeep, call, admitted.invitation, role)
        except (StateError, NodeError) as error:
            return Refusal(error.code, error.message)
        return Reply({"private": True}, handed.as_payload())

    async def _admit(self, upkeep: Upkeep, call: Call, invitation: bytes, role: Role) -> None:
        """Make the peer a member with this role.

        This happens once for each peer and invitation, so that a repeated call cannot undo a
        lowered role.
        """
        joined = call.peer, invitation
        if joined in self._joined and upkeep.group.order.role(call.peer) is not None:
            return
        await upkeep.management.admit(call.peer, role, bytes(call.payload))
        self._note(*joined)

    def _note(self, peer: PeerId, invitation: bytes) -> None:
        """Record that a peer has joined with an invitation. Only the latest JOINED joins are
        remembered."""
        self._joined[peer, invitation] = None
        if len(self._joined) > defaults.JOINED:
            del self._joined[next(iter(self._joined))]

    # Being revoked.

    def _refused(self, peer: PeerId, code: str, words: str) -> None:
        """Record a peer's claim that the group has revoked this node. A claim by a peer that is
        itself revoked is ignored."""
        upkeep = self._state.upkeep
        if code == REVOKED and upkeep is not None and upkeep.group.revoked_by(peer) is None:
            self._told = peer, words
            self.report()

    def _lost(self, link: Link, code: str) -> None:
        if code == REVOKED:
            self._refused(link.peer, code, "")

    def _linked(self, link: Link) -> None:
        """Discard a peer's claim that this node is revoked when a member admits this node.

        Only a link that this node dialled proves that the member admits this node.
        """
        status = link.status
        if status.dialled and status.admitted.kind == SWARM and self._told is not None:
            self._told = None
            self.report()

    def report(self) -> None:
        upkeep = self._state.upkeep
        own = self._endpoint.peer
        link = None if self._told is None else self._endpoint.link(self._told[0])
        # A peer that dials may yet refuse this node. Once it answers a ping, it has not.
        if link is not None and link.round_trip is not None:
            self._told = None  # the peer that made the claim has admitted this node again
        by = None if upkeep is None else upkeep.group.revoked_by(own)
        hint = back_hint(own)
        if by is not None:
            self._health.report(_CONDITION, f"the group has revoked this node: by {by}", hint=hint)
        elif self._told is not None:
            peer, words = self._told
            told = f"the group has revoked this node: {_by(peer, words)}"
            self._health.report(_CONDITION, told, hint=hint)
        else:
            self._health.clear(_CONDITION)


def _by(peer: PeerId, words: str) -> str:
    """Return a phrase that says which peer has revoked this node, and that `peer` has reported it.

    `words` is the message of `peer`, such as `revoked by …`. It may be empty.
    """
    by = words.removeprefix("revoked ")
    if by == f"by {peer}":
        return by
    return f"{by}, according to {peer}" if by and words != REVOKED else f"according to {peer}"


def back_hint(own: PeerId) -> str:
    """Return the hint that tells the owner of a revoked node how the node can be readmitted."""
    return f"an owner of its group can readmit it: `shoal group role {own} ROLE` there"
