"""Supplies the name look-up with the model names that this node and the members use."""

from collections.abc import Iterable, Iterator

from ...dht.content.library import Library
from ...dht.names import NameResolver
from ...dht.records.record import NameBody
from ...dht.service import Dht
from ...state.directory import Directory
from ...state.membership.record import ModelName
from ...state.views.models import ModelNames
from ...transport.identity import PeerId
from ..defaults import NAMED_LAYERS


def names_of(dht: Dht, library: Library, directory: Directory, told_of: ModelNames) -> NameResolver:
    """Return the name look-up of one node. `told_of` is the view of the model names that members
    have published, including members that are not live."""

    def known() -> Iterable[str]:
        yield from sorted(library.roots())
        for record in directory.members().values():
            yield from (shard.root for shard in record.shards)

    def told() -> Iterator[tuple[PeerId, NameBody]]:
        for root in told_of.roots():
            for peer, model in told_of.told_of(root):
                yield from ((peer, body) for body in name_bodies([model]))

    return NameResolver(dht, own=dht.peer, here=library.names, known=known, told=told)


def name_bodies(models: Iterable[ModelName]) -> Iterator[NameBody]:
    """Yield the names that a member gives to models, as bodies of DHT records. Names that no record
    can describe are left out."""
    for model in models:
        if model.name and 1 <= model.layers <= NAMED_LAYERS:
            yield NameBody(model.name, model.root, model.layers, model.weight_bytes)
