"""Client: the parts with which a node sends queries, shared by its look-ups and walks."""

from ...transport.dial.endpoint import Endpoint
from ...transport.host.seam import Host
from ..kademlia.asking import DhtRequests
from ..kademlia.brieflinks import BriefLinks
from ..kademlia.presence import Presence
from ..kademlia.table import Table
from ..records.key import node_key
from ..settings import DhtSettings
from .query import Querier


class DhtClient:
    """The node of `endpoint` as a client of the DHT: its routing table and its brief links.

    `limiter` limits the dials of background work. It is None if they are not limited.
    """

    def __init__(
        self, host: Host, endpoint: Endpoint, presence: Presence, settings: DhtSettings
    ) -> None:
        self.host = host
        self.peer = endpoint.peer
        self.lookups = settings.lookups
        self.limiter = settings.limiter(host.now())
        own, limits = node_key(self.peer), settings.subnet_limits
        self.table = Table(own, host.entropy, subnet_limits=limits)
        self.links = BriefLinks(host, endpoint, presence.addressing.connect)
        self.asking = DhtRequests(host, self.links, self.table, presence.contact, endpoint.guard)

    def querier(self) -> Querier:
        """Return this node as the sender of the queries of a new look-up or walk."""
        asking = self.asking
        return Querier(self.host.entropy, self.peer, asking.serves(), asking.linked)
