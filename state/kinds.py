"""What feeds there are: a fixed list of kinds, each with what one feed of it may hold.

Every limit that drops an entry stands here and looks at nothing but the entry's own feed, so
that honest replicas drop the same. A feed of a kind or part not in this list is not kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from . import defaults


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of feed and the limits of each of its feeds."""

    name: str
    parted: bool  # into PARTS feeds an author, by the first hex digit of a model's root
    update_bytes: int  # one update that is no snapshot
    epoch_bytes: int  # all entries of an epoch as they travel
    live_bytes: int  # a snapshot of what is not deleted or overwritten
    keys: int  # that an epoch ever named
    entries: int = defaults.EPOCH_ENTRIES  # of an epoch

    @property
    def parts(self) -> range:
        """The numbers that `part` may be."""
        return range(defaults.PARTS if self.parted else 1)


def _kind(name: str, epoch_kib: int, keys: int, *, parted: bool = False) -> Kind:
    epoch = epoch_kib * 2**10
    return Kind(
        name=name,
        parted=parted,
        update_bytes=min(defaults.UPDATE_BYTES, epoch // 2),
        epoch_bytes=epoch,
        live_bytes=min(defaults.SNAPSHOT_BYTES, epoch // 2),
        keys=keys,
    )


KINDS = {
    kind.name: kind
    for kind in (
        _kind("member", 32, 256),  # capacity, version, for whom it vouches
        _kind("models", 128, 1024),  # names that the author vouches for
        _kind("shards", 32, 256, parted=True),  # what it serves
        _kind("jobs", 1024, 4096),  # what it wants done
        _kind("claims", 1024, 4096),  # what it does of others' jobs
        _kind("usage", 128, 1024),  # what it counted, by user
        _kind("group", 512, 4096),  # of a private group: members, roles, revocations
    )
}


def all_parts() -> Iterator[tuple[str, int]]:
    """Every (kind, part) that an author may have a feed of."""
    for kind in KINDS.values():
        for part in kind.parts:
            yield kind.name, part


def part_of_root(root: str) -> int:
    """The part of `shards` that a model belongs to; `root` is its 64 hex digits."""
    return int(root[0], 16)
