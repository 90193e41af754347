"""The parts of a daemon that store and fetch content: providers, chunk exchange, and disk limit."""

from ...dht.content.quota import Quota
from ...dht.exchange.exchange import ChunkExchange
from ...dht.exchange.proving import Proving
from ...dht.kv.index import KvIndex
from ...tasks.adapters.adapters import Adapters
from ...tasks.adapters.files import AdapterFiles
from ...tasks.inference.sources import ModelSources
from ..models.inventory import AnnouncedRoots, Inventory
from ..models.names import names_of
from ..models.providers import Providers
from ..settings.applying import disk_of
from .base import Base
from .embedded import EmbeddedModel
from .network import NetworkParts


class ContentParts:
    """The parts of one daemon that store models, blobs and KV blocks, and fetch more of them."""

    def __init__(self, base: Base, network: NetworkParts) -> None:
        host, endpoint, directory = base.host, network.endpoint, network.directory
        dht, guard = network.discovery.dht, endpoint.guard
        self.library = base.library
        self.providers = Providers(host, dht, network.dialer)
        self.names = names_of(dht, base.library, directory, network.state.views.models)
        self.kv = KvIndex(host, endpoint, dht, connect=self.providers.connect, guard=guard)
        self.announced = AnnouncedRoots(directory, self.providers, base.say)
        proof = Proving(host, base.library, connect=self.providers.connect, guard=guard)
        self.quota = Quota(
            host, base.library, disk_of(host, base.config, base.library), self.announced, proof
        )
        self.exchange = ChunkExchange(
            host, endpoint, base.library,
            swarm=self.providers.swarm, guard=guard, quota=self.quota,
        )  # fmt: skip
        inventory = self.inventory = Inventory(
            base.library, self.exchange, directory, endpoint, base.health, base.say
        )
        self.embedded = EmbeddedModel(host, base.library, directory, self.inventory, base.health)
        self.sources = ModelSources(
            base.library,
            self.exchange,
            directory,
            restore=self.embedded.restore,
            reserve=self.quota.pass_through,
            names=self.names.resolve,
            guard=guard,
        )
        adapters = self.adapters = Adapters(host, base.library, base.config.folder.library)
        self.adapter_files = AdapterFiles(
            host, adapters, self.exchange, self.sources, linked=inventory.linked
        )
