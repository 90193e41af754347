"""Which idle shards a node unloads for a model that is asked for. No I/O. Reasons:
docs/adr/0084-room-for-a-model.md.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Place:
    """One slot of a node: whether it is `free`, or has a shard of `size` bytes that no session has
    used for `unused_s` seconds. It must not be unloaded for `stays_s` seconds more, and not at all
    if that is infinite.
    """

    number: int
    free: bool = False
    size: int = 0
    unused_s: float = 0.0
    stays_s: float = inf


@dataclass(frozen=True, slots=True)
class Room:
    """Room for a model: the slot that takes it, and the slots whose shards leave."""

    taker: int
    leaving: Collection[int]


def room_for(
    need: int, memory: int, places: Collection[Place], part: Place | None = None
) -> Room | float:
    """Return room for `need` bytes, or the seconds after which there will be some if no session
    uses the shards meanwhile.

    `memory` bytes are in no slot. The shards that were idle longest leave first, and no more than
    are needed. `part` is the slot that has a part of the model, and leaves in any case. The lowest
    slot takes the model, because the others get what it leaves.
    """
    free = [place.number for place in places if place.free]
    held = [place for place in places if not place.free and place.stays_s < inf]
    leaving = [part] if part is not None else []
    memory += sum(each.size for each in leaving)
    now = sorted((each for each in held if each.stays_s <= 0), key=lambda each: -each.unused_s)
    later = sorted((each for each in held if each.stays_s > 0), key=lambda each: each.stays_s)
    for place in (None, *now, *later):
        if place is not None:
            leaving.append(place)
            memory += place.size
        if memory >= need and (free or leaving):
            wait = max((each.stays_s for each in leaving), default=0.0)
            if wait > 0:
                return wait
            leave = [each.number for each in leaving]
            return Room(min(free + leave), leave)
    return inf
