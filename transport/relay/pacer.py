"""One rate shared fairly by whoever wants some of it. No I/O.

A token bucket whose tokens are dealt out: what is earned while somebody waits goes to those that
wait, by weight; what is earned while nobody does is a pool for whoever comes. A part of the pool is
kept for circuits that take little, as a token's way must not lead behind somebody's weights. So
who wants little gets it at once, those that want more than there is get equal parts, and nothing
that is lent stays unused. Never more than `rate` x t + the burst leaves in t seconds.
"""

from math import exp

from .defaults import BURST_S, CRUMBS, DEAL_S, GRAIN_BYTES, LIGHT_BYTES, PATIENCE_S, PAUSE_S


class Share:
    """One taker's part of the rate. Made by `Pacer.join`."""

    __slots__ = ("_pacer", "asked", "hungry", "recent", "tokens", "weight")

    def __init__(self, pacer: "Pacer", weight: int) -> None:
        self.weight = weight
        self.tokens = 0.0  # bytes dealt to this one alone; below 0 it has taken in advance
        self.hungry = False  # it asked for more than there was
        self.asked = 0.0
        self.recent = 0.0  # bytes moved lately, of each second that has passed e^-1
        self._pacer = pacer

    def room(self, now: float) -> int:
        """Bytes it may move now."""
        return self._pacer.room(self, now)

    def spend(self, size: int) -> None:
        """So many bytes have been moved."""
        self._pacer.spend(self, size)

    def pause(self) -> float:
        """Seconds until it is worth asking again, after `room` was too little."""
        return self._pacer.pause(self)

    def leave(self) -> None:
        """It wants nothing any more; may be repeated."""
        self._pacer.leave(self)


class Pacer:
    """`rate` in bytes per second, 0 for nothing at all."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = max(0, rate)
        self._burst = self._rate * BURST_S
        self._reserve = self._burst / 4
        self._pool = self._burst
        self._active = 0  # shares that have asked lately
        self._earned = now  # up to when tokens have been dealt
        self._shares: dict[Share, None] = {}

    def join(self, weight: int) -> Share:
        """One more taker."""
        share = Share(self, weight)
        self._shares[share] = None
        return share

    def leave(self, share: Share) -> None:
        """What the taker did not use, or took in advance, is everybody's."""
        if share in self._shares:
            del self._shares[share]
            self._pool += share.tokens
            share.tokens = 0.0
            share.hungry = False

    def room(self, share: Share, now: float) -> int:
        """Bytes that `share` may move now."""
        if share not in self._shares:
            return 0
        self._deal(now)
        share.recent *= exp(share.asked - now) if now > share.asked else 1.0
        share.asked = now
        kept = min(max(0.0, self._pool), self._reserve)
        common = max(0.0, self._pool - kept) + min(kept, max(0.0, self._light - share.recent))
        found = int(share.tokens + common)
        share.hungry = found < self._grain
        return found if found >= self._grain / CRUMBS else 0

    def spend(self, share: Share, size: int) -> None:
        """Take `size` bytes of its own, then of the pool; what neither has it owes."""
        if share not in self._shares:
            return
        share.recent += size
        common = min(max(0.0, size - max(0.0, share.tokens)), max(0.0, self._pool))
        self._pool -= common
        share.tokens -= size - common

    def pause(self, share: Share) -> float:
        """Seconds until `share` will have about a grain more."""
        shortest, longest = PAUSE_S
        waiting = sum(each.weight for each in self._shares if each.hungry) or share.weight
        pace = self._rate * share.weight / waiting
        missing = self._grain - share.tokens
        return longest if pace <= 0 else min(max(shortest, missing / pace), longest)

    @property
    def _grain(self) -> float:
        """Bytes worth moving; small enough that every share can have one within the burst."""
        return min(float(GRAIN_BYTES), self._burst / (2 * max(2, len(self._shares))))

    @property
    def _light(self) -> float:
        """Bytes lately moved up to which a share is a light one: half of an equal part at most."""
        return min(float(LIGHT_BYTES), self._rate / (2 * max(1, self._active)))

    def _deal(self, now: float) -> None:
        """Hand out what was earned since the last time, as far as the bucket holds it."""
        elapsed = now - self._earned
        if elapsed < DEAL_S:
            return
        self._earned = now
        self._active = sum(now - share.asked <= PATIENCE_S for share in self._shares)
        hungry = [share for share in self._shares if self._waits(share, now)]
        held = self._pool + sum(share.tokens for share in self._shares)
        earned = min(elapsed * self._rate, max(0.0, self._burst - held))
        debt = min(earned, max(0.0, self._reserve - self._pool))  # also of those that have left
        total = sum(share.weight for share in hungry)
        rest = earned
        for share in hungry:
            part = (earned - debt) * share.weight / total
            part = min(part, 2 * self._grain - share.tokens)
            share.tokens += part
            rest -= part
        self._pool += rest

    def _waits(self, share: Share, now: float) -> bool:
        """Whether it still wants more; one that has gone quiet gives its tokens back."""
        if now - share.asked > PATIENCE_S:
            share.hungry = False
            self._pool += max(0.0, share.tokens)
            share.tokens = min(0.0, share.tokens)
        return share.hungry
