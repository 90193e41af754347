"""Entries of made-up feeds, with arbitrary updates, real signatures and real chains."""

from collections.abc import Sequence

from shoal.state.feeds.entry import NO_PARENT, Entry, FeedName, seal_entry
from shoal.transport.identity import Identity


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32))


def chain(
    author: int,
    length: int,
    *,
    kind: str = "member",
    part: int = 0,
    epoch: int = 1,
    size: int = 100,
    salt: bytes = b"",
    after: Sequence[Entry] = (),
) -> list[Entry]:
    """Return `length` entries of an epoch, from its start or following the entries `after`."""
    parent = after[-1].hash if after else NO_PARENT
    made = list[Entry]()
    for seq in range(len(after), len(after) + length):
        update = (salt + b"%d.%d " % (epoch, seq)).ljust(size, b".")
        entry = seal_entry(
            identity(author),
            kind,
            part,
            epoch=epoch,
            seq=seq,
            parent=parent,
            made=0,
            update=update,
        )
        parent = entry.hash
        made.append(entry)
    return made


def name(author: int, kind: str = "member", part: int = 0) -> FeedName:
    return FeedName(identity(author).peer, kind, part)


def sealed(entries: Sequence[Entry]) -> list[bytes]:
    return [entry.sealed for entry in entries]
