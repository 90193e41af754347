"""Finds and dials the providers of a root through the DHT, and publishes what this node provides.

A record only says which node to ask. Every chunk that arrives is verified.
"""

from collections.abc import Sequence
from contextlib import suppress

from ...dht.errors import BadRecord
from ...dht.exchange.switchboard import Swarm
from ...dht.finding import FindingResult
from ...dht.lookup.foundrecords import FoundRecord
from ...dht.records.key import record_key
from ...dht.records.record import BlobBody, PeerBody, longest_runs
from ...dht.service import Dht
from ...state.membership.reach import dialable
from ...transport.address import Address
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.link import Link
from ...transport.networks import Nearness, nearness_at
from ...transport.strategies.dialer import Dialer
from .. import defaults

ALONE = (
    "this node has no links: `shoal doctor` says why; connect with `shoal node --bootstrap ADDR` "
    "or `shoal join CODE`"
)
WHO_HAD = "try again when one of its providers is back; `shoal find {root}` lists known providers"


class Providers:
    """Finds the providers of roots for one node, and publishes its own contents."""

    def __init__(self, host: Host, dht: Dht, dialer: Dialer) -> None:
        self._host = host
        self._dht = dht
        self._dialer = dialer
        self._said: dict[str, BlobBody] = {}

    @property
    def swarm(self) -> Swarm:
        """The interface through which the chunk exchange uses this object."""
        return Swarm(
            providers=self.providers,
            connect=self.connect,
            announce=self.announce,
            withdraw=self.withdraw,
        )

    # Other nodes.

    async def providers(self, root: str) -> Sequence[PeerId]:
        """Return the other nodes that claim to have chunks of a root.

        Nodes with all chunks come first. Within both groups, the order is random.
        """
        held = dict(await self._claims(root))
        lots = {peer: self._host.entropy(4) for peer in held}
        return sorted(held, key=lambda peer: (held[peer].ranges is not None, lots[peer]))

    async def replicas(self, root: str) -> set[PeerId]:
        """Return the other nodes that claim to have all chunks of a root."""
        return {peer for peer, body in await self._claims(root) if body.ranges is None}

    async def _claims(self, root: str) -> list[tuple[PeerId, BlobBody]]:
        """Return pairs of a node and its DHT record about a root. This node's own record is left
        out."""
        found = await self._dht.find(
            record_key(BlobBody.kind, root),
            most=defaults.FIND_MOST,
            enough=defaults.PROVIDERS_ENOUGH,
            timeout=defaults.FIND_TIME,
            kinds=(BlobBody.kind,),
        )
        return [
            (each.record.author, each.record.body)
            for each in found.records
            if isinstance(each.record.body, BlobBody) and each.record.author != self._dht.peer
        ]

    async def connect(self, peer: PeerId) -> Link:
        """Return a link to a peer, dialling it if necessary, and mark the link as needed. Raises
        TransportError if the peer cannot be reached."""
        link = self._dialer.endpoint.link(peer)
        if link is None or not link.connected:
            addresses = self._dialer.book(peer) or await self._addresses(peer)
            link = await self._dht.dial(peer, addresses)
        self._dialer.need(link)
        return link

    async def _addresses(self, peer: PeerId) -> Sequence[Address]:
        """Return the addresses from a peer's own DHT records that are safe to dial."""
        key = record_key(PeerBody.kind, peer)
        found = await self._dht.find(key, timeout=defaults.FIND_TIME, kinds=(PeerBody.kind,))
        return list(dict.fromkeys(self._dialable(peer, found)))

    def _dialable(self, peer: PeerId, found: FindingResult) -> list[Address]:
        return [
            address
            for each in found.records
            if isinstance(each.record.body, PeerBody) and each.record.author == peer
            for address in dialable(each.record.body.addresses, peer, self.nearness(each))
        ]

    def nearness(self, found: FoundRecord) -> Nearness:
        """Return how near the peer is that delivered a record.

        If that peer is unknown, because the record was stored on this node, the farthest of all
        linked peers is assumed.
        """
        links = self._dialer.endpoint.links()
        handed = [link for link in links if link.peer == found.by] or links
        return min(
            (nearness_at(link.status.address[0]) for link in handed), default=Nearness.PUBLIC
        )

    # This node.

    def announce(self, root: str, size: int, chunks: int, ranges: bytes | None) -> None:
        """Publish in the DHT which chunks of a root this node has.

        `size` is the size of the content in bytes, and `chunks` its number of chunks. `ranges`
        lists the chunks that are present, packed as in `dht/content/ranges.py`; None means all
        chunks.
        """
        runs = None if ranges is None else longest_runs(_unpacked(ranges))
        body = BlobBody(root, size, chunks, runs)
        with suppress(BadRecord):  # a root that no record can describe
            self._dht.publish(body, lasting=False)
            self._said[root] = body

    def withdraw(self, root: str) -> None:
        """Withdraw the DHT record about a root that this node no longer has."""
        if (body := self._said.pop(root, None)) is not None:
            self._dht.withdraw(body)


def _unpacked(ranges: bytes) -> list[tuple[int, int]]:
    """Return the pairs of numbers that `dht/content/ranges.py` has packed as 4-byte words."""
    words = [int.from_bytes(ranges[at : at + 4]) for at in range(0, len(ranges), 4)]
    return list(zip(words[::2], words[1::2], strict=True))
