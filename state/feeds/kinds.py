"""The fixed list of feed kinds, with the limits of one feed of each kind.

Every limit that makes a replica refuse an entry is defined here, and depends only on the entry's
own feed. Therefore honest replicas refuse the same entries. Feeds of other kinds or parts are not
stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .. import defaults


@dataclass(frozen=True, slots=True)
class FeedKind:
    """One kind of feed, with the limits of each single feed of this kind."""

    name: str
    # whether each author has PARTS such feeds, chosen by the first hex digit of a model's root
    parted: bool
    update_bytes: int  # one update other than a snapshot
    epoch_bytes: int  # all sealed entries of an epoch
    live_bytes: int  # a snapshot of all current facts
    keys: int  # all keys that an epoch ever named
    entries: int = defaults.EPOCH_ENTRIES  # in an epoch

    @property
    def parts(self) -> range:
        """The valid part numbers."""
        return range(defaults.PARTS if self.parted else 1)


def _kind(name: str, epoch_kib: int, keys: int, *, parted: bool = False) -> FeedKind:
    epoch = epoch_kib * 2**10
    return FeedKind(
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
        _kind("member", 32, 256),  # capacity, version, and authors that the author vouches for
        _kind("models", 128, 1024),  # names that the author vouches for
        _kind("shards", 32, 256, parted=True),  # the model layers that the author serves
        _kind("jobs", 1024, 4096),  # the jobs that the author wants done
        _kind("claims", 1024, 4096),  # its claims on jobs
        _kind("usage", 128, 1024),  # the use of the author's computer, by client
        _kind("tuning", 512, 512),  # updates and signatures of training that members average
        _kind("group", 512, 4096),  # of a private group: members, roles, revocations
    )
}


def all_parts() -> Iterator[tuple[str, int]]:
    """Yield every (kind, part) that an author may have a feed of."""
    for kind in KINDS.values():
        for part in kind.parts:
            yield kind.name, part


def part_of_root(root: str) -> int:
    """Return the part, from 0 to 15, of the feed kind `shards` in which facts about a model belong.

    `root` is the model's root in 64 hex digits.
    """
    return int(root[0], 16)
