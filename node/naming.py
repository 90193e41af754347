"""Which names this node and its members give to models: the near sources of `dht/names.py`."""

from collections.abc import Iterable, Iterator

from ..dht.library import Library
from ..dht.names import Names
from ..dht.record import NameBody
from ..dht.service import Dht
from ..state.directory import Directory
from ..state.record import MemberRecord
from ..transport.identity import PeerId
from .defaults import NAMED_LAYERS


def names_of(dht: Dht, library: Library, directory: Directory) -> Names:
    """The names of one node."""

    def known() -> Iterable[str]:
        yield from library.roots()
        for record in directory.members().values():
            yield from (shard.root for shard in record.shards)

    def told() -> Iterator[tuple[PeerId, NameBody]]:
        for peer, record in directory.members().items():
            yield from ((peer, body) for body in name_bodies(record))

    return Names(dht, own=dht.peer, here=library.names, known=known, told=told)


def name_bodies(member: MemberRecord) -> Iterator[NameBody]:
    """What a member calls models, as records of the DHT would say it."""
    for model in member.models:
        if model.name and 1 <= model.layers <= NAMED_LAYERS:
            yield NameBody(model.name, model.root, model.layers, model.weight_bytes)
