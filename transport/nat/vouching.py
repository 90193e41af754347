"""Client and server of the call `reach.where`, which asks a node where it sees another peer.

A peer's own claim about its address is no reason to send anything there: a third node must have
seen the peer at that address (docs/spec/punch.md). A libp2p relay sees both ends of a circuit, but
does not report their addresses. This node therefore asks its linked peers, because any of them may
have a direct link to the peer in question.
"""

from collections.abc import Sequence
from typing import Final

import trio

from .. import defaults
from ..dial.endpoint import Endpoint
from ..errors import CallRefused, LinkClosed
from ..host.seam import Host
from ..identity import PeerId
from ..link.calls import Call, Refusal, Reply
from ..link.link import Link
from ..networks import region
from ..rates import Rate, Rates
from ..relay.families import versions
from ..relay.vouch import is_relayed, read_vouched, seen_at
from .knowledge import NodeKnowledge

METHOD: Final = "reach.where"


class AddressVouching:
    """Client and server of `reach.where`. Stores the replies of the linked peers in `knowledge`."""

    def __init__(self, host: Host, endpoint: Endpoint, knowledge: NodeKnowledge) -> None:
        self._host = host
        self._endpoint = endpoint
        self._knowledge = knowledge
        self.asked_by = Rates(Rate(*defaults.WHERE))
        """Limits how often each peer may ask for addresses."""
        endpoint.handle(METHOD, self._on_where)

    def _on_where(self, call: Call) -> Reply | Refusal:
        peer = call.header.get("peer")
        if not isinstance(peer, str):
            return Refusal("bad-request", "`peer` is missing")
        if not self.asked_by.take(call.peer, self._host.now()):
            return Refusal("too-often", "ask later")
        link = self._endpoint.link(PeerId(peer))
        if link is None or not link.connected or is_relayed(link):
            return Refusal("not-linked", "there is no direct link to that peer")
        return Reply({"seen": list(seen_at(link))})

    async def ask(self, peer: PeerId) -> None:
        """Ask a few linked peers where they see `peer`, and store the replies in `knowledge`.

        Does nothing if an address of `peer` is already known for an IP version that this node has.
        A peer that lies can name a victim's public address, as a relay can. The number of datagrams
        that this node sends to such an address is bounded (`punch/budget.py`).
        """
        ours = versions(self._host)
        if any((":" in ip) in ours for ip in self._knowledge.seen(peer).vouched):
            await trio.lowlevel.checkpoint()
            return
        await self._ask_all(self._vouchers(peer), peer)

    async def is_seen(self, peer: PeerId, ip: str) -> bool:
        """Return whether other nodes see `peer` at the IP address `ip`.

        Asks linked peers if this is not known yet. Returns True if there is no linked peer to ask,
        because a node that has lost all its links must still be able to dial the peers that it
        remembers.
        """
        vouchers = self._vouchers(peer)
        if not vouchers or ip in self._knowledge.seen(peer).vouched:
            await trio.lowlevel.checkpoint()
            return True
        await self._ask_all(vouchers, peer)
        return ip in self._knowledge.seen(peer).vouched

    async def _ask_all(self, vouchers: Sequence[Link], peer: PeerId) -> None:
        async with trio.open_nursery() as nursery:
            for voucher in vouchers:
                self._endpoint.guard.start(nursery, voucher.peer, self._ask, voucher, peer)

    async def _ask(self, voucher: Link, peer: PeerId) -> None:
        try:
            reply = await voucher.call(METHOD, {"peer": peer}, timeout=defaults.WHERE_S)
        except (CallRefused, LinkClosed):
            return
        seen = read_vouched(reply.header.get("seen"), voucher.address[0])
        self._knowledge.vouch(peer, seen, voucher.peer)

    def _vouchers(self, peer: PeerId) -> Sequence[Link]:
        """Return links to ask about `peer`: direct links to other peers, at most `VOUCHERS`.

        Peers in different networks come first, because one operator may own all peers of a network.
        """
        links = [each for each in self._endpoint.links() if each.peer != peer and each.connected]
        found = [each for each in links if not is_relayed(each)]
        first = {region(each.address[0]): each for each in found}
        return list(dict.fromkeys([*first.values(), *found]))[: defaults.VOUCHERS]
