"""Who holds a root, by the DHT: looked up and dialled for the exchange, and told of this node.

What others say of themselves is their word: it only says where to ask, and every chunk is verified.
"""

from collections.abc import Sequence
from contextlib import suppress

from ..dht.errors import BadRecord
from ..dht.finding import Found
from ..dht.foundrecords import FoundRecord
from ..dht.key import record_key
from ..dht.record import BlobBody, PeerBody, longest_runs
from ..dht.service import Dht
from ..dht.switchboard import Swarm
from ..state.reach import dialable
from ..transport.address import Address
from ..transport.host import Host
from ..transport.identity import PeerId
from ..transport.ladder import Ladder
from ..transport.link import Link
from ..transport.place import Nearness, nearness_at
from . import defaults

ALONE = (
    "this node is linked with no other: `shoal doctor` says why; `shoal node --bootstrap ADDR` and "
    "`shoal join CODE` lead to one"
)
WHO_HAD = "try again when one of its holders is there; `shoal find {root}` shows who they were"


class Providers:
    """`swarm` is what the exchange needs of it."""

    def __init__(self, host: Host, dht: Dht, ladder: Ladder) -> None:
        self._host = host
        self._dht = dht
        self._ladder = ladder
        self._said: dict[str, BlobBody] = {}

    @property
    def swarm(self) -> Swarm:
        return Swarm(
            providers=self.providers,
            connect=self.connect,
            announce=self.announce,
            withdraw=self.withdraw,
        )

    # Others.

    async def providers(self, root: str) -> Sequence[PeerId]:
        """Others that say they hold some of it: those that hold all first, else by lot."""
        held = dict(await self._holdings(root))
        lots = {peer: self._host.entropy(4) for peer in held}
        return sorted(held, key=lambda peer: (held[peer].ranges is not None, lots[peer]))

    async def replicas(self, root: str) -> set[PeerId]:
        """Others that say they hold all of it."""
        return {peer for peer, body in await self._holdings(root) if body.ranges is None}

    async def _holdings(self, root: str) -> list[tuple[PeerId, BlobBody]]:
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
        """A link to it, for as long as it is used. Raises TransportError."""
        link = self._ladder.endpoint.link(peer)
        if link is None or not link.connected:
            addresses = self._ladder.book(peer) or await self._addresses(peer)
            link = await self._dht.dial(peer, addresses)
        self._ladder.need(link)
        return link

    async def _addresses(self, peer: PeerId) -> Sequence[Address]:
        """Where it says to be, as far as that may be dialled."""
        key = record_key(PeerBody.kind, peer)
        found = await self._dht.find(key, timeout=defaults.FIND_TIME, kinds=(PeerBody.kind,))
        return list(dict.fromkeys(self._dialable(peer, found)))

    def _dialable(self, peer: PeerId, found: Found) -> list[Address]:
        return [
            address
            for each in found.records
            if isinstance(each.record.body, PeerBody) and each.record.author == peer
            for address in dialable(each.record.body.addresses, peer, self._nearness(each))
        ]

    def _nearness(self, found: FoundRecord) -> Nearness:
        """How near whoever handed it out is; of what this node itself kept for others, who brought
        it is not known any more, so as near as everybody is that it has a link to."""
        links = self._ladder.endpoint.links()
        handed = [link for link in links if link.peer == found.by] or links
        return min(
            (nearness_at(link.status.address[0]) for link in handed), default=Nearness.PUBLIC
        )

    # This node.

    def announce(self, root: str, size: int, chunks: int, ranges: bytes | None) -> None:
        """Tell the swarm what is here of a root (packed, `dht/ranges.py`; None: all)."""
        runs = None if ranges is None else longest_runs(_unpacked(ranges))
        body = BlobBody(root, size, chunks, runs)
        with suppress(BadRecord):  # one that no record can tell of
            self._dht.publish(body, lasting=False)
            self._said[root] = body

    def withdraw(self, root: str) -> None:
        """Nothing of it is here any more."""
        if (body := self._said.pop(root, None)) is not None:
            self._dht.withdraw(body)


def _unpacked(ranges: bytes) -> list[tuple[int, int]]:
    words = [int.from_bytes(ranges[at : at + 4]) for at in range(0, len(ranges), 4)]
    return list(zip(words[::2], words[1::2], strict=True))
