"""Which sessions of a stage end so that a new one finds a place or memory. No I/O.

A gateway whose session ends so is told `preempted`. It opens the session again when there is room.
"""

from collections import Counter
from collections.abc import Collection

from ....transport.identity import PeerId
from .stagesession import StageSession


def resting(
    sessions: Collection[StageSession], asker: PeerId, own: PeerId, now: float
) -> list[StageSession]:
    """Return the sessions that compute nothing and so end for a session of `asker`, the first to
    end first: those that have never computed anything, those of the gateway with the most sessions,
    and those that have rested longest.

    Neither the asker's own sessions nor those of the stage's own node (`own`) end so.
    """
    counts = Counter(each.gateway for each in sessions)
    found = [
        each
        for each in sessions
        if each.gateway not in (asker, own) and each.open.standby is None and each.rests_at <= now
    ]
    return sorted(found, key=lambda each: (each.reached > 0, -counts[each.gateway], each.heard))


def giving_places(
    sessions: Collection[StageSession],
    counts: Counter[PeerId],
    asker: PeerId,
    own: PeerId,
    now: float,
    wanted: int,
) -> list[StageSession]:
    """Return up to `wanted` sessions that give their places to an interactive session of `asker`:
    jobs, then those that rest, then those of the gateway with the most places, as `counts` says.

    No gateway takes a place of one that would then have fewer than itself, except the stage's own
    node (`own`), whose sessions never end for others.
    """
    jobs = [each for each in reversed(list(sessions)) if each.open.idle]
    others = [each for each in sessions if not each.open.idle]
    found = [*jobs, *resting(others, asker, own, now)][:wanted]
    counts = counts - Counter(each.gateway for each in found)
    rest = [each for each in others if each not in found and each.gateway not in (asker, own)]
    while rest and len(found) < wanted:
        richest = max(rest, key=lambda each: (counts[each.gateway], each.waiting == 0, -each.heard))
        if asker != own and counts[asker] + 1 >= counts[richest.gateway]:
            break
        found.append(richest)
        rest.remove(richest)
        counts[richest.gateway] -= 1
    return found
